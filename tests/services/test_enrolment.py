"""services.enrolment: one-time codes, a node's secrets, and who may come back under which name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pool.core import wire
from pool.core.errors import Code, Invalid, Refusal
from pool.models import Event, JoinCode, Node, NodeToken, Pool
from pool.queries import clock
from pool.services import broker, inventory, secrets, tokens
from tests.cast import Cast, SimGpu, SimNode, enrol_node


@pytest.fixture
def redis(settings: Any) -> Iterator[Redis]:
    broker.forget()
    with Redis.from_url(settings.REDIS_URL, decode_responses=True) as client:
        yield client
        for user in client.execute_command("ACL", "USERS"):
            if user.startswith("node-"):
                client.execute_command("ACL", "DELUSER", user)


@pytest.fixture
def code(cast: Cast) -> str:
    return inventory.make_join_code(actor=cast.otto, pool="main", name="dgx-01", now=clock.now())


def ask(code: str, **over: Any) -> wire.JoinAsk:
    values: dict[str, Any] = {"code": code, "node": "dgx-01", "machine_id": "machine-1", "agent": "0.1.0"}
    return wire.JoinAsk(**values | over)


def join(code: str, **over: Any) -> wire.JoinAnswer:
    return inventory.enrol(ask=ask(code, **over), now=clock.real_now())


def refusal(code: str, **over: Any) -> Code:
    with pytest.raises(Refusal) as refused:
        join(code, **over)
    return refused.value.code


def test_a_code_becomes_a_token_and_a_redis_user_of_the_nodes_own(
    cast: Cast, code: str, redis: Redis, settings: Any
) -> None:
    answer = join(code)
    node = tokens.authenticate_node(answer.token)
    assert node is not None
    assert (node.name, node.pool.name, node.machine_id) == ("dgx-01", "main", "machine-1")
    assert answer.report_s == settings.REPORT_SECONDS
    assert answer.broker_url is not None
    with Redis.from_url(answer.broker_url) as client:
        assert client.ping()
    event = Event.objects.get(verb="node.joined")
    assert (event.actor_label, event.node_id) == ("node:dgx-01", node.pk)


def test_no_secret_is_kept_that_could_be_shown(cast: Cast, code: str, redis: Redis) -> None:
    answer = join(code)
    rows = [
        *NodeToken.objects.values(),
        *Node.objects.values(),
        *JoinCode.objects.values(),
        *Event.objects.values(),
    ]
    kept = repr(rows)
    assert answer.broker_url is not None
    for secret in (code, answer.token.split("_")[2], answer.broker_url.split(":")[2].split("@")[0]):
        assert secret not in kept


def test_a_code_works_once(code: str, redis: Redis) -> None:
    join(code)
    assert refusal(code) == Code.BAD_TOKEN


def test_a_code_works_only_for_its_name(code: str) -> None:
    assert refusal(code, node="dgx-02") == Code.BAD_TOKEN
    assert refusal("gpj_" + "0" * 40) == Code.BAD_TOKEN
    assert not Node.objects.exists()


def test_a_code_ends_after_a_day(code: str, redis: Redis) -> None:
    later = clock.real_now() + timedelta(hours=24, seconds=1)
    with pytest.raises(Refusal) as refused:
        inventory.enrol(ask=ask(code), now=later)
    assert refused.value.code == Code.BAD_TOKEN
    assert join(code).node == "dgx-01"


def test_a_newer_code_ends_the_one_before(cast: Cast, code: str, redis: Redis) -> None:
    newer = inventory.make_join_code(actor=cast.otto, pool="main", name="dgx-01", now=clock.now())
    assert refusal(code) == Code.BAD_TOKEN
    assert join(newer).node == "dgx-01"


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"node": "dgx:*"}, Code.INVALID),
        ({"node": "-dgx"}, Code.INVALID),
        ({"node": "DGX"}, Code.INVALID),
        ({"node": "dgx-01\n"}, Code.INVALID),
        ({"machine_id": ""}, Code.INVALID),
        ({"machine_id": "x" * 65}, Code.INVALID),
        ({"machine_id": "with space"}, Code.INVALID),
        ({"wire": wire.WIRE + 1}, Code.UNSUPPORTED_WIRE),
        ({"wire": wire.WIRE - 2}, Code.UNSUPPORTED_WIRE),
    ],
)
def test_it_refuses_an_ask_that_makes_no_sense(cast: Cast, over: dict[str, Any], code: Code) -> None:
    assert refusal("gpj_x", **over) == code


@pytest.mark.django_db(transaction=True)
def test_of_two_that_come_with_one_code_one_is_let_in(redis: Redis) -> None:
    Pool.objects.create(name="main")
    code = inventory.make_join_code(actor=None, pool="main", name="dgx-01", now=clock.now())

    def try_it(number: int) -> bool:
        try:
            join(code, machine_id=f"machine-{number}")
        except Refusal:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(try_it, range(4))) == [False, False, False, True]
    assert NodeToken.objects.count() == 1


# --- Coming back ---------------------------------------------------------------------


def again(cast: Cast, **over: Any) -> wire.JoinAnswer:
    code = inventory.make_join_code(
        actor=cast.otto, pool=over.pop("pool", "main"), name="dgx-01", now=clock.now()
    )
    return join(code, **over)


def test_the_same_machine_comes_back_with_new_secrets_and_the_old_ones_end(
    cast: Cast, code: str, redis: Redis
) -> None:
    first = join(code)
    second = again(cast)
    assert tokens.authenticate_node(first.token) is None
    node = tokens.authenticate_node(second.token)
    assert node is not None
    assert Node.objects.count() == 1
    assert first.broker_url is not None
    assert second.broker_url is not None
    with Redis.from_url(second.broker_url) as client:
        assert client.ping()
    assert f"#{node.broker_hash}" in broker._users(redis)["node-dgx-01"]


def test_an_agent_that_joined_anew_is_heard_though_it_has_lost_its_numbers(
    cast: Cast, code: str, redis: Redis
) -> None:
    join(code)
    node = SimNode(Node.objects.get(), [SimGpu("GPU-1", 0, "H100-80GB")], seq=1000)
    node.send()
    again(cast)
    node.seq = 0
    assert node.send().accepted_seq == 1
    assert Node.objects.get().seq == 1


def test_another_machine_is_not_let_in_under_a_name_that_has_gpus(cast: Cast, redis: Redis) -> None:
    node = enrol_node(cast.main, "dgx-01")
    with pytest.raises(Refusal) as refused:
        again(cast)
    assert refused.value.code == Code.TAKEN
    assert Node.objects.get().machine_id == node.row.machine_id
    assert not NodeToken.objects.exists()


def test_another_machine_may_take_the_name_of_a_retired_node(cast: Cast, redis: Redis) -> None:
    enrol_node(cast.main, "dgx-01")
    Node.objects.update(happened_n=1000)
    inventory.retire(actor=cast.otto, target="node", id="dgx-01", now=clock.now())
    again(cast)
    row = Node.objects.get()
    assert (row.machine_id, row.boot_id, row.seq, row.received_at) == ("machine-1", "", 0, None)
    assert row.happened_n == 0


def test_a_retired_nodes_token_and_redis_user_end_and_its_connections_are_cut(
    code: str, cast: Cast, redis: Redis, django_capture_on_commit_callbacks: Any
) -> None:
    answer = join(code)
    assert answer.broker_url is not None
    with Redis.from_url(answer.broker_url, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()
        with django_capture_on_commit_callbacks(execute=True):
            inventory.retire(actor=cast.otto, target="node", id="dgx-01", now=clock.now())
        assert tokens.authenticate_node(answer.token) is None
        assert "node-dgx-01" not in redis.execute_command("ACL", "USERS")
        with pytest.raises(RedisError):
            client.ping()
    assert not NodeToken.objects.filter(revoked_at=None).exists()


def test_a_retired_node_does_not_come_back_by_an_earlier_code(code: str, cast: Cast, redis: Redis) -> None:
    join(code)
    inventory.retire(actor=cast.otto, target="node", id="dgx-01", now=clock.now())
    assert refusal(code) == Code.BAD_TOKEN


def test_a_name_without_gpus_may_move_to_another_pool(cast: Cast, code: str, redis: Redis) -> None:
    join(code)
    Pool.objects.create(name="lab")
    again(cast, pool="lab")
    assert Node.objects.get().pool.name == "lab"


# --- Redis out of reach ------------------------------------------------------------------


def test_without_an_address_for_nodes_commands_travel_by_report(code: str, settings: Any) -> None:
    settings.NODE_BROKER_URL = ""
    assert join(code).broker_url is None
    assert Node.objects.get().broker_hash == ""


def test_without_the_right_to_make_users_commands_travel_by_report(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "acl_set", lambda _node: broker.Acl.REFUSED)
    assert join(code).broker_url is None
    assert Node.objects.get().broker_hash == ""


def test_while_redis_is_away_the_address_is_given_and_the_user_made_later(
    code: str, redis: Redis, settings: Any
) -> None:
    good = settings.REDIS_URL
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = join(code)
    settings.REDIS_URL = good
    assert broker.reapply() == 1
    assert answer.broker_url is not None
    with Redis.from_url(answer.broker_url) as client:
        assert client.ping()


# --- Codes ----------------------------------------------------------------------------------


def test_only_an_operator_makes_codes(cast: Cast) -> None:
    for user in (cast.lena, cast.milo, cast.ada, cast.sam):
        with pytest.raises(Refusal) as refused:
            inventory.make_join_code(actor=user, pool="main", name="dgx-01", now=clock.now())
        assert refused.value.code == Code.FORBIDDEN
    assert inventory.make_join_code(actor=cast.anna, pool="main", name="dgx-01", now=clock.now())


def test_a_code_is_for_a_pool_that_exists_and_a_name_that_fits(cast: Cast) -> None:
    with pytest.raises(Refusal) as refused:
        inventory.make_join_code(actor=cast.otto, pool="other", name="dgx-01", now=clock.now())
    assert refused.value.code == Code.NOT_FOUND
    with pytest.raises(Invalid):
        inventory.make_join_code(actor=cast.otto, pool="main", name="dgx:01", now=clock.now())


def test_a_code_is_kept_as_its_hash(code: str) -> None:
    assert JoinCode.objects.get().code_hash == secrets.plain(code)
