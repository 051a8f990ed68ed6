"""`python -m agents COMMAND`: the program on each GPU node, and what a person at the node asks of it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from gettext import gettext as _
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agents import config, doctor, join, simulate, status
from agents.place import DEFAULT, Fault, Place, only_one

#: After SIGTERM the process ends within 2 s, whatever the driver or the broker is doing.
PATIENCE_S = 0.7
DEADLINE_S = 1.8


class Stopped(BaseException):
    """Ends the main thread from a signal; no handler of an ordinary error swallows it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 it could not be (one sentence says why), 2 it makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["simulate"]:
        return simulate.simulate_main(words[1:])
    ask = _parser().parse_args(words)
    place = Place(ask.state)
    try:
        return int(ask.command(place, ask))
    except Fault as fault:
        print(f"agents: {fault}", file=sys.stderr)
        return 1


def _join(place: Place, ask: argparse.Namespace) -> int:
    if (ask.fabric or ask.mig) and not ask.simulate:
        raise Fault(_("--fabric and --mig describe a simulated machine: say --simulate too."))
    simulation = join.Simulation(ask.simulate, ask.fabric, ask.mig) if ask.simulate else None
    wish = join.Wish(ask.portal, ask.code, ask.name, simulation, ask.ca_file)
    joined = join.join(place, wish, _version())
    print(_("{node} joined {portal}.").format(node=joined.node, portal=joined.portal))
    print(join.next_steps(place, joined))
    return 0


def _status(place: Place, ask: argparse.Namespace) -> int:
    found = status.status(place)
    print(status.as_json(found) if ask.json else status.as_text(found))
    return 0


def _freeze(place: Place, ask: argparse.Namespace) -> int:
    place.make()
    if ask.off:
        place.frozen.unlink(missing_ok=True)
        print(_("This node takes changes again."))
    else:
        place.frozen.touch()
        print(_("Nothing on this node is changed until `freeze --off`."))
    return 0


def _doctor(place: Place, ask: argparse.Namespace) -> int:
    try:
        own = config.load(place)
    except Fault:  # before joining it is the machine itself that is asked about
        place = replace(place, real=True)
    else:
        place = config.settle(place, own)
        config.use_simulator(place, own)
    said, outcome = doctor.doctor(place)
    print(said)
    return outcome


def _config(place: Place, ask: argparse.Namespace) -> int:
    """Without words: what is set."""
    own = config.load(place)
    if ask.words:
        own = config.change(own, ask.words)
        config.store(place, own)
        print(_("It holds from the agent's next start."))
    print(config.as_text(own))
    return 0


def _run(place: Place, ask: argparse.Namespace) -> int:
    # Before Celery is imported, since it reads the environment behind the settings' back.
    config.forget_foreign_settings()
    logging.basicConfig(level=ask.log, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("celery").setLevel(logging.WARNING)
    own = config.load(place)
    with only_one(place):
        config.use_simulator(place, own)
        return _live(config.settle(place, own), own)


def _live(place: Place, own: config.Config) -> int:
    from agents.agent import Agent  # here, because it imports Celery

    stopping = threading.Event()

    def stop(number: int, frame: object) -> None:
        if not stopping.is_set():
            stopping.set()
            deadline = threading.Timer(DEADLINE_S, os._exit, [0])
            deadline.daemon = True
            deadline.start()
            raise Stopped

    agent = Agent(place, own, _version())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        agent.start()
        agent.serve(stopping)
    except Stopped:
        pass
    agent.stop(PATIENCE_S)
    return 0


def _version() -> str:
    try:
        return version("gpupool")
    except PackageNotFoundError:
        return "0"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agents", description=_("The agent on a GPU node."))
    commands = parser.add_subparsers(required=True)
    joins = _command(commands, "join", _join, _("exchange a one-time code for this node's own token"))
    joins.add_argument("--portal", required=True, metavar="URL")
    joins.add_argument("--code", required=True)
    joins.add_argument("--name", required=True)
    joins.add_argument(
        "--ca-file", metavar="PATH", help=_("the authority that signed the portal's certificate")
    )
    joins.add_argument("--simulate", metavar="SPEC", help=_("simulate a machine, like 8xH100-80GB"))
    joins.add_argument("--fabric", metavar="UUID", help=_("the simulated NVLink domain"))
    joins.add_argument(
        "--mig", type=_indices, default=(), help=_("simulated GPUs that begin in MIG mode: 0,1")
    )
    runs = _command(commands, "run", _run, _("report, and carve as the portal wishes"))
    runs.add_argument("--log", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    shows = _command(commands, "status", _status, _("what this agent knows, without asking the portal"))
    shows.add_argument("--json", action="store_true")
    _command(commands, "doctor", _doctor, _("say what works on this machine and what does not"))
    settings = _command(commands, "config", _config, _("show or change this agent's settings"))
    settings.add_argument("words", nargs="*", metavar="NAME=VALUE", help=_("an empty value is the default"))
    freezes = _command(commands, "freeze", _freeze, _("stop every change on this node, portal or not"))
    freezes.add_argument("--off", action="store_true", help=_("take changes again"))
    commands.add_parser("simulate", help=_("drive a simulated machine"))
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: object, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--state", type=Path, default=DEFAULT, metavar="DIR")
    parser.set_defaults(command=run)
    return parser


def _indices(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


if __name__ == "__main__":
    sys.exit(main())
