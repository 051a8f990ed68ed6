"""services.policy: what may be set of a pool, by whom, and who hears of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Invalid, Refusal
from pool.core.shapes import ShareAsk
from pool.models import Event, Pool
from pool.queries import clock
from pool.services import inventory, policy, reservations
from tests.cast import Cast, SimNode


def change(actor: Any, **values: Any) -> Pool:
    return policy.set_policy(actor=actor, pool="main", now=clock.now(), **values)


def test_it_changes_what_is_given_and_nothing_else(cast: Cast) -> None:
    row = change(cast.anna, may_kill=True, grace_seconds=30, foreign="look")
    assert (row.may_kill, row.grace_seconds, row.foreign, row.over_memory) == (True, 30, "look", "warn")
    assert Pool.objects.get().version == cast.main.version + 1
    event = Event.objects.get(verb="pool.policy_set")
    assert event.before == {"may_kill": False, "grace_seconds": 60, "foreign": "line"}
    assert event.after == {"pool": "main", "may_kill": True, "grace_seconds": 30, "foreign": "look"}


def test_nothing_new_is_no_change(cast: Cast) -> None:
    before = Pool.objects.values().get()
    change(cast.anna, may_kill=False)
    assert Pool.objects.values().get() == before
    assert not Event.objects.filter(verb="pool.policy_set").exists()


def test_agents_hear_of_it_with_their_next_report(cast: Cast, node: SimNode) -> None:
    assert not node.send().policy.kill
    change(None, may_kill=True)
    assert node.send().policy.kill


def test_several_users_of_one_mps_server_are_a_change_of_the_gpus(cast: Cast, node: SimNode) -> None:
    node.send(node.report(sharing=("mps",)))
    inventory.set_use(actor=cast.otto, gpus=[node.gpus[0].uuid], use="share", sharing="mps", now=clock.now())
    generation = node.rows()[0].generation
    change(cast.anna, mps_multi_user=True)
    row = node.rows()[0]
    assert (row.generation, row.wanted["multi_user"]) == (generation + 1, True)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"may_kill": 1}, "not_a_boolean"),
        ({"grace_seconds": -1}, "not_an_integer"),
        ({"grace_seconds": True}, "not_an_integer"),
        ({"most_shares": 0}, "not_an_integer"),
        ({"foreign": "shoot"}, "not_a_choice"),
        ({"name": "other"}, "unknown_field"),
    ],
)
def test_what_makes_no_sense_is_refused(cast: Cast, values: dict[str, Any], code: str) -> None:
    before = Pool.objects.values().get()
    with pytest.raises(Invalid) as refused:
        change(cast.anna, may_kill=True, **values) if "may_kill" not in values else change(
            cast.anna, **values
        )
    assert [error["code"] for error in refused.value.data["errors"]] == [code]
    assert Pool.objects.values().get() == before


def test_several_users_are_not_forbidden_while_somebody_counts_on_it(cast: Cast, node: SimNode) -> None:
    change(cast.otto, mps_multi_user=True)
    node.send(node.report(sharing=("mps",)))
    inventory.set_use(actor=cast.otto, gpus=[node.gpus[0].uuid], use="share", sharing="mps", now=clock.now())
    row = reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=ShareAsk(memory_mib=4096, guaranteed=20, limit=20),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    with pytest.raises(Refusal) as refused:
        change(cast.otto, mps_multi_user=False)
    assert (refused.value.code, refused.value.data["reservations"]) == (Code.WRONG_STATE, [str(row.pk)])


def test_it_is_an_operators(cast: Cast) -> None:
    for actor in (cast.lena, cast.ada):
        with pytest.raises(Refusal) as refused:
            change(actor, may_kill=True)
        assert refused.value.code == Code.FORBIDDEN


def test_a_pool_that_is_not_there_is_not_found(cast: Cast) -> None:
    with pytest.raises(Refusal) as refused:
        policy.set_policy(actor=cast.anna, pool="none", now=clock.now(), may_kill=True)
    assert refused.value.code == Code.NOT_FOUND
