"""services.commands: what is wanted of a GPU, when it is commanded, and what a command carries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Command, Gpu, Node, Reservation
from pool.queries import clock
from pool.services import broker, commands, inventory, reservations
from tests.cast import Cast, SimNode, enrol_node

HOUR = timedelta(hours=1)
#: An empty GPU for slices.
EMPTY = commands.builtins(wire.Layout(mig=True))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[wire.Command]:
    """What would have been nudged."""
    found: list[wire.Command] = []
    monkeypatch.setattr(broker, "nudge", lambda messages: found.extend(messages))
    return found


def book(cast: Cast, ask: Any = None, **more: Any) -> Reservation:
    values: dict[str, Any] = {
        "actor": cast.lena,
        "team": "vision",
        "ask": ask or MigAsk(profile="1g.10gb"),
        "duration": HOUR,
        "now": clock.now(),
    }
    return reservations.book(pool="main", **values | more)


def gpu() -> Gpu:
    return Gpu.objects.select_related("node__pool").get()


def test_a_booking_is_commanded_once_with_all_that_the_gpu_shall_hold(cast: Cast, node: SimNode) -> None:
    first = book(cast)
    book(cast, MigAsk(profile="3g.40gb"))
    row = gpu()
    assert row.generation == 3
    layout = msgspec.convert(row.wanted, wire.Layout)
    assert layout.mig
    assert {held.profile for held in layout.held} == {"1g.10gb", "3g.40gb"}
    mine = next(held for held in layout.held if held.profile == "1g.10gb")
    slot = first.allocations.get()
    assert (mine.allocation, mine.start, mine.size, mine.profile_id, mine.phase) == (
        str(slot.pk),
        slot.span.lower,
        1,
        19,
        "run",
    )
    states = Command.objects.order_by("generation").values_list("generation", "state")
    assert list(states) == [(1, "settled"), (2, "superseded"), (3, "open")]


def test_a_whole_gpu_is_wanted_with_mig_off(cast: Cast) -> None:
    enrol_node(cast.main, use="whole")
    book(cast, GpuAsk(models=("H100-80GB",)))
    layout = msgspec.convert(gpu().wanted, wire.Layout)
    (held,) = layout.held
    assert (layout.mig, held.profile, held.profile_id, held.start, held.size) == (False, None, None, 0, 8)


def test_an_empty_gpu_for_slices_is_kept_in_mig_mode(node: SimNode) -> None:
    assert gpu().wanted == EMPTY


def test_what_has_not_begun_is_not_wanted_yet(cast: Cast, node: SimNode) -> None:
    book(cast, start=clock.now() + HOUR)
    assert gpu().generation == 1


def test_what_is_ending_is_not_wanted_any_more(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    assert gpu().wanted == EMPTY
    assert gpu().generation == 3


def test_nothing_new_is_no_command(node: SimNode) -> None:
    assert commands.issue([gpu()], clock.now()) == []
    assert (gpu().generation, Command.objects.count()) == (1, 1)


def test_reissue_commands_the_same_once_more(node: SimNode) -> None:
    (made,) = commands.reissue([gpu()], clock.now())
    assert (made.generation, made.layout) == (2, EMPTY)


def test_the_chain_is_the_same_for_the_same_team_owner_and_ask(cast: Cast, node: SimNode) -> None:
    def chain(**more: Any) -> str:
        return commands.chain(book(cast, **more).allocations.select_related("reservation").get())

    mine = chain()
    assert chain() == mine
    assert chain(ask=MigAsk(profile="2g.20gb")) != mine
    assert chain(actor=cast.milo) != mine
    assert chain(owner="milo") != mine


@pytest.mark.parametrize("target", ["gpu", "node", "pool", "everything"])
def test_nothing_is_commanded_while_frozen_and_all_of_it_afterwards(
    cast: Cast, node: SimNode, target: Any
) -> None:
    booked = book(cast)
    node.follow()
    name = {"gpu": node.gpus[0].uuid, "node": "node-1", "pool": "main", "everything": None}[target]
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=True, now=clock.now())
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    assert gpu().generation == 2
    assert commands.issue([gpu()], clock.now()) == []
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=False, now=clock.now())
    assert (gpu().generation, gpu().wanted) == (3, EMPTY)


def test_a_gpu_that_is_only_observed_is_not_commanded(cast: Cast) -> None:
    enrol_node(cast.main, managed=False)
    assert commands.issue([gpu()], clock.now()) == []
    assert commands.reissue([gpu()], clock.now()) == []


def test_it_is_sent_after_commit_and_only_then(
    cast: Cast, node: SimNode, sent: list[wire.Command], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        book(cast)
        assert sent == []
    (message,) = sent
    row = Command.objects.get(state="open")
    assert message == wire.Command(
        id=str(row.pk),
        node="node-1",
        gpu=node.gpus[0].uuid,
        generation=2,
        layout=msgspec.convert(row.layout, wire.Layout),
    )


def test_what_was_open_during_a_freeze_is_sent_when_it_is_lifted(
    cast: Cast, node: SimNode, sent: list[wire.Command], django_capture_on_commit_callbacks: Any
) -> None:
    book(cast)
    inventory.freeze(actor=cast.otto, target="node", id="node-1", frozen=True, now=clock.now())
    with django_capture_on_commit_callbacks(execute=True):
        inventory.freeze(actor=cast.otto, target="node", id="node-1", frozen=False, now=clock.now())
    assert [message.generation for message in sent] == [2]


def test_settling_closes_what_is_open_and_nothing_else(node: SimNode) -> None:
    (old,) = commands.reissue([gpu()], clock.now())
    (new,) = commands.reissue([gpu()], clock.now())
    commands.settle([old.pk, new.pk], clock.now())
    states = Command.objects.filter(pk__in=[old.pk, new.pk]).order_by("generation")
    assert [row.state for row in states] == ["superseded", "settled"]


def test_a_resend_is_counted(node: SimNode) -> None:
    (made,) = commands.reissue([gpu()], clock.now())
    received = clock.real_now() + timedelta(seconds=2)
    assert commands.resend([made], received) == [made]
    made.refresh_from_db()
    assert (made.attempts, made.sent_at) == (1, received)


def test_a_node_that_is_not_heard_from_gets_its_commands_with_the_answer_to_its_report(
    cast: Cast, node: SimNode, sent: list[wire.Command], django_capture_on_commit_callbacks: Any
) -> None:
    booked = book(cast)
    Node.objects.update(received_at=clock.real_now() - timedelta(minutes=5))
    with django_capture_on_commit_callbacks(execute=True):
        reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    assert sent == []
    (command,) = node.send(received=clock.real_now() + timedelta(seconds=2)).commands
    assert command.layout.held == ()
