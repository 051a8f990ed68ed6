"""Writes of quota lines: how much of a pool a team may hold at once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pool.core import mig
from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.models import Gpu, Pool, QuotaLine, Team
from pool.queries import access
from pool.services import events, locks

if TYPE_CHECKING:
    from pool.models import User

#: A million GPUs; the columns hold no more than twice that.
MOST_MILLI = 1_000_000_000


@locks.use_case
def set_line(
    *,
    actor: User | None,
    team: Team,
    pool: Pool,
    model: str = "",
    guaranteed_milli: int,
    cap_milli: int,
    version: int | None = None,
    now: datetime,
) -> QuotaLine:
    """Make or change the line of (team, pool, GPU model; "" any), in thousandths of a GPU.

    Bookings that were granted stay, also above a lowered cap. Refuses with
    FORBIDDEN, INVALID (negative, too large, guaranteed above the cap, a model
    that neither the catalogue nor the pool knows), STALE.
    """
    access.require(actor, Action.SET_QUOTA)
    _check(pool, model, guaranteed_milli, cap_milli)
    locked = locks.pool(pool.pk)
    line = QuotaLine.objects.filter(team=team, pool=pool, model=model).first()
    known = 0 if line is None else line.version
    if version is not None and version != known:
        raise Refusal(Code.STALE, version=known, known=version)
    before = None if line is None else _facts(line)
    if line is None:
        line = QuotaLine(team=team, pool=pool, model=model, version=0)
    line.guaranteed_milli, line.cap_milli = guaranteed_milli, cap_milli
    line.version += 1
    line.save()
    locks.changed(locked)
    after = _facts(line)
    events.record(
        "quota.set", actor=actor, now=now, team_id=team.pk, pool_id=pool.pk, before=before, after=after
    )
    return line


def _check(pool: Pool, model: str, guaranteed_milli: int, cap_milli: int) -> None:
    for pointer, amount in (("/guaranteed_milli", guaranteed_milli), ("/cap_milli", cap_milli)):
        if amount < 0:
            raise invalid(pointer, "too_small", min=0)
        if amount > MOST_MILLI:
            raise invalid(pointer, "too_large", max=MOST_MILLI)
    if guaranteed_milli > cap_milli:
        raise invalid("/guaranteed_milli", "too_large", max=cap_milli)
    if model and model not in mig.models() and not _is_there(pool, model):
        raise invalid("/model", "unknown_model")


def _is_there(pool: Pool, model: str) -> bool:
    return "\0" not in model and Gpu.objects.filter(node__pool=pool, model=model).exists()


def _facts(line: QuotaLine) -> dict[str, str | int]:
    return {
        "model": line.model,
        "guaranteed_milli": line.guaranteed_milli,
        "cap_milli": line.cap_milli,
        "version": line.version,
    }
