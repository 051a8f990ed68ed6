"""Faults of GPUs: what opens them, what they keep away, and how a GPU comes back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Blocker, Event, Fault, Gpu, Node, Outage, Pool, Reservation
from pool.queries import clock
from pool.services import health, reservations
from tests.cast import Cast, SimNode, enrol_node
from tests.scene import refused

PENDING = wire.Remapped(correctable=0, uncorrectable=1, pending=True, failure=False)
FAILED = wire.Remapped(correctable=0, uncorrectable=9, pending=False, failure=True)
WELL = wire.Remapped(correctable=0, uncorrectable=1, pending=False, failure=False)


def send(node: SimNode, *xids: int, reset: int = 0, **over: Any) -> wire.Answer:
    """A report of its one GPU, with Xids that have just come; `over` replaces fields of the GPU."""
    card = node.gpus[0]
    happened = tuple(
        wire.Happened(
            n=node.seq * 100 + place, kind="xid", at=clock.real_now(), gpu=card.uuid, data={"xid": xid}
        )
        for place, xid in enumerate(xids, 1)
    )
    report = node.report(gpus=(card.report(reset=reset, **over),), happened=happened)
    return node.send(report)


def faults() -> list[tuple[str, int | None, str, int, int]]:
    rows = Fault.objects.filter(cleared_at=None).order_by("pk")
    return list(rows.values_list("kind", "xid", "action", "count", "good"))


def blocked() -> list[tuple[int, int, str]]:
    rows = Blocker.objects.filter(kind="health")
    return [(row.span.lower, row.span.upper, row.detail) for row in rows]


def book(cast: Cast, **more: Any) -> Reservation:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
        **more,
    )


def active(cast: Cast, node: SimNode) -> Reservation:
    booked = book(cast)
    node.follow()
    booked.refresh_from_db()
    assert booked.state == "active"
    return booked


def verbs(booked: Reservation) -> list[str]:
    return list(Event.objects.filter(reservation_id=booked.pk).order_by("pk").values_list("verb", flat=True))


# --- What opens a fault -----------------------------------------------------------


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94, 109])
def test_what_a_program_did_takes_nothing_out_of_use(cast: Cast, node: SimNode, xid: int) -> None:
    send(node, xid)
    assert (faults(), blocked()) == ([], [])
    book(cast)


@pytest.mark.parametrize(
    ("xid", "action"),
    [(48, "reset"), (95, "reset"), (63, "reset"), (79, "lost"), (74, "drain"), (4711, "drain")],
)
def test_a_grave_xid_keeps_new_bookings_off_the_gpu(cast: Cast, node: SimNode, xid: int, action: str) -> None:
    send(node, xid)
    assert faults() == [("xid", xid, action, 1, 0)]
    assert blocked() == [(0, 8, f"Xid {xid}")]
    refused(Code.NO_CAPACITY, lambda: book(cast))
    told = Event.objects.get(verb="gpu.fault")
    assert told.after == {"gpu": node.gpus[0].uuid, "kind": "xid", "xid": xid, "action": action}


@pytest.mark.parametrize(
    ("over", "wanted"),
    [
        ({"remapped": PENDING}, ("remap", None, "reset", 1, 0)),
        ({"remapped": FAILED}, ("remap_failed", None, "drain", 1, 0)),
        ({"lost": True}, ("lost", None, "lost", 1, 0)),
    ],
)
def test_what_its_own_state_tells_is_one_fault_however_often_it_is_told(
    node: SimNode, over: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    for _ in range(3):
        send(node, **over)
    assert faults() == [wanted]
    assert len(blocked()) == 1


def test_an_xid_that_comes_again_is_counted(node: SimNode) -> None:
    send(node, 48)
    send(node, 48, 48)
    send(node, 95)
    assert faults() == [("xid", 48, "reset", 3, 0), ("xid", 95, "reset", 1, 0)]
    assert len(blocked()) == 1


def test_a_healthy_gpu_costs_no_statement_more(node: SimNode) -> None:
    send(node)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        send(node, remapped=WELL)
    assert not [one for one in asked.captured_queries if "pool_outage" in one["sql"]]
    assert not [one for one in asked.captured_queries if 'FROM "pool_fault"' in one["sql"]]


def test_a_lost_gpu_costs_no_writing_once_it_is_known(node: SimNode) -> None:
    send(node, lost=True)
    change = Pool.objects.get().change
    with CaptureQueriesContext(connection) as asked:
        send(node, lost=True)
    assert not [one for one in asked.captured_queries if 'UPDATE "pool_fault"' in one["sql"]]
    assert Pool.objects.get().change == change


# --- Those who are on it ----------------------------------------------------------


def test_who_uses_it_is_told_and_goes_on(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    send(node, 48)
    booked.refresh_from_db()
    assert (booked.state, booked.state_reason) == ("active", "applied")
    assert verbs(booked)[-1] == "reservation.fault"
    told = Event.objects.get(verb="reservation.fault").after
    assert told is not None
    assert (told["xid"], told["action"], told["index"]) == (48, "reset", 0)
    assert not Outage.objects.exists()


@pytest.mark.parametrize("how", [{"lost": True}, {"xid": 79}])
def test_what_is_lost_cannot_be_used_from_then_on(cast: Cast, node: SimNode, how: dict[str, Any]) -> None:
    booked = active(cast, node)
    if "xid" in how:
        send(node, 79)
    else:
        send(node, lost=True)
    outage = Outage.objects.get()
    assert (outage.reservation_id, outage.gpu.uuid) == (booked.pk, node.gpus[0].uuid)
    assert (outage.period.upper, outage.reason) == (None, "gpu_lost")


# --- Reset ------------------------------------------------------------------------


def test_it_is_reset_once_nothing_is_booked_on_it(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    send(node, 48)
    send(node)
    assert Gpu.objects.get().reset == 0
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    node.follow()
    node.send()
    gpu = Gpu.objects.get()
    assert (gpu.reset, gpu.wanted["reset"], gpu.wanted["held"]) == (1, 1, [])  # type: ignore[index]
    assert Fault.objects.get().reset == 1
    answer = send(node)
    assert (Gpu.objects.get().reset, faults()[0][4]) == (1, 0)
    assert [one.layout.reset for one in answer.commands] in ([], [1])


def test_an_agent_that_has_counted_further_gets_a_number_that_it_has_not_had(node: SimNode) -> None:
    send(node, 48, reset=5)
    assert (Gpu.objects.get().reset, Fault.objects.get().reset) == (6, 6)
    send(node, reset=5)
    assert faults()[0][4] == 0


def test_of_eight_gpus_only_the_lost_one_is_out_of_use(cast: Cast) -> None:
    node = enrol_node(cast.main, count=8, use="whole")
    node.gpus[3].lost = True
    node.send()
    assert Fault.objects.get().gpu.uuid == node.gpus[3].uuid
    seven = {"team": "vision", "pool": "main", "duration": timedelta(hours=1), "now": clock.now()}
    refused(Code.NO_CAPACITY, lambda: reservations.book(actor=cast.lena, ask=GpuAsk(count=8), **seven))
    booked = reservations.book(actor=cast.lena, ask=GpuAsk(count=7), **seven)
    node.follow()
    booked.refresh_from_db()
    assert booked.state == "active"


def test_only_after_the_reset_its_reports_are_good(cast: Cast, node: SimNode) -> None:
    send(node, 48)
    node.carve()
    send(node, reset=0)
    assert faults()[0][4] == 0
    send(node, reset=1)
    send(node, reset=1)
    assert faults()[0][4] == 2


def test_a_boot_of_the_node_is_a_reset(node: SimNode) -> None:
    Node.objects.update(frozen=True)  # so that none is asked for
    send(node, 48)
    assert (Fault.objects.get().reset, Gpu.objects.get().reset) == (None, 0)
    node.reboot()
    send(node)
    assert Fault.objects.get().reset == 0
    send(node)
    assert faults()[0][4] == 1


def test_what_is_only_observed_is_not_reset(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    send(node, 48)
    send(node)
    assert Gpu.objects.get().reset == 0


# --- Back -------------------------------------------------------------------------


def well(node: SimNode, times: int, **over: Any) -> None:
    for _ in range(times):
        send(node, reset=Gpu.objects.get().reset, **over)


def test_an_operator_gives_it_back_after_good_reports(cast: Cast, node: SimNode) -> None:
    uuid = node.gpus[0].uuid
    send(node, 74)
    well(node, 4)
    told = refused(Code.NOT_HEALTHY, lambda: health.give_back(actor=cast.otto, gpu=uuid, now=clock.now()))
    assert told == {"good": 4, "needed": 5}
    well(node, 3)
    assert faults()[0][4] == 5
    health.give_back(actor=cast.otto, gpu=uuid, now=clock.now())
    assert (faults(), blocked()) == ([], [])
    assert Fault.objects.get().cleared_by == cast.otto
    back = Event.objects.get(verb="gpu.given_back")
    assert (back.actor, back.after["faults"][0]["xid"]) == (cast.otto, 74)  # type: ignore[index]
    book(cast)


def test_only_an_operator_may_and_only_what_is_faulty(cast: Cast, node: SimNode) -> None:
    uuid = node.gpus[0].uuid
    for actor in (cast.lena, cast.sam, cast.ada):
        refused(Code.FORBIDDEN, lambda: health.give_back(actor=actor, gpu=uuid, now=clock.now()))  # noqa: B023
    refused(Code.WRONG_STATE, lambda: health.give_back(actor=cast.otto, gpu=uuid, now=clock.now()))
    refused(Code.NOT_FOUND, lambda: health.give_back(actor=cast.otto, gpu="GPU-none", now=clock.now()))


def test_by_itself_it_comes_back_only_where_the_pool_says_so(cast: Cast, node: SimNode) -> None:
    send(node, 74)
    well(node, 9)
    assert len(faults()) == 1
    Pool.objects.update(auto_return=True)
    well(node, 1)
    assert (faults(), blocked()) == ([], [])
    assert Event.objects.get(verb="gpu.given_back").actor_label == "node:node-1"


@pytest.mark.parametrize(
    "bad", [{"lost": True}, {"remapped": PENDING}, {"memory_total_mib": None}, {"instances": None}]
)
def test_one_bad_report_starts_the_count_anew(node: SimNode, bad: dict[str, Any]) -> None:
    send(node, 74)
    well(node, 4)
    send(node, **bad)
    assert Fault.objects.get(xid=74).good == 0


def test_an_xid_starts_the_count_of_all_anew(node: SimNode) -> None:
    send(node, 74)
    well(node, 4)
    send(node, 999)
    assert [good for *_, good in faults()] == [0, 0]


def test_a_gpu_that_is_found_again_is_not_booked_before_it_is_given_back(cast: Cast, node: SimNode) -> None:
    send(node, lost=True)
    send(node)
    with pytest.raises(Refusal):
        book(cast)
    well(node, 5)
    health.give_back(actor=None, gpu=node.gpus[0].uuid, now=clock.now())
    book(cast)


def test_lost_once_more_it_is_the_same_fault(node: SimNode) -> None:
    send(node, lost=True)
    well(node, 2)
    send(node, lost=True)
    assert faults() == [("lost", None, "lost", 2, 0)]
