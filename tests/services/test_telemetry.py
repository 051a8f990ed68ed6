"""services.telemetry: which reports count, how fresh a node is, and what the answer says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk
from pool.models import Event, GpuState, Node, Pool
from pool.queries import clock
from pool.services import broker, inventory, reservations, telemetry
from tests.cast import Cast, SimNode, enrol_node

SECOND = timedelta(seconds=1)


def book(cast: Cast, profile: str = "1g.10gb", count: int = 1) -> Any:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile=profile, count=count),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


# --- Which reports count -------------------------------------------------------


def test_it_writes_what_it_heard_and_when(node: SimNode) -> None:
    received = clock.real_now()
    sampled = received - timedelta(seconds=4)
    answer = node.send(node.report(sampled_at=sampled), received=received)
    row = Node.objects.get(pk=node.row.pk)
    assert answer.accepted_seq == row.seq == node.seq
    assert (row.received_at, row.skew_ms, row.driver, row.broker_ok) == (received, -4000, "580.65.06", True)
    state = GpuState.objects.get(gpu__node=row)
    assert state.readings["power_w"] == {"min": 90, "mean": 100.5, "max": 110, "last": 101, "source": "nvml"}
    assert (state.sampled_at, state.received_at) == (sampled, received)


def test_a_report_in_the_name_of_another_node_is_refused_whole(node: SimNode) -> None:
    before = GpuState.objects.values().get()
    with pytest.raises(Refusal) as refused:
        node.send(node.report(node="node-2", gpus=()))
    assert refused.value.code == Code.WRONG_NODE
    assert GpuState.objects.values().get() == before


def test_a_report_of_another_machine_is_refused_whole(node: SimNode) -> None:
    with pytest.raises(Refusal) as refused:
        node.send(node.report(machine_id="machine-that-was-copied"))
    assert refused.value.code == Code.WRONG_NODE


def test_an_older_report_never_overwrites_a_newer(node: SimNode) -> None:
    older = node.report()
    newer = node.report(gpus=(node.gpus[0].report(power_w=wire.Window(min=1, mean=2, max=3, last=3)),))
    node.send(newer)
    answer = node.send(older)
    assert answer.accepted_seq == newer.seq
    assert GpuState.objects.get().readings["power_w"]["mean"] == 2
    assert Node.objects.get().seq == newer.seq


def test_the_same_report_once_more_changes_nothing(node: SimNode) -> None:
    report = node.report()
    node.send(report)
    before = Node.objects.values().get()
    assert node.send(report).accepted_seq == report.seq
    assert Node.objects.values().get() == before


def test_a_new_boot_starts_its_numbers_anew(node: SimNode) -> None:
    for _ in range(3):
        node.send()
    node.reboot()
    answer = node.send()
    assert (answer.accepted_seq, Node.objects.get().boot_id) == (1, node.boot_id)


def test_a_late_report_of_the_boot_before_is_not_taken(node: SimNode) -> None:
    late = node.report()
    node.reboot()
    node.send()
    answer = node.send(late)
    assert answer.accepted_seq == 1
    assert Node.objects.get().boot_id == node.boot_id


def test_a_node_whose_clock_fell_back_at_boot_is_heard_after_a_silence(node: SimNode) -> None:
    node.reboot()
    wrong = node.report(sampled_at=clock.real_now() - timedelta(days=400))
    node.send(wrong, received=clock.real_now() + 21 * SECOND)
    assert Node.objects.get().boot_id == node.boot_id


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"seq": -1}, Code.MALFORMED),
        ({"seq": 2**63}, Code.MALFORMED),
        ({"boot_id": ""}, Code.MALFORMED),
        ({"boot_id": "a\0b"}, Code.MALFORMED),
        ({"boot_id": "b" * 65}, Code.MALFORMED),
        ({"wire": wire.WIRE + 1}, Code.UNSUPPORTED_WIRE),
    ],
)
def test_it_refuses_a_head_that_makes_no_sense(node: SimNode, over: dict[str, Any], code: Code) -> None:
    seq = Node.objects.get().seq
    with pytest.raises(Refusal) as refused:
        node.send(node.report(**over))
    assert refused.value.code == code
    assert Node.objects.get().seq == seq


def test_it_refuses_a_time_without_offset(node: SimNode) -> None:
    with pytest.raises(Refusal) as refused:
        node.send(node.report(sampled_at=clock.real_now().replace(tzinfo=None)))
    assert refused.value.code == Code.NAIVE_TIME


def test_an_agent_that_is_too_old_is_shown_and_sent_nothing(
    cast: Cast, node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(cast)
    monkeypatch.setattr(wire, "ACCEPTED", (1, 2))
    before = Node.objects.get()
    answer = node.send(node.report(wire=0, agent="0.0.9"), received=clock.real_now() + 5 * SECOND)
    assert (answer.commands, answer.manage) == ((), ())
    after = Node.objects.get()
    assert (after.agent, after.wire) == ("0.0.9", 0)
    assert (after.seq, after.received_at) == (before.seq, before.received_at)


def test_the_version_before_is_still_understood(node: SimNode) -> None:
    assert node.send(node.report(wire=wire.WIRE - 1)).manage == (node.gpus[0].uuid,)


def test_a_field_that_is_not_known_yet_is_ignored(node: SimNode) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(node.report()))
    report = msgspec.convert(raw | {"mood": "good"}, wire.Report)
    assert node.send(report).accepted_seq == node.seq


@pytest.mark.django_db(transaction=True)
def test_of_two_reports_at_once_the_newer_stays(cast: Cast) -> None:
    node = enrol_node(cast.main)
    reports = [node.report(agent=f"0.1.{n}") for n in range(8)]

    def send(report: wire.Report) -> int:
        try:
            return node.send(report).accepted_seq
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(send, reversed(reports)))
    row = Node.objects.get()
    assert (row.seq, row.agent) == (reports[-1].seq, "0.1.7")
    assert max(accepted) == row.seq


# --- What it costs --------------------------------------------------------------


def test_an_ordinary_report_takes_no_lock_of_the_pool_and_few_statements(cast: Cast) -> None:
    node = enrol_node(cast.main, count=8)
    node.send()
    change = Pool.objects.get().change
    with CaptureQueriesContext(
        connection,
    ) as queries:
        node.send()
    statements = [query["sql"] for query in queries]
    assert not [sql for sql in statements if "FOR NO KEY UPDATE" in sql and '"pool_pool"."id" = ' in sql]
    assert len([sql for sql in statements if "SAVEPOINT" not in sql]) <= 10
    assert Pool.objects.get().change == change


def test_a_report_that_changes_what_can_be_given_draws_a_change_number(node: SimNode) -> None:
    change = Pool.objects.get().change
    node.gpus[0].lost = True
    node.send()
    assert Pool.objects.get().change == change + 1
    node.send()
    assert Pool.objects.get().change == change + 1


# --- How fresh it is -------------------------------------------------------------


def test_three_missed_reports_make_a_node_unknown_and_two_good_ones_bring_it_back(node: SimNode) -> None:
    heard = Node.objects.get().received_at
    assert heard is not None
    later = heard + 46 * SECOND
    assert telemetry.mark_silent(pool_id=node.row.pool_id, received=heard + 44 * SECOND) == 0
    assert telemetry.mark_silent(pool_id=node.row.pool_id, received=later) == 1
    assert Node.objects.get().unknown_since == heard
    node.send(received=later + SECOND)
    assert Node.objects.get().unknown_since == heard
    node.send(received=later + 2 * SECOND)
    assert Node.objects.get().unknown_since is None


def test_marking_silent_nodes_is_a_change_of_the_pool_only_once(node: SimNode) -> None:
    later = clock.real_now() + 60 * SECOND
    change = Pool.objects.get().change
    telemetry.mark_silent(pool_id=node.row.pool_id, received=later)
    telemetry.mark_silent(pool_id=node.row.pool_id, received=later)
    assert Pool.objects.get().change == change + 1


def test_a_gap_that_no_lane_has_seen_makes_it_unknown_all_the_same(node: SimNode) -> None:
    later = clock.real_now() + 60 * SECOND
    node.send(received=later)
    assert Node.objects.get().unknown_since is not None
    node.send(received=later + SECOND)
    assert Node.objects.get().unknown_since is None


def test_a_good_report_before_a_new_silence_does_not_count(node: SimNode) -> None:
    later = clock.real_now() + 60 * SECOND
    node.send(received=later)
    node.send(received=later + 60 * SECOND)
    assert Node.objects.get().unknown_since is not None


def test_a_node_that_was_never_heard_is_not_marked(cast: Cast) -> None:
    Node.objects.create(pool=cast.main, name="new", machine_id="machine-new")
    tomorrow = clock.real_now() + timedelta(days=1)
    assert telemetry.mark_silent(pool_id=cast.main.pk, received=tomorrow) == 0


def test_nodes_that_fell_silent_together_are_marked_in_one_statement(cast: Cast) -> None:
    for name in ("node-1", "node-2", "node-3"):
        enrol_node(cast.main, name, managed=False)
    later = clock.real_now() + 60 * SECOND
    with CaptureQueriesContext(connection) as made:
        assert telemetry.mark_silent(pool_id=cast.main.pk, received=later) == 3
    assert sum(one["sql"].startswith('UPDATE "pool_node"') for one in made) == 1


# --- The answer --------------------------------------------------------------------


def test_the_answer_names_what_may_be_managed(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2)
    first, second = (gpu.uuid for gpu in node.gpus)
    assert node.send().manage == tuple(sorted((first, second)))
    inventory.set_managed(actor=cast.otto, gpus=[first], managed=False, now=clock.now())
    assert node.send().manage == (second,)
    inventory.freeze(actor=cast.otto, target="gpu", id=second, frozen=True, now=clock.now())
    assert node.send().manage == ()


@pytest.mark.parametrize(("target", "name"), [("node", "node-1"), ("pool", "main"), ("everything", None)])
def test_a_frozen_node_is_told_so_and_sent_nothing(cast: Cast, node: SimNode, target: Any, name: Any) -> None:
    book(cast)
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=True, now=clock.now())
    later = clock.real_now() + 2 * SECOND
    answer = node.send(received=later)
    assert (answer.frozen, answer.commands) == (True, ())
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=False, now=clock.now())
    answer = node.send(received=later + SECOND)
    assert (answer.frozen, len(answer.commands)) == (False, 1)


def test_an_open_command_travels_in_the_answer_only_after_a_second(cast: Cast, node: SimNode) -> None:
    book(cast)
    assert node.send().commands == ()
    (command,) = node.send(received=clock.real_now() + 1.1 * SECOND).commands
    assert (command.gpu, command.generation) == (node.gpus[0].uuid, 2)
    assert [held.profile for held in command.layout.held] == ["1g.10gb"]


def test_only_the_newest_generation_of_a_gpu_travels(cast: Cast, node: SimNode) -> None:
    book(cast)
    book(cast)
    (command,) = node.send(received=clock.real_now() + 2 * SECOND).commands
    assert (command.generation, len(command.layout.held)) == (3, 2)


def test_a_report_answers_all_the_same_when_it_came_too_late(cast: Cast, node: SimNode) -> None:
    old = node.report()
    node.send()
    book(cast)
    assert len(node.send(old, received=clock.real_now() + 2 * SECOND).commands) == 1


def test_it_asks_for_reports_sooner_while_redis_is_out_of_reach(
    node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node.objects.update(broker_hash="0" * 64)
    assert node.send().next_report_s == 15
    node.broker = False
    assert node.send().next_report_s == 3
    node.broker = True
    monkeypatch.setattr(broker, "reachable", lambda: False)
    assert node.send().next_report_s == 3


def test_a_node_without_redis_is_asked_sooner_while_something_is_open(cast: Cast, node: SimNode) -> None:
    assert node.send().next_report_s == 15
    book(cast)
    assert node.send().next_report_s == 3
    node.follow()
    assert node.send().next_report_s == 15


def test_a_freeze_on_the_node_itself_is_kept_and_lifting_it_commands_what_was_held_back(
    cast: Cast, node: SimNode
) -> None:
    node.send(node.report(frozen=True))
    assert Node.objects.get().agent_frozen
    with pytest.raises(Refusal) as book_refused:
        book(cast)
    assert book_refused.value.code == Code.NO_CAPACITY
    node.send(node.report(frozen=False))
    assert not Node.objects.get().agent_frozen
    verbs = Event.objects.filter(node_id=node.row.pk).values_list("verb", flat=True)
    assert list(verbs)[-2:] == ["node.agent_frozen", "node.agent_thawed"]
