"""Joining: a one-time code becomes this node's own token and its Redis user."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from gettext import gettext as _

from agents import config, simulator_state
from agents.place import Fault, Place
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
    portal: str
    code: str
    node: str
    simulation: Simulation | None = None


def join(place: Place, wish: Wish, agent: str) -> config.Config:
    """Ask the portal and store its answer; nothing of an earlier joining is lost when it refuses.

    Raises `Fault` with the portal's reason. The token is stored, never shown.
    """
    door = portal(wish.portal)
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
    )
    config.store(place, joined)
    return joined


def _simulate(place: Place, simulation: Simulation, node: str) -> None:
    try:
        simulator_state.create_state(
            place.folder, simulation.spec, seed=node, cluster=simulation.fabric, mig=simulation.mig
        )
    except ValueError as error:
        raise Fault(_("This machine cannot be simulated: {why}").format(why=error)) from error
