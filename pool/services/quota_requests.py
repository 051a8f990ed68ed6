"""Requests for more quota: submit, comment, withdraw, decide; and what the slow lane does for them.

submitted -> approved | denied | withdrawn; approved -> active when its time begins -> expired when that
is over. What an approver grants may differ from what was asked, and stands (QuotaGrant);
the request keeps what was asked. A booking that outlives a grant stays as it was booked: from the
grant's end on it is above what is guaranteed, so that it may be taken back as anything borrowed
may, and where the cap is reached nothing new is booked until there is room again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.types.range import TimestamptzRange

from pool.core.errors import Code, FieldError, Invalid, Refusal, invalid
from pool.core.period import LONGEST, Period
from pool.core.roles import Action
from pool.models import Pool, QuotaComment, QuotaGrant, QuotaRequest, Team, User
from pool.queries import access
from pool.queries import quota as quota_queries
from pool.queries import quota_requests as queries
from pool.services import events, idempotency, locks, notices, quota
from pool.services.idempotency import Claim

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT_LIMIT = 4000
#: So long before a grant ends its team is told, by the name of the reminder; the latest first.
REMINDERS = {"1d": timedelta(days=1), "7d": timedelta(days=7)}
BATCH = 200

State = QuotaRequest.State


@dataclass(frozen=True, slots=True)
class Amounts:
    """What is asked or granted on top of the team's lines: thousandths of a GPU and of a GPU-hour, MiB."""

    guaranteed_milli: int = 0
    cap_milli: int = 0
    memory_mib: int = 0
    budget_milli_hours: int = 0


@locks.use_case
def submit(
    *,
    actor: User,
    team: Team,
    pool: Pool,
    model: str = "",
    amounts: Amounts,
    valid: Period,
    justification: str,
    renews: QuotaRequest | None = None,
    now: datetime,
    claim: Claim | None = None,
) -> QuotaRequest:
    """Ask for more of a pool for the team, from-until; approvers are told.

    `renews` is what this one prolongs: a granted request of the same team, pool and model. A `claim`
    that was carried out before answers its request again. Refuses with FORBIDDEN, INVALID (nothing
    asked, guaranteed above the cap, an end that has passed, blank or too long a justification, unknown
    model, other_line, not_granted), KEY_REUSED, IN_PROGRESS.
    """
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return QuotaRequest.objects.select_related("team", "pool").get(pk=made)
    access.require(actor, Action.REQUEST_QUOTA, team)
    said = _text(justification, "/justification")
    _check_amounts(amounts, valid, now)
    _check_line(team, pool, model, renews)
    row = QuotaRequest(team=team, pool=pool, model=model, valid=_range(valid), justification=said)
    row.requested_by, row.created_at, row.renews = actor, now, renews
    _put(row, amounts)
    row.save()
    _record(row, "requested", actor, now, None)
    others = [user for user in notices.approvers() if not queries.is_own(user, (actor,))]
    _tell(row, others, "request_submitted", now, by=actor)
    if claim:
        idempotency.keep(claim, resource=row.pk, now=now)
    return row


@locks.use_case
def comment(
    *, actor: User, request_id: int, text: str, now: datetime, claim: Claim | None = None
) -> QuotaComment:
    """Say something about a request; the other side is told.

    A `claim` that was carried out before answers its comment again. Refuses with NOT_FOUND, FORBIDDEN,
    INVALID, KEY_REUSED, IN_PROGRESS.
    """
    row = queries.one(actor, request_id)
    access.require(actor, Action.COMMENT_REQUEST, row.team)
    made = idempotency.claim(claim, now=now) if claim else None
    if made is not None:
        return queries.comments(row).get(pk=made)
    said = QuotaComment.objects.create(request=row, author=actor, at=now, text=_text(text, "/text"))
    spoken = [one.author for one in queries.comments(row)]
    people = {user.pk: user for user in (*_askers(row), *spoken)}
    if all(user.pk == actor.pk or not queries.decides(user) for user in people.values()):
        people |= {user.pk: user for user in notices.approvers()} if row.state == State.SUBMITTED else {}
    people.pop(actor.pk, None)
    _tell(row, list(people.values()), "request_comment", now, by=actor, number=said.pk)
    if claim:
        idempotency.keep(claim, resource=said.pk, now=now)
    return said


@locks.use_case
def withdraw(*, actor: User, request_id: int, version: int | None = None, now: datetime) -> QuotaRequest:
    """Take back what nobody has decided on; who asked, or a lead of the team.

    Refuses with NOT_FOUND, FORBIDDEN, STALE, WRONG_STATE (state, doing).
    """
    seen = queries.one(actor, request_id)
    if seen.requested_by_id != actor.pk or not access.can(actor, Action.COMMENT_REQUEST, seen.team):
        access.require(actor, Action.REQUEST_QUOTA, seen.team)
    locks.pool(seen.pool_id)
    row = queries.one(actor, request_id)
    _at_version(row, version)
    if row.state not in queries.OPEN:
        raise Refusal(Code.WRONG_STATE, state=row.state, doing="withdraw")
    _move(row, State.WITHDRAWN, "withdrawn", actor, now)
    return row


@locks.use_case
def approve(
    *,
    actor: User,
    request_id: int,
    amounts: Amounts | None = None,
    valid: Period | None = None,
    answer: str = "",
    version: int | None = None,
    now: datetime,
) -> QuotaGrant:
    """Grant it: as it was asked, or with other amounts and dates, which then stand.

    Refuses with NOT_FOUND, FORBIDDEN, OWN_REQUEST, INVALID (also more_than_there_is: what would be
    guaranteed does not fit into the teams above or the pool), and STALE: it was changed since `version`,
    or another was first (decided_by, state).
    """
    row, pool = _to_decide(actor, request_id, version)
    amounts = amounts or asked(row)
    valid = valid or Period(row.valid.lower, row.valid.upper)
    _check_amounts(amounts, valid, now)
    grant = QuotaGrant(
        request=row,
        team=row.team,
        pool=row.pool,
        model=row.model,
        guaranteed_milli=amounts.guaranteed_milli,
        cap_milli=amounts.cap_milli,
        memory_mib=amounts.memory_mib,
        budget_milli_hours=amounts.budget_milli_hours,
        valid=_range(valid),
    )
    if amounts.guaranteed_milli:
        would_be = quota_queries.rules_with(row.pool, grant=grant)
        quota.refuse_excess(row.pool, would_be, now, "/guaranteed_milli")
    _decide(row, actor, answer, now)
    _move(row, State.ACTIVE if valid.contains(now) else State.APPROVED, "approved", actor, now, grant)
    grant.save()
    locks.changed(pool)
    _tell(row, _askers(row), "request_approved", now, by=actor, **_told(grant, row))
    return grant


@locks.use_case
def deny(
    *, actor: User, request_id: int, answer: str, version: int | None = None, now: datetime
) -> QuotaRequest:
    """Say no, and why. Refuses as `approve` does; INVALID without an answer."""
    text = _text(answer, "/answer")
    row, _pool = _to_decide(actor, request_id, version)
    _decide(row, actor, text, now)
    _move(row, State.DENIED, "denied", actor, now)
    _tell(row, _askers(row), "request_denied", now, by=actor, answer=text)
    return row


# --- What the lane does -------------------------------------------------------


def go_on(*, now: datetime) -> int:
    """Let grants begin and end, and remind of those that end soon; how many changes were made.

    Running it twice does nothing twice. The states only tell: what a team may hold goes by
    the times of its grants at every instant, whether or not this has run.
    """
    done = 0
    for pool_id in list(Pool.objects.order_by("pk").values_list("pk", flat=True)):
        if queries.to_move_on(pool_id, now).exists():
            done += _move_on(pool_id=pool_id, now=now)
    return done + _remind(now=now)


@locks.use_case
def _move_on(*, pool_id: int, now: datetime) -> int:
    locks.pool(pool_id)
    rows = queries.to_move_on(pool_id, now).select_related("team", "pool", "requested_by", "grant")[:BATCH]
    for row in rows:
        if row.grant.valid.upper <= now:
            _move(row, State.EXPIRED, "expired", None, now)
            _tell(row, _askers(row), "grant_ended", now, **_told(row.grant, row))
        else:
            _move(row, State.ACTIVE, "active", None, now)
            _tell(row, _askers(row), "grant_began", now, **_told(row.grant, row))
    return len(rows)


@locks.use_case
def _remind(*, now: datetime) -> int:
    """A short grant needs none (`to_remind`), nor one whose later reminder is due."""
    told, since = 0, now
    for name, before in REMINDERS.items():
        for row in queries.to_remind(name, before, since, now)[:BATCH]:
            told += _tell(row, _askers(row), "grant_ends", now, key=name, **_told(row.grant, row))
        since = now + before
    return told


def asked(row: QuotaRequest) -> Amounts:
    """What the request asks for."""
    return Amounts(row.guaranteed_milli, row.cap_milli, row.memory_mib or 0, row.budget_milli_hours or 0)


# --- Steps --------------------------------------------------------------------


def _to_decide(actor: User, request_id: int, version: int | None) -> tuple[QuotaRequest, Pool]:
    """The request, its pool locked, for who may decide on it and while nobody has."""
    seen = queries.one(actor, request_id)
    access.require(actor, Action.DECIDE)
    if queries.is_own(actor, (seen.requested_by,)):
        raise Refusal(Code.OWN_REQUEST)
    pool = locks.pool(seen.pool_id)
    row = queries.one(actor, request_id)
    if row.state not in queries.OPEN:
        by = {"decided_by": row.decided_by.get_username()} if row.decided_by else {}
        raise Refusal(Code.STALE, version=row.version, known=version, state=row.state, **by)
    _at_version(row, version)
    return row, pool


def _at_version(row: QuotaRequest, version: int | None) -> None:
    if version is not None and version != row.version:
        raise Refusal(Code.STALE, version=row.version, known=version)


def _decide(row: QuotaRequest, actor: User, answer: str, now: datetime) -> None:
    if len(answer) > TEXT_LIMIT:
        raise invalid("/answer", "too_long", max=TEXT_LIMIT)
    row.decided_by, row.decided_at, row.answer = actor, now, answer.strip()


def _move(
    row: QuotaRequest,
    state: QuotaRequest.State,
    verb: str,
    actor: User | None,
    now: datetime,
    grant: QuotaGrant | None = None,
) -> None:
    before = {"state": str(row.state), "version": row.version}
    row.state, row.version = state, row.version + 1
    row.save(update_fields=["state", "version", "decided_by", "decided_at", "answer"])
    _record(row, verb, actor, now, before, grant)


def _record(
    row: QuotaRequest,
    verb: str,
    actor: User | None,
    now: datetime,
    before: dict[str, Any] | None,
    grant: QuotaGrant | None = None,
) -> None:
    after: dict[str, Any] = {"request": row.pk, "state": str(row.state), "version": row.version}
    events.record(
        f"quota.{verb}",
        actor=actor,
        now=now,
        team_id=row.team_id,
        pool_id=row.pool_id,
        before=before,
        after=after | (_told(grant, row) if grant else {}),
    )


def _tell(row: QuotaRequest, people: Sequence[User], kind: str, now: datetime, **data: Any) -> int:
    by = data.pop("by", None)
    key = f"{kind}:{row.pk}:{data.pop('key', None) or data.pop('number', None) or row.version}"
    told = {"team": row.team.name, "pool": row.pool.name, "model": row.model or None, **data}
    if by is not None:
        told["by"] = by.get_username()
    return notices.tell(people, kind, key=key, now=now, request=row, data=told)


def _askers(row: QuotaRequest) -> list[User]:
    """Who asked, and who leads the team."""
    return [row.requested_by, *notices.leads(row.team)]


def _told(grant: QuotaGrant, row: QuotaRequest) -> dict[str, Any]:
    return {
        "guaranteed_milli": grant.guaranteed_milli,
        "cap_milli": grant.cap_milli,
        "memory_mib": grant.memory_mib,
        "budget_milli_hours": grant.budget_milli_hours,
        "start": grant.valid.lower.isoformat(),
        "end": grant.valid.upper.isoformat(),
    }


def _put(row: QuotaRequest, amounts: Amounts) -> None:
    row.guaranteed_milli, row.cap_milli = amounts.guaranteed_milli, amounts.cap_milli
    row.memory_mib, row.budget_milli_hours = amounts.memory_mib or None, amounts.budget_milli_hours or None


# --- What may be asked --------------------------------------------------------


def _check_line(team: Team, pool: Pool, model: str, renews: QuotaRequest | None) -> None:
    if model and not quota.is_known(pool, model):
        raise invalid("/model", "unknown_model")
    if renews is None:
        return
    if (renews.team_id, renews.pool_id, renews.model) != (team.pk, pool.pk, model):
        raise invalid("/renews", "other_line")
    if renews.state not in queries.GRANTED:
        raise invalid("/renews", "not_granted")


def _check_amounts(amounts: Amounts, valid: Period, now: datetime) -> None:
    bounds = {
        "guaranteed_milli": quota.MOST_MILLI,
        "cap_milli": quota.MOST_MILLI,
        "memory_mib": quota.MOST_LARGE,
        "budget_milli_hours": quota.MOST_LARGE,
    }
    wrong: list[FieldError] = []
    for name, most in bounds.items():
        value = getattr(amounts, name)
        if not 0 <= value <= most:
            code, end = ("too_small", {"min": 0}) if value < 0 else ("too_large", {"max": most})
            wrong.append(FieldError(f"/{name}", code, end))
    if amounts.guaranteed_milli > amounts.cap_milli:
        wrong.append(FieldError("/guaranteed_milli", "too_large", {"max": amounts.cap_milli}))
    if amounts == Amounts():
        wrong.append(FieldError("/cap_milli", "nothing_asked", {}))
    if valid.end is None:
        wrong.append(FieldError("/end", "required", {}))
    elif valid.end <= now:
        times = {"end": valid.end.isoformat(), "now": now.isoformat()}
        wrong.append(FieldError("/end", "end_in_past", times))
    elif valid.end - valid.start > 3 * LONGEST:
        wrong.append(FieldError("/end", "too_far", {"max": (valid.start + 3 * LONGEST).isoformat()}))
    if wrong:
        raise Invalid(wrong)


def _text(text: str, pointer: str) -> str:
    said = text.strip()
    if not said:
        raise invalid(pointer, "blank")
    if len(said) > TEXT_LIMIT:
        raise invalid(pointer, "too_long", max=TEXT_LIMIT)
    return said


def _range(valid: Period) -> Any:
    return TimestamptzRange(valid.start, valid.end)
