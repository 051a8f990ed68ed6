"""Why a reservation is as it is: which rule decided it, with which numbers, and the rows behind it.

Decided anew on what there is now (lineup), or read from what was decided; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pool.core import standing as stands
from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.serving import serving
from pool.core.states import Reason, State
from pool.models import Reservation
from pool.queries import explanations as queries
from pool.queries import fleets, snapshot, standing, teams, waiting
from pool.queries.explanations import Rows
from pool.services import lineup, payable, plans, wishes
from pool.services.lineup import Place
from pool.services.plans import NoRoom

if TYPE_CHECKING:
    from pool.models import User

_INSTANT = timedelta(microseconds=1)
#: Words of the line (waitline.Left) that say that somebody else comes first.
_BEHIND = frozenset({"behind", "strict"})
#: Of these it is told whether they may be taken back; of what ends or is over, what happened.
_GRANTED = frozenset({State.HELD, State.SCHEDULED, State.STARTING, State.ACTIVE, State.PAUSED})


class Rule(StrEnum):
    """What decided; stable names, they appear in API answers."""

    #: It has the next turn.
    NEXT = "next"
    #: Its earliest start has not come.
    WINDOW = "window"
    #: It would delay one before it.
    TURN = "turn"
    #: A line of its team, or of a team above, is full, or does not allow it.
    QUOTA = "quota"
    #: It would have to borrow, and nothing is lent to it.
    LENDING = "lending"
    #: No GPU has room for it.
    ROOM = "room"
    #: It is offered and waits for its owner's word.
    OFFER = "offer"
    #: It waits for an approver.
    APPROVAL = "approval"
    #: What it has borrowed is, or was, taken back.
    RECALL = "recall"
    #: It has borrowed capacity that may be taken back.
    BORROWED = "borrowed"
    #: Granted within what its team is guaranteed.
    GRANTED = "granted"
    #: Something happened to it: its time, its owner, its hardware.
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`since` and `by`: when and by whom it got its state. `numbers` are JSON values of the rule.

    `place` is where it stands in the line, of one that waits.
    """

    state: str
    reason: str
    since: datetime | None
    by: str
    rule: Rule
    numbers: Mapping[str, Any] = field(default_factory=dict)
    rows: Rows = field(default_factory=Rows)
    place: Place | None = None


def explain(*, user: User, row: Reservation, now: datetime) -> Explanation:
    """Of a row that `user` may see (queries.access). Numbers of other teams are counted, never named.

    Who sees it only because it is shown to everyone is not told how the team's quota stands.
    """
    told = _explained(user, row, now)
    return told if getattr(row, "told", False) or told.rule is not Rule.QUOTA else replace(told, numbers={})


def _explained(user: User, row: Reservation, now: datetime) -> Explanation:
    event = queries.decided(row)
    told = Explanation(
        state=row.state,
        reason=row.state_reason,
        since=event.at if event else None,
        by=event.actor_label if event else "",
        rule=Rule.EVENT,
    )
    if row.state == State.WAITING:
        return _waits(told, user, row, now)
    if row.state == State.HELD and row.from_wait:
        until = row.hold_until.isoformat() if row.hold_until else None
        return replace(told, rule=Rule.OFFER, numbers={"hold_until": until})
    if row.state == State.PENDING_APPROVAL:
        until = row.approve_by.isoformat() if row.approve_by else None
        return replace(told, rule=Rule.APPROVAL, numbers={"approve_by": until})
    if row.recall_at is not None or row.state_reason == Reason.RECLAIMED:
        return _recalled(told, user, row)
    if row.state in _GRANTED:
        return _held(told, row, now)
    return told


def _waits(told: Explanation, user: User, row: Reservation, now: datetime) -> Explanation:
    if waiting.window_of(row).start > now:
        earliest = waiting.window_of(row).start.isoformat()
        return replace(told, rule=Rule.WINDOW, numbers={"earliest": earliest})
    line = lineup.decide(row.pool, now, estimates=lineup.ESTIMATED)
    place = lineup.places_of(line).get(row.pk) if line else None
    told = replace(told, place=place)
    if line is None or place is None or place.why == "next":
        return replace(told, rule=Rule.NEXT)
    if place.why in _BEHIND:
        before = {one.id: one.milli for one in line.ordered[: place.position - 1]}
        return replace(told, rule=Rule.TURN, rows=queries.rows(user, before))
    return _cannot(told, user, row, now)


def _cannot(told: Explanation, user: User, row: Reservation, now: datetime) -> Explanation:
    """What keeps it out, whoever else waits."""
    wanted = wishes.again(row, row.pool, waiting.taken(row, now))
    snap = snapshot.take(row.pool_id, wanted.blocked, team_id=row.team_id, now=now, without=row.pk)
    try:
        payable.payable(row.pool, row.team_id, plans.choose(snap, wanted), wanted.period)
    except NoRoom:
        numbers = plans.no_capacity(snap, wanted, None).data
        models = serving(snap.fleet, wanted.ask, now, account=wanted.account)
        there = queries.on(snap.fleet, models, wanted.blocked, but=row.pk)
        return replace(told, rule=Rule.ROOM, numbers=numbers, rows=queries.rows(user, there))
    except Refusal as refusal:
        return _over_quota(told, user, refusal, snap, now)
    return replace(told, rule=Rule.NEXT)


def _over_quota(
    told: Explanation, user: User, refusal: Refusal, snap: snapshot.Snapshot, now: datetime
) -> Explanation:
    numbers = dict(refusal.data)
    team, model = numbers.pop("team", None), numbers.get("model")
    numbers.pop("line", None)
    numbers["team"] = _name(user, team)
    if numbers.get("reason") in ("not_lent", "borrowing_stopped"):
        models = snap.fleet.models if model is None else (model,)
        rows = queries.on(snap.fleet, models, Period(now, now + _INSTANT))
        return replace(told, rule=Rule.LENDING, numbers=numbers, rows=queries.rows(user, rows))
    at = datetime.fromisoformat(numbers["at"]) if numbers.get("at") else now
    rows = queries.counted(snap.standing, team, model, at) if team is not None else {}
    return replace(told, rule=Rule.QUOTA, numbers=numbers, rows=queries.rows(user, rows))


def _name(user: User, team: int | None) -> str | None:
    """The team whose line it is, if `user` may see that team; None: one above."""
    if team is None:
        return None
    return teams.visible_to(user).filter(pk=team).values_list("name", flat=True).first()


def _recalled(told: Explanation, user: User, row: Reservation) -> Explanation:
    """For whom: named where the viewer may see it, else only that it lay within what is guaranteed."""
    numbers = dict(queries.recall(row) or {})
    numbers.setdefault("recall_at", row.recall_at.isoformat() if row.recall_at else None)
    taker = row.recall_for
    rows = queries.rows(user, {taker.pk: taker.charge_milli}) if taker else Rows()
    return replace(told, rule=Rule.RECALL, numbers=numbers, rows=rows)


def _held(told: Explanation, row: Reservation, now: datetime) -> Explanation:
    at = max(now, row.period.lower)
    fleet = fleets.current(row.pool_id)
    where = standing.of(row.pool_id, fleet, Period(at, at + _INSTANT))
    milli = stands.borrowed_now(where, at).get(row.pk, 0)
    numbers = {"charge_milli": row.charge_milli, "borrowed_milli": milli, "preemptible": row.preemptible}
    return replace(told, rule=Rule.BORROWED if milli else Rule.GRANTED, numbers=numbers)
