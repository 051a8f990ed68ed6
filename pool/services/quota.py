"""Writes of quota lines: how much of a pool a team may hold at once, and what stands beside that."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pool.core import mig, quota_tree
from pool.core.errors import Code, FieldError, Invalid, Refusal, invalid
from pool.core.quota_lines import Unit
from pool.core.quota_tree import Excess
from pool.core.roles import Action
from pool.core.standing import Promised
from pool.models import Gpu, Pool, QuotaLine, Team
from pool.queries import access
from pool.queries import quota as queries
from pool.services import events, locks

if TYPE_CHECKING:
    from pool.models import User

#: A million GPUs; the columns hold no more than twice that.
MOST_MILLI = 1_000_000_000
#: GPU-hours and memory: far beyond any pool, far below what the columns hold.
MOST_LARGE = 10**15
#: Minutes: a hundred years.
MOST_MINUTES = 60 * 24 * 36_525
MOST_SMALL = 32_767
#: Kinds of asks that a line may allow.
KINDS = ("mig", "share", "gpu")
#: So many bookings that lie above a lowered limit are named.
NAMED = 50


@dataclass(frozen=True, slots=True)
class Conditions:
    """What stands on a line beside guaranteed and cap; the fields are those of QuotaLine."""

    lend_milli: int | None = None
    unit: str = Unit.SLOTS
    unit_size: int = 1
    weight: int = 1
    memory_mib: int | None = None
    budget_milli_hours: int | None = None
    kinds: tuple[str, ...] = ()
    largest_milli: int | None = None
    most_gpus: int | None = None
    longest_minutes: int | None = None
    ahead_minutes: int | None = None


#: Field -> the least and the most it may be; None is not limited.
_BOUNDS = {
    "guaranteed_milli": (0, MOST_MILLI),
    "cap_milli": (0, MOST_MILLI),
    "unit_size": (1, 1024),
    "weight": (0, MOST_SMALL),
    "memory_mib": (0, MOST_LARGE),
    "budget_milli_hours": (0, MOST_LARGE),
    "largest_milli": (1, MOST_MILLI),
    "most_gpus": (1, MOST_MILLI),
    "longest_minutes": (1, MOST_MINUTES),
    "ahead_minutes": (0, MOST_MINUTES),
}


def conditions(line: QuotaLine) -> Conditions:
    """What stands on the line now."""
    return Conditions(**{one.name: getattr(line, one.name) for one in fields(Conditions)} | _kinds(line))


def _kinds(line: QuotaLine) -> dict[str, Any]:
    return {"kinds": tuple(line.kinds)}


@locks.use_case
def set_line(
    *,
    actor: User | None,
    team: Team,
    pool: Pool,
    model: str = "",
    guaranteed_milli: int,
    cap_milli: int,
    conditions: Conditions | None = None,
    version: int | None = None,
    show_first: bool = False,
    now: datetime,
) -> QuotaLine:
    """Make or change the line of (team, pool, GPU model; "" any), in thousandths of a GPU.

    `conditions` None: those of the line stay, a new one has none. Bookings that were granted stay,
    also above a lowered limit; only what is new is refused. With `show_first` a change that leaves
    some above a limit is refused with the list of them (PROMISED: count, promised), so that it can
    be looked at before. What is guaranteed has to fit: what the teams below a team are guaranteed
    into what that team is, and all of it into the GPUs of the pool (a pool that no GPU has joined
    yet is not looked at); who raises it beyond is refused, who lowers it never is.

    Refuses with FORBIDDEN, INVALID (out of bounds, guaranteed above the cap, lent above the
    guaranteed, an unknown model, more_than_there_is), PROMISED, STALE.
    """
    access.require(actor, Action.SET_QUOTA)
    if model and not is_known(pool, model):
        raise invalid("/model", "unknown_model")
    locked = locks.pool(pool.pk)
    line = queries.line_of(team, pool, model)
    if version is not None and version != line.version:
        raise Refusal(Code.STALE, version=line.version, known=version)
    before = _facts(line) if line.pk else None
    if _put(line, guaranteed_milli, cap_milli, conditions):
        refuse_excess(pool, queries.rules_with(pool, line), now, "/guaranteed_milli")
    if show_first:
        _refuse_promised(pool, line, now)
    _save(line, before, actor, now)
    locks.changed(locked)
    return line


def refuse_excess(pool: Pool, would_be: queries.Rules, now: datetime, pointer: str) -> None:
    """A step, the pool locked: INVALID more_than_there_is where more would be guaranteed than fits.

    What did not fit before, and is made no worse, is no fault of this change.
    """
    if not would_be.capacity:
        return
    found = _excess(would_be, now)
    if found is None:
        return
    was = _excess(queries.rules(pool), now)
    same_place = was is not None and (was.team, was.model) == (found.team, found.model)
    if was is not None and same_place and _over(found) <= _over(was):
        return
    whose = Team.objects.get(pk=found.team).name if found.team is not None else None
    numbers = {
        "guaranteed_gpu": f"{found.guaranteed_milli / 1000:g}",
        "room_gpu": f"{found.room_milli / 1000:g}",
        "at": found.at.isoformat(),
    }
    raise invalid(pointer, "more_than_there_is", **numbers, **({"whose": whose} if whose else {}))


def _excess(those: queries.Rules, now: datetime) -> Excess | None:
    return quota_tree.excess(those.lines, those.grants, those.parents, those.capacity, now=now)


def _over(found: Excess) -> int:
    return found.guaranteed_milli - found.room_milli


def _refuse_promised(pool: Pool, line: QuotaLine, now: datetime) -> None:
    found = queries.promised_above(pool, line, now)
    if found:
        ids = {str(pk) for one in found for pk in one.reservations}
        raise Refusal(Code.PROMISED, count=len(ids), promised=[_promised(one) for one in found[:NAMED]])


def _promised(one: Promised) -> dict[str, Any]:
    return {
        "what": one.what,
        "start": one.period.start.isoformat(),
        "end": one.period.end.isoformat() if one.period.end else None,
        "used": one.used,
        "limit": one.limit,
        "reservations": [str(pk) for pk in one.reservations[:NAMED]],
    }


def _put(line: QuotaLine, guaranteed_milli: int, cap_milli: int, wanted: Conditions | None) -> bool:
    """Write it on the line, if it can stand there; whether more is guaranteed than before."""
    raised = guaranteed_milli > line.guaranteed_milli
    line.guaranteed_milli, line.cap_milli = guaranteed_milli, cap_milli
    for one in fields(Conditions) if wanted is not None else ():
        setattr(line, one.name, getattr(wanted, one.name))
    line.kinds = sorted(set(line.kinds))
    _check(line)
    return raised


def _save(line: QuotaLine, before: dict[str, Any] | None, actor: User | None, now: datetime) -> None:
    line.version += 1
    line.save()
    pool_id, after = line.pool_id, _facts(line)
    events.record(
        "quota.set", actor=actor, now=now, team_id=line.team_id, pool_id=pool_id, before=before, after=after
    )


def _check(line: QuotaLine) -> None:
    """All that is wrong with the line by itself."""
    wrong = [_bounded(name, getattr(line, name)) for name in _BOUNDS]
    if line.guaranteed_milli > line.cap_milli >= 0:
        wrong.append(FieldError("/guaranteed_milli", "too_large", {"max": line.cap_milli}))
    if line.lend_milli is not None and not 0 <= line.lend_milli <= line.guaranteed_milli:
        code, end = ("too_small", {"min": 0}) if line.lend_milli < 0 else ("too_large", None)
        wrong.append(FieldError("/lend_milli", code, end or {"max": line.guaranteed_milli}))
    if line.unit not in QuotaLine.Unit.values:
        wrong.append(FieldError("/unit", "not_a_choice", {"choices": list(QuotaLine.Unit.values)}))
    if set(line.kinds) - set(KINDS):
        wrong.append(FieldError("/kinds", "not_a_choice", {"choices": list(KINDS)}))
    found = [one for one in wrong if one is not None]
    if found:
        raise Invalid(found)


def _bounded(name: str, value: int | None) -> FieldError | None:
    least, most = _BOUNDS[name]
    if value is None or least <= value <= most:
        return None
    code, end = ("too_small", {"min": least}) if value < least else ("too_large", {"max": most})
    return FieldError(f"/{name}", code, end)


def is_known(pool: Pool, model: str) -> bool:
    """Whether the catalogue or the pool knows such a GPU."""
    if model in mig.models():
        return True
    return (
        "\0" not in model and len(model) <= 64 and Gpu.objects.filter(node__pool=pool, model=model).exists()
    )


def _facts(line: QuotaLine) -> dict[str, Any]:
    """What the audit keeps; what is not limited is left out."""
    named = ("model", "guaranteed_milli", "cap_milli", *(one.name for one in fields(Conditions)))
    told = {name: getattr(line, name) for name in named}
    kept = {name: value for name, value in told.items() if value not in (None, [], ())}
    return {**kept, "unit": str(line.unit), "model": line.model, "version": line.version}
