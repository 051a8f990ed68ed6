"""A reservation as its pages show it: its way, its places on GPUs, how to connect, what happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils.translation import gettext as _

from pool.core.states import TERMINAL, State
from pool.queries import troubles
from pool.queries.reservations import AllocationView, ReservationView
from portal.web import svg, words
from portal.web.tags import slices

if TYPE_CHECKING:
    from pool.models import Event, Reservation
    from pool.queries.troubles import Process

MOVING = frozenset({State.STARTING, State.ENDING})
BEFORE = frozenset({State.HELD, State.PENDING_APPROVAL, State.WAITING, State.SCHEDULED})
BAD_ENDS = frozenset({State.DENIED, State.PREEMPTED, State.FAILED})
#: A start this near is watched as closely as one under way.
NEAR = timedelta(seconds=15)
EVENTS = 50


@dataclass(frozen=True, slots=True)
class Line:
    """A reservation in a list."""

    id: UUID
    title: str
    what: str
    state: str
    start: datetime
    end: datetime | None
    team: str
    owner: str


@dataclass(frozen=True, slots=True)
class Step:
    """A station on its way; `tone` is done, now, bad or empty (ahead)."""

    label: str
    tone: str
    at: datetime | None

    @property
    def now(self) -> bool:
        return self.tone in ("now", "bad")


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What it has on one GPU."""

    node: str
    index: int
    uuid: str
    model: str
    drawing: svg.Drawing
    allocations: tuple[AllocationView, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A line to copy; `id` is unique on the page."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Connect:
    """How to reach what it has on one node."""

    node: str
    access: str
    shells: tuple[Command, ...]
    docker: Command

    @property
    def advisory(self) -> bool:
        return self.access == "advisory"


@dataclass(frozen=True, slots=True)
class Notice:
    """What stands against a place of it, as queries.troubles.Trouble says; `whole`: the GPU, no slice."""

    code: str
    place: str
    what: str
    whole: bool
    since: datetime | None
    processes: tuple[str, ...] | None
    told: bool


@dataclass(frozen=True, slots=True)
class Happened:
    verb: str
    reason: str
    at: datetime
    actor: str


def line(row: Reservation) -> Line:
    return Line(
        id=row.pk,
        title=row.title,
        what=words.asked(row.ask),
        state=row.state,
        start=row.period.lower,
        end=row.period.upper,
        team=row.team.name,
        owner=row.owner.username,
    )


def context(view: ReservationView, events: Iterable[Event], now: datetime) -> dict[str, Any]:
    """All that the page's live part shows, but for what the viewer may do."""
    over = view.state in TERMINAL
    begun = view.start <= now
    return {
        "r": view,
        "what": words.asked(view.ask),
        "over": over,
        "started": view.state not in BEFORE,
        "left": view.end - now if view.end and begun and view.state == State.ACTIVE else None,
        "until_start": view.start - now if not begun and not over else None,
        "lasts": view.end - view.start if view.end else None,
        "steps": steps(view),
        "gpus": on_gpus(view.allocations),
        "connect": connect(view.allocations),
        "events": [_happened(event) for event in list(events)[-EVENTS:]],
        "unheard": sorted(view.unknown_since.items()),
        "notices": notices(view.allocations),
    }


def poll_seconds(view: ReservationView, now: datetime) -> int | None:
    """How often the page looks again: each second while something moves, never when nothing will."""
    if view.state in TERMINAL:
        return None
    near = view.state == State.SCHEDULED and view.start - now < NEAR
    ending = view.end is not None and view.end - now < NEAR
    return 1 if view.state in MOVING or near or ending else 5


def steps(view: ReservationView) -> tuple[Step, ...]:
    """Booked, starting, active, ended: with the times that are known, and where it is."""
    booked = Step(_("Booked"), "done", view.created_at)
    label = str(words.STATES[view.state][0]) if view.state in words.STATES else view.state
    if view.state in BEFORE:
        here = Step(label, "now", None)
        return booked, here, Step(_("Active"), "", view.start), Step(_("Ended"), "", view.end)
    if view.state in TERMINAL:
        tone = "bad" if view.state in BAD_ENDS else "now"
        ran = (Step(_("Active"), "done", view.started_at),) if view.started_at else ()
        return (booked, *ran, Step(label, tone, view.ended_at))
    active = Step(_("Active"), _tone(view, State.ACTIVE), view.started_at)
    if view.state == State.ENDING:
        return booked, active, Step(label, "now", None), Step(_("Ended"), "", None)
    starting = Step(_("Starting"), _tone(view, State.STARTING), view.start)
    return booked, starting, active, Step(_("Ended"), "", view.end)


def _tone(view: ReservationView, at: State) -> str:
    if view.state == at or (at == State.ACTIVE and view.state == State.PAUSED):
        return "now"
    return "done" if at == State.STARTING or view.started_at else ""


def on_gpus(allocations: Sequence[AllocationView]) -> list[OnGpu]:
    """Its allocations by GPU, each GPU with its grid; what others hold there is not drawn."""
    by_gpu: dict[str, list[AllocationView]] = defaultdict(list)
    for one in allocations:
        by_gpu[one.gpu_uuid].append(one)
    return [_on_gpu(number, on_it) for number, on_it in enumerate(by_gpu.values(), start=1)]


def _on_gpu(number: int, on_it: Sequence[AllocationView]) -> OnGpu:
    first = on_it[0]
    marks = [
        svg.Mark(one.start, one.size, "mine", one.profile or _("whole GPU"), slices((one.start, one.size)))
        for one in on_it
    ]
    name = f"{first.node} GPU {first.gpu}"
    row = svg.line("", "", first.grid, marks)
    picture = svg.drawing(f"on-{number}", name, first.grid, [row], ticked=first.kind == "mig")
    return OnGpu(first.node, first.gpu, first.gpu_uuid, first.model, picture, tuple(on_it))


def connect(allocations: Sequence[AllocationView]) -> list[Connect]:
    """Lines by node, once the node has reported it ready.

    A process sees one MIG device only, so each slice has a line of its own;
    whole GPUs go together.
    """
    by_node: dict[str, list[AllocationView]] = defaultdict(list)
    for one in allocations:
        if one.env:
            by_node[one.node].append(one)
    return [_connect(number, node, ready) for number, (node, ready) in enumerate(sorted(by_node.items()))]


def _connect(number: int, node: str, ready: Sequence[AllocationView]) -> Connect:
    sets = [[one] for one in ready] if ready[0].kind == "mig" else [list(ready)]
    shells = []
    for place, ones in enumerate(sets):
        title = f"{ones[0].profile}, GPU {ones[0].gpu}" if ones[0].kind == "mig" else ""
        shells.append(Command(f"shell-{number}-{place}", title, _exports(ones)))
    devices = ",".join(one.env["NVIDIA_VISIBLE_DEVICES"] for one in ready)
    docker = Command(f"docker-{number}", "", f"docker run --rm --gpus '\"device={devices}\"' IMAGE")
    return Connect(node, ready[0].access, tuple(shells), docker)


def _exports(ones: Sequence[AllocationView]) -> str:
    names = ones[0].env
    return "\n".join(f"export {name}={','.join(one.env[name] for one in ones)}" for name in names)


def notices(allocations: Sequence[AllocationView]) -> list[Notice]:
    """What its viewer has to know: a slice in use by itself, what is wrong with a GPU once."""
    found: dict[tuple[str, str], Notice] = {}
    for one in allocations:
        if one.trouble is not None:
            where = str(one.id) if one.trouble.code == troubles.IN_USE else one.gpu_uuid
            found.setdefault((one.trouble.code, where), _notice(one, one.trouble))
    return list(found.values())


def _notice(one: AllocationView, trouble: troubles.Trouble) -> Notice:
    return Notice(
        code=trouble.code,
        place=f"{one.node} GPU {one.gpu}",
        what=one.profile or one.model,
        whole=one.kind != "mig",
        since=trouble.since,
        processes=None if trouble.processes is None else tuple(_named(each) for each in trouble.processes),
        told=trouble.told,
    )


def _named(one: Process) -> str:
    said = {"name": one.name or _("a process"), "pid": one.pid, "user": one.user}
    if one.user:
        return _("%(name)s (pid %(pid)s, user %(user)s)") % said
    return _("%(name)s (pid %(pid)s)") % said


def _happened(event: Event) -> Happened:
    """A booking needs no reason: it was asked for."""
    reason = "" if event.verb == "reservation.booked" else str((event.after or {}).get("reason", ""))
    return Happened(event.verb, reason, event.at, event.actor_label)
