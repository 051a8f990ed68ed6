"""Every pair of states: which may follow which, and what holds."""

from __future__ import annotations

import pytest

from pool.core.errors import Code, Refusal
from pool.core.states import HOLDING, TERMINAL, TRANSITIONS, Reason, State, move

#: The whole table again, as words: state -> what may follow.
EXPECTED = {
    "held": "pending_approval waiting scheduled starting cancelled expired",
    "pending_approval": "scheduled starting denied cancelled expired",
    "waiting": "held pending_approval scheduled starting cancelled expired",
    "scheduled": "starting waiting cancelled preempted expired failed",
    "starting": "active waiting ending failed",
    "active": "paused ending failed",
    "paused": "starting ending ended preempted failed",
    "ending": "ended cancelled preempted expired failed",
    "ended": "",
    "cancelled": "",
    "denied": "",
    "preempted": "",
    "expired": "",
    "failed": "",
}


@pytest.mark.parametrize("old", State)
@pytest.mark.parametrize("new", State)
def test_a_state_follows_another_only_as_the_table_says(old: State, new: State) -> None:
    if new.value in EXPECTED[old].split():
        move(old, new)
        return
    with pytest.raises(Refusal) as caught:
        move(old, new)
    assert caught.value.code is Code.WRONG_STATE
    assert caught.value.data == {"state": old.value, "wanted": new.value}


def test_the_table_has_every_state_of_the_design() -> None:
    assert set(TRANSITIONS) == set(State) == {State(name) for name in EXPECTED}


def test_every_state_holds_or_is_over_or_waits() -> None:
    assert set(State) - HOLDING - TERMINAL == {State.WAITING}
    assert not HOLDING & TERMINAL
    assert {s.value for s in HOLDING} == {
        "held", "pending_approval", "scheduled", "starting", "active", "paused", "ending",
    }  # fmt: skip


def test_nothing_follows_an_end_and_every_life_can_end() -> None:
    for state in State:
        assert (not TRANSITIONS[state]) == (state in TERMINAL)
        assert state in TERMINAL or TERMINAL & _reachable(state)


def _reachable(state: State) -> set[State]:
    seen, todo = set[State](), [state]
    while todo:
        for new in TRANSITIONS[todo.pop()] - seen:
            seen.add(new)
            todo.append(new)
    return seen


def test_only_what_has_not_begun_goes_back_to_the_wait_list() -> None:
    before = {old for old in State if State.WAITING in TRANSITIONS[old]}
    assert before == {State.HELD, State.SCHEDULED, State.STARTING}


def test_what_holds_a_gpu_leaves_it_through_ending_or_by_losing_it() -> None:
    for state in (State.STARTING, State.ACTIVE):
        assert TRANSITIONS[state] & TERMINAL == {State.FAILED}


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.ENDED] = frozenset({State.ACTIVE})  # type: ignore[index]


def test_reasons_are_stable_words() -> None:
    assert len({r.value for r in Reason}) == len(Reason)
    assert all(r.value == r.name.lower() for r in Reason)
    assert {"booked", "waiting_for_node", "applied", "time_up", "released", "cancelled", "cancelled_by_lead",
            "node_unknown", "driver_refused", "quota_lowered"} <= {r.value for r in Reason}  # fmt: skip
