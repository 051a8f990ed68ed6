"""Joining: a one-time code becomes this node's own token and its Redis user."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from gettext import gettext as _
from pathlib import Path
from typing import Any

from agents import config, simulator_state
from agents.place import DEFAULT, Fault, Place, is_running
from agents.post import JOIN, NoAnswer, Refused, portal
from pool.core.wire import NODE_NAME, JoinAnswer, JoinAsk


@dataclass(frozen=True, slots=True)
class Simulation:
    """The machine to simulate: "8xH100-80GB", its NVLink domain, the GPUs that begin with MIG on."""

    spec: str
    fabric: str | None = None
    mig: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """`ca_file`: the authority of a portal whose certificate no public one has signed."""

    portal: str
    code: str
    node: str
    simulation: Simulation | None = None
    ca_file: str | None = None


def join(place: Place, wish: Wish, agent: str) -> config.Config:
    """Ask the portal and store its answer; nothing of an earlier joining is lost when it refuses.

    Raises `Fault` with the portal's reason. The token is stored, never shown.
    """
    ca_file = str(Path(wish.ca_file).resolve()) if wish.ca_file else None
    door = portal(wish.portal, ca_file)
    if not re.fullmatch(NODE_NAME, wish.node):
        raise Fault(
            _("{name!r} is not a node's name: lower-case letters, digits and hyphens, at most 63.").format(
                name=wish.node
            )
        )
    if door.url.scheme == "http" and door.url.hostname not in ("127.0.0.1", "localhost", "::1"):
        print(_("Warning: {url} is not encrypted.").format(url=door.url.geturl()), file=sys.stderr)
    place.make()
    if wish.simulation:
        _simulate(place, wish.simulation, wish.node)
    machine_id = config.machine_id(place, simulated=wish.simulation is not None)
    ask = JoinAsk(code=wish.code, node=wish.node, machine_id=machine_id, agent=agent)
    try:
        answer = door.ask(JOIN, ask, JoinAnswer)
    except NoAnswer as error:
        raise Fault(
            _("The portal at {url} does not answer: {why}").format(url=wish.portal, why=error)
        ) from error
    except Refused as error:
        raise Fault(_("The portal refused: {why}").format(why=error)) from error
    joined = config.Config(
        portal=door.url.geturl(),
        node=answer.node,
        token=answer.token,
        broker_url=answer.broker_url,
        report_s=answer.report_s,
        simulated=wish.simulation.spec if wish.simulation else None,
        **(_settings(place) | ({"ca_file": ca_file} if ca_file else {})),
    )
    config.store(place, joined)
    return joined


def _settings(place: Place) -> dict[str, Any]:
    """What the operator has set here: joining anew changes who the node is, not how it is run."""
    try:
        earlier = config.load(place)
    except Fault:
        return {}
    return {name: getattr(earlier, name) for name in config.SETTINGS}


def next_steps(place: Place, joined: config.Config) -> str:
    """What to do after joining, for the person at the node."""
    state = "" if place.folder == DEFAULT else f" --state {shlex.quote(str(place.folder))}"
    call = f"{shlex.quote(sys.executable)} -m agents"
    lines = [
        _("See what works here:  {call}").format(call=f"{call} doctor{state}"),
        _("Start the agent:      {call}").format(call=f"{call} run{state}"),
        _("It only looks on until an operator of the portal lets it manage a GPU."),
    ]
    if joined.simulated is None and place.folder == DEFAULT:
        lines[1] = _("Start the agent:      {call}").format(call="systemctl enable --now gpupool-agent")
    if is_running(place):
        lines[1] = _("The agent that runs here has the earlier token, which has ended: restart it.")
    return "\n".join(lines)


def _simulate(place: Place, simulation: Simulation, node: str) -> None:
    try:
        simulator_state.create_state(
            place.folder, simulation.spec, seed=node, cluster=simulation.fabric, mig=simulation.mig
        )
    except ValueError as error:
        raise Fault(_("This machine cannot be simulated: {why}").format(why=error)) from error
