"""The life of a reservation: its states, which may follow which, and why.

One table. Services move a reservation only through `move`; whether it holds
its allocations follows from the state and, for windows, from their own ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from pool.core.errors import Code, Refusal


class State(StrEnum):
    """Stable names; they appear in API answers."""

    #: Set aside for five minutes while somebody confirms; counts in quota.
    HELD = "held"
    #: Asked for; somebody has to approve it first.
    PENDING_APPROVAL = "pending_approval"
    #: On the wait list; has no allocation.
    WAITING = "waiting"
    #: Granted, its time has not come.
    SCHEDULED = "scheduled"
    #: Its GPUs are being made ready.
    STARTING = "starting"
    #: In use, as far as the last report tells.
    ACTIVE = "active"
    #: Between two of its windows.
    PAUSED = "paused"
    #: Over; its GPUs are being cleaned.
    ENDING = "ending"
    #: Over and clean.
    ENDED = "ended"
    #: Withdrawn before it began.
    CANCELLED = "cancelled"
    #: An approver said no.
    DENIED = "denied"
    #: Taken back for somebody with a better right; the rest is a new reservation.
    PREEMPTED = "preempted"
    #: Lapsed before it began: a hold, an approval, a wait, or its whole time.
    EXPIRED = "expired"
    #: Its hardware or driver could not serve it.
    FAILED = "failed"


#: States in which a reservation holds its allocations (nobody else can book them).
HOLDING = frozenset(
    {
        State.HELD,
        State.PENDING_APPROVAL,
        State.SCHEDULED,
        State.STARTING,
        State.ACTIVE,
        State.PAUSED,
        State.ENDING,
    }
)

#: States that nothing follows.
TERMINAL = frozenset(
    {State.ENDED, State.CANCELLED, State.DENIED, State.PREEMPTED, State.EXPIRED, State.FAILED}
)


def _to(*states: State) -> frozenset[State]:
    return frozenset(states)


#: What may follow each state. What has touched a GPU leaves through `ending`,
#: because its slices stay blocked until they are seen clean; `failed` may come at
#: once, since lost hardware cannot be cleaned.
TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.HELD: _to(
            State.PENDING_APPROVAL,
            State.WAITING,
            State.SCHEDULED,
            State.STARTING,
            State.CANCELLED,
            State.EXPIRED,
        ),
        State.PENDING_APPROVAL: _to(
            State.SCHEDULED, State.STARTING, State.DENIED, State.CANCELLED, State.EXPIRED
        ),
        State.WAITING: _to(
            State.HELD,
            State.PENDING_APPROVAL,
            State.SCHEDULED,
            State.STARTING,
            State.CANCELLED,
            State.EXPIRED,
        ),
        State.SCHEDULED: _to(
            State.STARTING,
            State.WAITING,
            State.CANCELLED,
            State.PREEMPTED,
            State.EXPIRED,
            State.FAILED,
        ),
        State.STARTING: _to(State.ACTIVE, State.WAITING, State.ENDING, State.FAILED),
        State.ACTIVE: _to(State.PAUSED, State.ENDING, State.FAILED),
        State.PAUSED: _to(State.STARTING, State.ENDING, State.ENDED, State.PREEMPTED, State.FAILED),
        State.ENDING: _to(State.ENDED, State.CANCELLED, State.PREEMPTED, State.EXPIRED, State.FAILED),
        **{state: frozenset[State]() for state in TERMINAL},
    }
)


def move(old: State, new: State) -> None:
    """Refuses with `WRONG_STATE` (state, wanted) when `new` may not follow `old`."""
    if new not in TRANSITIONS[old]:
        raise Refusal(Code.WRONG_STATE, state=old.value, wanted=new.value)


class Reason(StrEnum):
    """Why a reservation is in its state; stable, the sentence is made by the portal."""

    #: scheduled, starting: granted as asked.
    BOOKED = "booked"
    #: scheduled, starting: an approver said yes; denied: no.
    APPROVED = "approved"
    DENIED = "denied"
    #: pending_approval: above what may be booked without asking.
    NEEDS_APPROVAL = "needs_approval"
    #: held: being confirmed.
    OFFERED = "offered"
    #: scheduled, starting: on other GPUs than first granted.
    MOVED = "moved"

    #: starting: the command is on its way to the node.
    WAITING_FOR_NODE = "waiting_for_node"
    #: starting: the booking before it is still on the GPU.
    WAITING_FOR_CLEANUP = "waiting_for_cleanup"
    #: starting, active: the node has missed three reports.
    NODE_UNKNOWN = "node_unknown"
    #: starting, ending: the driver refused; its own words are with the command.
    DRIVER_REFUSED = "driver_refused"
    #: starting, ending: a process still uses the GPU.
    IN_USE = "in_use"
    #: starting, ending: the GPU needs a reset that cannot be done here.
    RESET_REQUIRED = "reset_required"
    #: starting: something that is no reservation occupies the span.
    BLOCKED = "blocked"
    #: starting, ending: commands are stopped here.
    FROZEN = "frozen"
    #: active: the node has reported it as ready.
    APPLIED = "applied"
    #: active: took over the instance of the booking before it.
    HANDED_OVER = "handed_over"
    #: paused: until its next window.
    BETWEEN_WINDOWS = "between_windows"

    #: ending, ended: its time is over.
    TIME_UP = "time_up"
    #: ending, ended: given back by its owner or by a lead.
    RELEASED = "released"
    RELEASED_BY_LEAD = "released_by_lead"
    #: ending, cancelled: ended by an operator or an admin.
    STOPPED_BY_OPERATOR = "stopped_by_operator"
    #: cancelled: withdrawn by its owner or by a lead.
    CANCELLED = "cancelled"
    CANCELLED_BY_LEAD = "cancelled_by_lead"

    #: waiting: nothing is free for it; scheduled elsewhere when its node went unknown.
    NO_CAPACITY = "no_capacity"
    NO_QUOTA = "no_quota"
    #: waiting: it could only borrow, and what others have is not lent.
    NOT_LENT = "not_lent"
    #: waiting: a team waits for what it is guaranteed, so nobody borrows meanwhile.
    BORROWING_STOPPED = "borrowing_stopped"
    #: waiting: it would fit, but would delay the one before it.
    NOT_ITS_TURN = "not_its_turn"
    #: waiting: the earliest time that its owner named has not come.
    NOT_YET = "not_yet"
    #: waiting: it was offered, and nobody accepted in time.
    OFFER_LAPSED = "offer_lapsed"
    #: ending, preempted: its borrowed capacity was wanted back.
    RECLAIMED = "reclaimed"
    #: scheduled: what it is guaranteed was lent, and is being taken back for it.
    RECLAIMING = "reclaiming"
    #: ending, preempted, waiting: the quota under it was lowered.
    QUOTA_LOWERED = "quota_lowered"

    #: expired: the hold, the request or the wait lapsed.
    HOLD_LAPSED = "hold_lapsed"
    APPROVAL_LAPSED = "approval_lapsed"
    WAIT_LAPSED = "wait_lapsed"
    #: expired, ended: its whole time went by before it could start.
    NEVER_STARTED = "never_started"
    #: ending: nobody checked in.
    NO_SHOW = "no_show"

    #: starting, active, failed, waiting: the GPU or its node is gone.
    GPU_LOST = "gpu_lost"
    NODE_LOST = "node_lost"
    RETIRED = "retired"
