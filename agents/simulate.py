"""`python -m agents simulate`: drives a running simulated driver from outside."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from gettext import gettext as _
from pathlib import Path

from agents import simulator_world as world
from agents.simulator_state import create_state


def simulate_main(argv: Sequence[str]) -> int:
    """Run one command on `--state DIR` and return the exit status (2: nonsense, with one clear line).

    create SPEC --seed NAME [--cluster UUID] [--clique N] [--mig 0,1] | reboot |
    xid 79 --gpu 3 [--slice 0] | lose --gpu 3 | process --gpu 3 [--slice 0] [--uid N] [--memory MIB] |
    busy --mig UUID 0 | permission on|off | stop-processes
    """
    try:
        ask = _parser().parse_args(argv)
    except SystemExit as done:  # argparse has said what is wrong
        return int(done.code or 0)
    try:
        _run(ask, ask.state)
    except FileNotFoundError:
        return _complain(_("there is no simulated driver in {folder}").format(folder=ask.state))
    except (LookupError, ValueError, OSError) as error:
        return _complain(str(error.args[0] if isinstance(error, LookupError) else error))
    return 0


def _run(ask: argparse.Namespace, folder: Path) -> None:
    match ask.command:
        case "create":
            create_state(folder, ask.spec, seed=ask.seed, cluster=ask.cluster, clique=ask.clique, mig=ask.mig)
        case "reboot":
            world.reboot(folder)
        case "xid":
            world.xid(folder, ask.gpu, ask.number, ask.slice)
        case "lose":
            world.lose(folder, ask.gpu)
        case "process":
            print(world.process(folder, ask.gpu, ask.slice, ask.uid, ask.memory))
        case "busy":
            world.busy(folder, ask.mig, ask.percent)
        case "permission":
            world.permission(folder, ask.granted == "on")
        case "stop-processes":
            print(world.stop_processes(folder))


def _complain(sentence: str) -> int:
    print(f"simulate: {sentence}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agents simulate", description=_("Drive a simulated driver, also while it runs.")
    )
    parser.add_argument(
        "--state", type=Path, required=True, metavar="DIR", help=_("the simulated driver's folder")
    )
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help=_("make a machine; keeps one that is there"))
    create.add_argument("spec", help=_("8xH100-80GB, or several joined by +"))
    create.add_argument("--seed", required=True, help=_("the node's name"))
    create.add_argument("--cluster", help=_("UUID of the NVLink domain"))
    create.add_argument("--clique", type=int, default=0)
    create.add_argument("--mig", type=_indices, default=(), help=_("GPUs that begin in MIG mode: 0,1,2"))
    commands.add_parser("reboot", help=_("instances and processes are gone, the mode stays on Ampere only"))
    xid = commands.add_parser("xid", help=_("report an error event; 79 also loses the GPU"))
    xid.add_argument("number", type=int)
    _at(xid)
    _at(commands.add_parser("lose", help=_("the GPU answers nothing until a reboot")), slices=False)
    process = commands.add_parser("process", help=_("start a real idle process; prints its pid"))
    _at(process)
    process.add_argument("--uid", type=int, help=_("whose process (root only)"))
    process.add_argument("--memory", type=int, default=world.PROCESS_MIB, metavar="MIB")
    busy = commands.add_parser("busy", help=_("say how busy a MIG device or whole GPU is"))
    busy.add_argument("--mig", required=True, metavar="UUID")
    busy.add_argument("percent", type=int)
    permission = commands.add_parser("permission", help=_("whether orders to the driver are permitted"))
    permission.add_argument("granted", choices=("on", "off"))
    commands.add_parser("stop-processes", help=_("end the processes started here; prints how many"))
    return parser


def _at(parser: argparse.ArgumentParser, *, slices: bool = True) -> None:
    parser.add_argument("--gpu", type=int, required=True, metavar="INDEX")
    if slices:
        parser.add_argument("--slice", type=int, metavar="N", help=_("the N-th instance by start, from 0"))


def _indices(text: str) -> tuple[int, ...]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(_("{text!r} is no list of GPU indices").format(text=text))
    return tuple(int(word) for word in text.split(","))
