"""What the holder of a reservation is told on its page: faults, outages, program errors, the line, notice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client

from pool.core import wire
from pool.models import Allocation, GpuState, Reservation
from pool.models.reservations import SHARED
from pool.queries import clock
from pool.queries import reservations as queries
from pool.services import waiting
from portal.web import reservation_view
from tests.cast import Cast, SimNode
from tests.portal.web.people import page_of

pytestmark = pytest.mark.django_db


def xid(node: SimNode, number: int, allocation: str | None = None) -> None:
    """The driver reports an error on the node's GPU."""
    told = wire.Happened(
        n=node.seq + 1,
        kind="xid",
        at=clock.real_now(),
        gpu=node.gpus[0].uuid,
        allocation=allocation,
        data={"xid": number},
    )
    node.send(node.report(happened=(told,)))


def test_a_lost_gpu_says_when_the_reservation_fails_and_what_comes_then(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    Reservation.objects.update(restartable=True)
    node.gpus[0].lost = True
    node.send()
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "If it is not back by" in page
    assert "The rest of its time is then placed anew" in page
    assert "Could not be used" in page
    assert "This time is not charged." in page


def test_a_fault_under_it_is_named_and_it_goes_on(active: Reservation, node: SimNode, milos: Client) -> None:
    xid(node, 48)
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "node-1 GPU 0 has had a fault since" in page
    assert "Xid 48: a memory error that cannot be corrected." in page
    assert "it is reset once it is empty" in page
    assert "Fault of its GPU" in page.split("What happened")[1]
    assert f"export CUDA_VISIBLE_DEVICES={active.allocations.get().mig_uuid}" in page


def test_one_yet_to_start_is_told_that_it_goes_elsewhere(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    Reservation.objects.update(state="scheduled", started_at=None)
    Allocation.objects.update(wanted_at=None, ready_at=None)
    for lost, said in ((False, "has had a fault since"), (True, "GPU 0, where it is to start, is lost:")):
        node.gpus[0].lost = lost
        xid(node, 48)
        page = page_of(milos.get(f"/reservations/{active.pk}/"))
        assert said in page
        assert "is placed elsewhere as soon as something fits" in page
        assert "save your work" not in page
        assert "What ran there" not in page


def test_one_yet_to_start_is_told_that_its_gpu_is_not_reported(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    Reservation.objects.update(state="scheduled", started_at=None)
    Allocation.objects.update(wanted_at=None, ready_at=None)
    node.send(node.report(gpus=()))
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "GPU 0, where it is to start, has been missing from its node's reports since" in page
    assert "is placed elsewhere as soon as something fits" in page
    assert "What runs there" not in page


def test_what_is_taken_back_already_is_not_drawn_while_the_rest_ends(active: Reservation) -> None:
    view = queries.as_resource(queries.visible_to(active.owner).get(pk=active.pk))
    (kept,) = view.allocations
    gone = replace(kept, id=uuid4(), start=kept.start + kept.size, gone=True)
    (on_gpu,) = reservation_view.on_gpus([gone, kept])
    assert [len(row.boxes or ()) for row in on_gpu.drawing.lines] == [1]
    assert [part.view.gone for part in on_gpu.parts] == [True, False]


@pytest.mark.parametrize(("state", "gone"), [("ending", True), ("ended", False)])
def test_what_was_taken_back_is_told_until_all_of_it_is_over(
    active: Reservation, milos: Client, state: str, gone: bool
) -> None:
    Allocation.objects.update(holds=False)
    Reservation.objects.update(state=state)
    assert ("given back" in page_of(milos.get(f"/reservations/{active.pk}/"))) == gone


def test_an_error_of_its_own_program_is_told_for_an_hour(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    xid(node, 31, str(active.allocations.get().pk))
    address = f"/reservations/{active.pk}/"
    page = page_of(milos.get(address))
    assert "Xid 31: a program used memory that is not its own" in page.split("What it holds")[0]
    assert "Look at the program." in page
    seen = reservation_view.context(
        queries.as_resource(queries.visible_to(active.owner).get()),
        queries.events(active),
        clock.now() + timedelta(hours=1),
    )
    assert seen["mistake"] is None


def test_who_waits_is_told_for_what_and_for_how_long_and_may_give_up(
    cast: Cast, node: SimNode, active: Reservation, milos: Client
) -> None:
    Reservation.objects.filter(pk=active.pk).update(state="failed", klass="batch", restartable=True)
    again = waiting.restart(active, active.period.upper - timedelta(hours=1), now=clock.now())
    assert again is not None
    page = page_of(milos.get(f"/reservations/{again.pk}/"))
    assert "It gets 1 h as soon as something fits" in page
    assert "It is number 1 of 1 in the line." in page
    assert f"/reservations/{active.pk}/" in page
    assert f"/reservations/{again.pk}/" in page_of(milos.get(f"/reservations/{active.pk}/"))
    listed = page_of(milos.get("/reservations/"))
    assert "(number 1 of 1)" in listed.split(f"/reservations/{again.pk}/")[1].split("</tr>")[0]
    assert milos.post(f"/reservations/{again.pk}/release/").status_code == 302
    again.refresh_from_db()
    assert again.state == "cancelled"


def test_notice_is_told_with_its_reason(active: Reservation, milos: Client) -> None:
    Reservation.objects.update(notice_until=clock.now() + timedelta(minutes=15), notice_why="reclaimed")
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "It may be taken back from" in page
    assert "on: its borrowed capacity was wanted back." in page


@pytest.mark.parametrize(
    ("state", "said"), [("over", "uses 9 GiB of memory, more than its 8 GiB"), ("degraded", "is degraded")]
)
def test_a_share_in_trouble_says_so(active: Reservation, milos: Client, state: str, said: str) -> None:
    one = active.allocations.get()
    shared = {"kind": "share", "profile": "", "tenancy": SHARED, "share_memory_mib": 8192}
    Allocation.objects.update(**shared, share_compute_pct=20, share_limit_pct=20)
    GpuState.objects.update(shares=[{"allocation": str(one.pk), "state": state, "memory_used_mib": 9216}])
    assert said in page_of(milos.get(f"/reservations/{active.pk}/"))
