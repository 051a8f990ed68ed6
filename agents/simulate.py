"""`python -m agents simulate`: drives a running simulated driver from outside."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from gettext import gettext as _
from pathlib import Path
from typing import TYPE_CHECKING

from agents import simulator_world as world
from agents.simulator_state import create_state

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def simulate_main(argv: Sequence[str]) -> int:
    """Run one command on `--state DIR` and return the exit status (2: nonsense, with one clear line).

    create SPEC --seed NAME [--cluster UUID] [--clique N] [--mig 0,1] [--old-driver] | reboot |
    xid 79 --gpu 3 [--slice 0] | lose --gpu 3 | gpu-reset --uuid UUID | busy --mig UUID 0 |
    process --gpu 3 [--slice 0] [--uid N] [--memory MIB] [--env NAME=VALUE ...] | stop-processes |
    ecc --gpu 3 [--corrected N] [--uncorrected N] | remap --gpu 3 [--correctable] [--failed] |
    throttle --gpu 3 [hw_thermal ...] | links-down --gpu 3 2 | permission on|off
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
            create_state(
                folder,
                ask.spec,
                seed=ask.seed,
                cluster=ask.cluster,
                clique=ask.clique,
                mig=ask.mig,
                old_driver=ask.old_driver,
            )
        case "reboot":
            world.reboot(folder)
        case "gpu-reset":
            world.reset(folder, ask.uuid)
        case "process":
            print(world.process(folder, ask.gpu, ask.slice, ask.uid, ask.memory, env=dict(ask.env)))
        case "busy":
            world.busy(folder, ask.mig, ask.percent)
        case "permission":
            world.permission(folder, ask.granted == "on")
        case "stop-processes":
            print(world.stop_processes(folder))
        case _:
            _harm(ask, folder)


def _harm(ask: argparse.Namespace, folder: Path) -> None:
    match ask.command:
        case "xid":
            world.xid(folder, ask.gpu, ask.number, ask.slice)
        case "lose":
            world.lose(folder, ask.gpu)
        case "ecc":
            world.ecc(folder, ask.gpu, corrected=ask.corrected, uncorrected=ask.uncorrected)
        case "remap":
            world.remap(folder, ask.gpu, correctable=ask.correctable, failed=ask.failed)
        case "throttle":
            world.throttle(folder, ask.gpu, *ask.reasons)
        case "links-down":
            world.links_down(folder, ask.gpu, ask.count)


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
    _add_machine(commands)
    _add_harm(commands)
    process = commands.add_parser("process", help=_("start a real idle process; prints its pid"))
    _at(process)
    process.add_argument("--uid", type=int, help=_("whose process (root only)"))
    process.add_argument("--memory", type=int, default=world.PROCESS_MIB, metavar="MIB")
    process.add_argument("--env", type=_variable, action="append", default=[], metavar="NAME=VALUE")
    busy = commands.add_parser("busy", help=_("say how busy a MIG device or whole GPU is"))
    busy.add_argument("--mig", required=True, metavar="UUID")
    busy.add_argument("percent", type=int)
    commands.add_parser("stop-processes", help=_("end the processes started here; prints how many"))
    return parser


def _add_machine(commands: Commands) -> None:
    create = commands.add_parser("create", help=_("make a machine; keeps one that is there"))
    create.add_argument("spec", help=_("8xH100-80GB, or several joined by +"))
    create.add_argument("--seed", required=True, help=_("the node's name"))
    create.add_argument("--cluster", help=_("UUID of the NVLink domain"))
    create.add_argument("--clique", type=int, default=0)
    create.add_argument("--mig", type=_indices, default=(), help=_("GPUs that begin in MIG mode: 0,1,2"))
    create.add_argument("--old-driver", action="store_true", help=_("without the newest functions"))
    commands.add_parser("reboot", help=_("instances and processes are gone, the mode stays on Ampere only"))
    reset = commands.add_parser("gpu-reset", help=_("reset a GPU that nobody has open"))
    reset.add_argument("--uuid", required=True)
    permission = commands.add_parser("permission", help=_("whether orders to the driver are permitted"))
    permission.add_argument("granted", choices=("on", "off"))


def _add_harm(commands: Commands) -> None:
    xid = commands.add_parser("xid", help=_("report an error event; 79 also loses the GPU"))
    xid.add_argument("number", type=int)
    _at(xid)
    _at(commands.add_parser("lose", help=_("the GPU answers nothing until a reboot")), slices=False)
    ecc = commands.add_parser("ecc", help=_("so many more errors of memory"))
    _at(ecc, slices=False)
    ecc.add_argument("--corrected", type=int, default=0, metavar="N")
    ecc.add_argument("--uncorrected", type=int, default=0, metavar="N")
    remap = commands.add_parser("remap", help=_("a row of memory is to be replaced at the next reset"))
    _at(remap, slices=False)
    remap.add_argument("--correctable", action="store_true", help=_("its errors were correctable ones"))
    remap.add_argument("--failed", action="store_true", help=_("no row is left to replace it"))
    throttle = commands.add_parser("throttle", help=_("hold clocks down; without a reason no longer"))
    _at(throttle, slices=False)
    throttle.add_argument("reasons", nargs="*", metavar="REASON")
    down = commands.add_parser("links-down", help=_("so many NVLinks are down"))
    _at(down, slices=False)
    down.add_argument("count", type=int)


def _at(parser: argparse.ArgumentParser, *, slices: bool = True) -> None:
    parser.add_argument("--gpu", type=int, required=True, metavar="INDEX")
    if slices:
        parser.add_argument("--slice", type=int, metavar="N", help=_("the N-th instance by start, from 0"))


def _indices(text: str) -> tuple[int, ...]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(_("{text!r} is no list of GPU indices").format(text=text))
    return tuple(int(word) for word in text.split(","))


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(_("{text!r} is not NAME=VALUE").format(text=text))
    return name, value
