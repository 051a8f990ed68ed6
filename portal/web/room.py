"""What the typed booking form would get: free count, charge, a picture. Books nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pool.core import placement, shares
from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.placement import Pick, Portion
from pool.queries import snapshot
from pool.queries.snapshot import Snapshot
from pool.services import plans, spending, thresholds
from pool.services import room as rooms
from pool.services.plans import NoRoom, Plan, Wanted
from portal.errors import problem
from portal.web import svg, words
from portal.web.borrowed import spells
from portal.web.tags import gib, written

if TYPE_CHECKING:
    from pool.core.admission import Loan
    from pool.models import Pool, Team


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a GPU for shares has of one thing, at its fullest moment: `ours` beside what others hold."""

    name: str
    ours: str
    others: str
    whole: str
    bar: tuple[svg.Part, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """`start` None means now. `tone` is good or bad; `sentences` say why and what next."""

    start: datetime | None
    end: datetime
    charge_milli: int | None
    each: str
    drawing: svg.Drawing | None
    ledgers: tuple[Ledger, ...]
    tone: str
    headline: str
    sentences: tuple[str, ...]
    #: When what of it may be taken back.
    loans: tuple[Loan, ...] = ()
    #: When it would start instead, by taking back what its team lent.
    reclaims_at: datetime | None = None
    approve_by: datetime | None = None

    @property
    def told(self) -> frozenset[str]:
        """What somebody should have read before it is booked."""
        said = {"borrows": self.loans, "reclaims": self.reclaims_at, "approval": self.approve_by}
        return frozenset(name for name, value in said.items() if value)


def room(*, pool: Pool, team: Team, wanted: Wanted, starts_now: bool, now: datetime) -> Room:
    """Look at the pool as a booking would, with one reading and no lock."""
    seen = snapshot.take(pool.pk, wanted.blocked, team_id=team.pk, now=now)
    plan, approve_by, refusal = _chosen(seen, wanted, pool, team)
    reclaims_at = _reclaims_at(refusal)
    tone, headline, sentences = _verdict(seen, wanted, refusal, reclaims_at)
    assert wanted.period.end is not None
    return Room(
        start=None if starts_now else wanted.period.start,
        end=wanted.period.end,
        charge_milli=sum(pick.charge_milli for pick in plan.picks) if plan else None,
        each=_each(plan.picks[0], seen) if plan else "",
        drawing=_picture(seen, plan.picks) if plan else None,
        ledgers=_ledgers(seen, plan.picks, wanted.blocked) if plan else (),
        tone=tone,
        headline=headline,
        sentences=sentences,
        loans=spells(plan.borrowed) if plan else (),
        reclaims_at=reclaims_at,
        approve_by=approve_by,
    )


def _chosen(
    seen: Snapshot, wanted: Wanted, pool: Pool, team: Team
) -> tuple[Plan | None, datetime | None, Refusal | None]:
    """The plan and until when it has to be approved (None: it has not), or what a booking is told."""
    try:
        plan = plans.choose(seen, wanted)[0]
        spending.check(pool, team.pk, plan.picks, wanted.period, told=seen.standing)
        milli = plans.charged(plan)
        if not thresholds.needs(pool, milli):
            return plan, None, None
        by = thresholds.approve_by(pool, milli, wanted.period, team_id=team.pk, now=seen.now)
        return plan, by, None
    except NoRoom:
        return None, None, rooms.refusal(seen, wanted, pool, team_id=team.pk)
    except Refusal as refusal:
        return None, None, refusal


def _reclaims_at(refusal: Refusal | None) -> datetime | None:
    """When it starts nevertheless, because its team takes back what it lent."""
    found = refusal.data.get("reclaim") if refusal else None
    return datetime.fromisoformat(found["start"]) if found else None


def _reclaiming(start: datetime, refusal: Refusal) -> tuple[str, ...]:
    bookings = refusal.data["reclaim"]["bookings"]
    taken = ngettext(
        "%(n)s booking that borrows from your team has to leave first.",
        "%(n)s bookings that borrow from your team have to leave first.",
        bookings,
    ) % {"n": bookings}
    later = _("Booked, it starts %(start)s and lasts as long as you ask.") % {"start": written(start)}
    return taken, later


def _verdict(
    seen: Snapshot, wanted: Wanted, refusal: Refusal | None, reclaims_at: datetime | None
) -> tuple[str, str, tuple[str, ...]]:
    if refusal is not None and reclaims_at is not None:
        return "warn", _("Your team takes back what it lent"), _reclaiming(reclaims_at, refusal)
    if refusal is not None:
        shown = problem(refusal)
        return "bad", shown.title, (shown.detail, shown.next_step)
    short = placement.shortfall(
        seen.fleet, wanted.ask, wanted.blocked, account=wanted.account, now=seen.now, without=seen.without
    )
    free = ngettext(
        "%(free)s of %(offered)s is free for the whole time.",
        "%(free)s of %(offered)s are free for the whole time.",
        short.free,
    ) % {"free": short.free, "offered": short.offered}
    return "good", _("This fits"), (free,)


def _each(pick: Pick, seen: Snapshot) -> str:
    """`1g.10gb on H100-80GB: 1/8 of the memory, 9.8 GiB, 16 SMs`."""
    if pick.portion is not None:
        return _share_words(pick, pick.portion, seen)
    if pick.profile is None:
        return _("whole %(model)s") % {"model": pick.model}
    facts = [gib(pick.profile.memory_mib)] if pick.profile.memory_mib else [_("memory not measured")]
    if pick.profile.sm:
        facts.append(_("%(n)s SMs") % {"n": pick.profile.sm})
    return _("%(profile)s on %(model)s: %(facts)s") % {
        "profile": pick.profile.name,
        "model": pick.model,
        "facts": ", ".join(facts),
    }


def _share_words(pick: Pick, portion: Portion, seen: Snapshot) -> str:
    """`8 GiB and 10 % of the compute of H100-80GB; MPS: the driver keeps the limits`."""
    gpu = next(gpu for gpu in seen.gpus if gpu.id == pick.gpu_id)
    name, note = words.SHARINGS[gpu.sharing] if gpu.sharing else ("", "")
    least, most = portion.compute_pct, portion.limit_pct
    return _("%(memory)s and %(compute)s of the compute of %(model)s; %(name)s: %(note)s") % {
        "memory": gib(portion.memory_mib),
        "compute": f"{least} %" if least == most else f"{least}–{most} %",
        "model": pick.model,
        "name": name,
        "note": note,
    }


def _ledgers(seen: Snapshot, picks: Sequence[Pick], period: Period) -> tuple[Ledger, ...]:
    """Memory and compute of the first GPU with what would be ours, among what others hold."""
    gpu = next((gpu for gpu in seen.gpus if gpu.id == picks[0].gpu_id), None)
    ours = [pick.portion for pick in picks if pick.portion and pick.gpu_id == picks[0].gpu_id]
    if gpu is None or not ours:
        return ()
    there = [(busy.period, busy.portion) for busy in gpu.busy if busy.portion]
    memory, compute = sum(one.memory_mib for one in ours), sum(one.compute_pct for one in ours)
    used, whole = shares.peaks(there, period), gpu.ledgers
    return (
        _ledger(_("Memory"), memory, used.memory_mib, whole.memory_mib, gib),
        _ledger(_("Compute"), compute, used.compute_pct, whole.compute_pct, lambda pct: f"{pct} %"),
    )


def _ledger(name: str, ours: int, others: int, whole: int, written: Callable[[int], str]) -> Ledger:
    parts = [("held", others), ("used", ours)]
    return Ledger(name, written(ours), written(others), written(whole), svg.bar(whole, parts))


def _picture(seen: Snapshot, picks: Sequence[Pick]) -> svg.Drawing | None:
    """The first GPU's grid with what would be ours, among what is there at that time."""
    gpu = next((gpu for gpu in seen.gpus if gpu.id == picks[0].gpu_id), None)
    if gpu is None or picks[0].profile is None:
        return None
    there = [svg.Mark(b.start, b.size, *_tone(b.tenancy)) for b in gpu.busy]
    ours = [
        svg.Mark(p.start, p.size, "mine", p.profile.name) for p in picks if p.gpu_id == gpu.id and p.profile
    ]
    name = f"{gpu.node} GPU {gpu.index}"
    return svg.drawing("room", name, gpu.grid, [svg.line(name, gpu.model, gpu.grid, there + ours)])


def _tone(tenancy: str) -> tuple[str, str]:
    return ("blocked", _("blocked")) if tenancy == snapshot.BLOCKER else ("busy", _("busy"))
