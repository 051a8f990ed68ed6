"""A reservation as its pages show it: its way, its places on GPUs, what stands against them, what happened.

How to connect to them: connect_view.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils.translation import gettext as _

from pool.core.states import TERMINAL, State
from pool.queries import troubles
from pool.queries.reservations import AllocationView, ReservationView
from portal import askwords
from portal.web import connect_view, svg, words
from portal.web.tags import slices

if TYPE_CHECKING:
    from pool.models import Event, Reservation
    from pool.queries.troubles import Process
    from pool.services.lineup import Place

MOVING = frozenset({State.STARTING, State.ENDING})
BEFORE = frozenset({State.HELD, State.PENDING_APPROVAL, State.WAITING, State.SCHEDULED})
BAD_ENDS = frozenset({State.DENIED, State.PREEMPTED, State.FAILED})
#: A start this near is watched as closely as one under way.
NEAR = timedelta(seconds=15)
EVENTS = 50
#: For so long an error of a program stands at the top of the page.
NEWS = timedelta(hours=1)


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
    place: Place | None = None

    @property
    def lasts(self) -> timedelta | None:
        return None if self.end is None else self.end - self.start


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
class Part:
    """One of its allocations and what it is called."""

    label: str
    view: AllocationView


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What it has on one GPU."""

    node: str
    index: int
    uuid: str
    model: str
    drawing: svg.Drawing
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """What stands against a place of it, as queries.troubles.Trouble says; `whole`: the GPU, no slice.

    `fault` says what is wrong with the GPU, and `action` what is done about it.
    """

    code: str
    place: str
    what: str
    whole: bool
    since: datetime | None
    until: datetime | None
    fault: str
    action: str
    used_mib: int | None
    memory_mib: int | None
    processes: tuple[str, ...] | None
    told: bool


@dataclass(frozen=True, slots=True)
class Happened:
    """`detail`: what was wrong, or what a step of the site printed."""

    verb: str
    reason: str
    at: datetime
    actor: str
    detail: str


def line(row: Reservation, place: Place | None = None) -> Line:
    """`place`: where it stands in the line, of one that waits."""
    return Line(
        id=row.pk,
        title=row.title,
        what=askwords.asked(row.ask),
        state=row.state,
        start=row.period.lower,
        end=row.period.upper,
        team=row.team.name,
        owner=row.owner.username,
        place=place,
    )


def context(view: ReservationView, events: Iterable[Event], now: datetime) -> dict[str, Any]:
    """All that the page's live part shows, but for what the viewer may do."""
    over = view.state in TERMINAL
    begun = view.start <= now
    shown = [_happened(event) for event in list(events)[-EVENTS:]]
    return {
        "r": view,
        "what": askwords.in_full(view.ask),
        "over": over,
        "started": view.state not in BEFORE,
        "begun": view.state not in BEFORE and view.state != State.STARTING,
        "left": view.end - now if view.end and begun and view.state == State.ACTIVE else None,
        "until_start": view.start - now if not begun and not over else None,
        "waiting": view.state == State.WAITING,
        "lasts": view.end - view.start if view.end else None,
        "steps": steps(view),
        "gpus": on_gpus(view.allocations),
        "connect": connect_view.connect(view.allocations),
        "events": shown,
        "mistake": _mistake(view, shown, now),
        "unheard": sorted(view.unknown_since.items()),
        "notices": notices(view.allocations),
        "grace_minutes": max(1, (view.preempt_grace_s or 0) // 60),
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
    if view.state == State.HELD:
        ahead = (
            Step(_("Booked"), "", None),
            Step(_("Active"), "", view.start),
            Step(_("Ended"), "", view.end),
        )
        return Step(label, "now", view.created_at), *ahead
    if view.state in BEFORE:
        here = Step(label, "now", None)
        # Who waits has a time only once something fits.
        start, end = (None, None) if view.state == State.WAITING else (view.start, view.end)
        return booked, here, Step(_("Active"), "", start), Step(_("Ended"), "", end)
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
    """Its allocations by GPU, each GPU with its grid, on which neither others' nor what is gone is drawn."""
    by_gpu: dict[str, list[AllocationView]] = defaultdict(list)
    for one in allocations:
        by_gpu[one.gpu_uuid].append(one)
    return [_on_gpu(number, on_it) for number, on_it in enumerate(by_gpu.values(), start=1)]


def _on_gpu(number: int, on_it: Sequence[AllocationView]) -> OnGpu:
    first = on_it[0]
    # Shares lie on one another.
    drawn = {(one.start, one.size): one for one in reversed(on_it) if not one.gone}
    marks = [
        svg.Mark(*span, "mine", label(drawn[span]), "" if drawn[span].share else slices(span))
        for span in sorted(drawn)
    ]
    name = f"{first.node} GPU {first.gpu}"
    row = svg.line("", "", first.grid, marks)
    picture = svg.drawing(f"on-{number}", name, first.grid, [row], ticked=first.kind == "mig")
    parts = tuple(Part(label(one), one) for one in on_it)
    return OnGpu(first.node, first.gpu, first.gpu_uuid, first.model, picture, parts)


def label(one: AllocationView) -> str:
    """`1g.10gb`, `share of 8 GiB, 20 % compute`, `whole GPU`."""
    if one.share is not None:
        return words.share(one.share.memory_mib, one.share.guaranteed, one.share.limit)
    return one.profile or _("whole GPU")


#: What concerns one slice; anything else is told once for a GPU.
_OF_A_SLICE = frozenset({troubles.IN_USE, troubles.SHARE_DEGRADED, troubles.SHARE_OVER})


def notices(allocations: Sequence[AllocationView]) -> list[Notice]:
    """What its viewer has to know: a slice in use by itself, what is wrong with a GPU once."""
    found: dict[tuple[str, str], Notice] = {}
    for one in allocations:
        if one.trouble is not None:
            where = str(one.id) if one.trouble.code in _OF_A_SLICE else one.gpu_uuid
            found.setdefault((one.trouble.code, where), _notice(one, one.trouble))
    return list(found.values())


def _notice(one: AllocationView, trouble: troubles.Trouble) -> Notice:
    return Notice(
        code=trouble.code,
        place=f"{one.node} GPU {one.gpu}",
        what=label(one) if one.kind != "gpu" else one.model,
        whole=one.kind == "gpu",
        since=trouble.since,
        until=trouble.until,
        fault="" if trouble.xid is None else words.fault("xid", trouble.xid),
        action=trouble.action,
        used_mib=trouble.used_mib,
        memory_mib=one.share.memory_mib if one.share else None,
        processes=None if trouble.processes is None else tuple(_named(each) for each in trouble.processes),
        told=trouble.told,
    )


def _named(one: Process) -> str:
    said = {"name": one.name or _("a process"), "pid": one.pid, "user": one.user}
    if one.user:
        return _("%(name)s (pid %(pid)s, user %(user)s)") % said
    return _("%(name)s (pid %(pid)s)") % said


def _mistake(view: ReservationView, shown: Sequence[Happened], now: datetime) -> Happened | None:
    """The last error of a program of its own, while that is news."""
    if view.state != State.ACTIVE:
        return None
    found = [one for one in shown if one.verb == "reservation.xid" and now - one.at < NEWS]
    return found[-1] if found else None


def _happened(event: Event) -> Happened:
    """A booking needs no reason: it was asked for."""
    after = event.after or {}
    reason = "" if event.verb == "reservation.booked" else str(after.get("reason", ""))
    return Happened(event.verb, reason, event.at, event.actor_label, _detail(event.verb, after))


def _detail(verb: str, after: Mapping[str, Any]) -> str:
    if verb == "reservation.fault":
        return words.fault(str(after.get("kind", "")), after.get("xid"))
    number = after.get("xid", (after.get("data") or {}).get("xid"))
    if verb == "reservation.xid" and isinstance(number, int):
        return words.fault("xid", number)
    return str(after.get("text", ""))
