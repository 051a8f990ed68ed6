"""What is shown of a slice whose GPU is lost or not reported, or that a process keeps."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Allocation, Fault, GpuState, Outage, Reservation, User
from pool.models.reservations import SHARED
from pool.queries import access, clock, troubles
from pool.queries import reservations as queries
from pool.queries.troubles import Process, Trouble
from pool.services import reservations
from tests.cast import Cast, SimNode, enrol_node

MILOS = wire.Process(pid=4711, user="milo", name="pyth\u202eon", memory_mib=900)


def active(cast: Cast, node: SimNode, *, whole: bool = False, visibility: str = "team") -> Reservation:
    booked = reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=GpuAsk(models=("H100-80GB",)) if whole else MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        visibility=visibility,
        now=clock.now(),
    )
    node.follow()
    return booked


def end(cast: Cast, node: SimNode, booked: Reservation, processes: tuple[wire.Process, ...] | None) -> None:
    """It is released, but the driver does not give its slice up; these are said to run on it."""
    reservations.release(actor=cast.milo, reservation_id=booked.pk, now=clock.now())
    card, mine = node.gpus[0], str(booked.allocations.get().pk)
    card.instances = [
        msgspec.structs.replace(one, processes=processes) if one.allocation == mine else one
        for one in card.instances
    ]
    card.trouble = wire.Trouble(generation=node.rows()[0].generation, code="in_use", holders=processes or ())
    node.send()


def trouble(viewer: User, booked: Reservation) -> Trouble | None:
    (one,) = queries.as_resource(access.reservation(viewer, booked.pk)).allocations
    return one.trouble


def test_what_is_healthy_has_no_trouble_before_its_start_and_in_use(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    assert trouble(cast.milo, booked) is None


def test_a_slice_on_a_lost_gpu_gives_no_way_to_it_and_says_why(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    node.gpus[0].lost = True
    node.send()
    view = queries.as_resource(access.reservation(cast.milo, booked.pk))
    (one,) = view.allocations
    assert (view.state, one.env, one.part) == ("active", {}, None)
    since = Outage.objects.get().period.lower
    until = since + timedelta(minutes=15)
    assert one.trouble == Trouble(troubles.GPU_LOST, since, until=until, action="lost")
    node.gpus[0].lost = False
    node.send()
    (one,) = queries.as_resource(access.reservation(cast.milo, booked.pk)).allocations
    assert (one.trouble, len(one.env)) == (None, 4)


def test_a_gpu_that_its_node_does_not_report_is_unknown_and_not_lost(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    node.send(node.report(gpus=()))
    found = trouble(cast.milo, booked)
    assert found is not None
    assert (found.code, found.since is None) == ("gpu_unknown", False)


def test_its_team_is_told_which_process_keeps_the_slice_until_it_is_gone(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    end(cast, node, booked, (MILOS,))
    for viewer in (cast.milo, cast.lena, cast.otto):
        found = trouble(viewer, booked)
        assert found is not None
        assert (found.code, found.since is None) == ("in_use", False)
        assert found.processes == (Process(4711, "python", "milo"),)
    node.follow()
    assert trouble(cast.milo, booked) is None


def test_others_who_see_it_are_not_told_whose_process_it_is(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node, visibility="everyone")
    end(cast, node, booked, (MILOS,))
    found = trouble(cast.sam, booked)
    assert found is not None
    assert (found.code, found.processes, found.told) == ("in_use", None, False)


def test_what_could_not_be_listed_is_unknown_and_an_empty_list_is_empty(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    end(cast, node, booked, None)
    found = trouble(cast.milo, booked)
    assert found is not None
    assert (found.processes, found.told) == (None, True)
    card = node.gpus[0]
    card.instances = [msgspec.structs.replace(one, processes=()) for one in card.instances]
    node.send()
    found = trouble(cast.milo, booked)
    assert found is not None
    assert found.processes == ()


def test_a_process_on_another_teams_slice_is_not_shown_beside_it(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    other = reservations.book(
        actor=cast.sam,
        team="speech",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    node.follow()
    end(cast, node, booked, (MILOS,))
    assert trouble(cast.sam, other) is None
    reservations.release(actor=cast.sam, reservation_id=other.pk, now=clock.now())
    node.gpus[0].trouble = wire.Trouble(generation=node.rows()[0].generation, code="in_use", holders=(MILOS,))
    node.send()
    found = trouble(cast.sam, other)
    assert found is not None
    assert found.processes == ()


def test_a_whole_gpu_shows_what_still_computes_on_it(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    booked = active(cast, node, whole=True)
    node.gpus[0].processes = (MILOS, wire.Process(pid=7, name="Xorg", computes=False))
    node.send()
    assert trouble(cast.milo, booked) is None
    reservations.release(actor=cast.milo, reservation_id=booked.pk, now=clock.now())
    node.follow()
    found = trouble(cast.milo, booked)
    assert found is not None
    assert found.processes == (Process(4711, "python", "milo"),)


# --- Faults -----------------------------------------------------------------------


def fault(node: SimNode, kind: str = "xid", **values: object) -> Fault:
    now = clock.now()
    return Fault.objects.create(gpu=node.rows()[0], kind=kind, since=now, last_at=now, **values)


def test_a_fault_under_a_booking_is_told_and_the_way_to_it_stays(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    made = fault(node, xid=48, action="reset")
    (one,) = queries.as_resource(access.reservation(cast.milo, booked.pk)).allocations
    assert one.trouble == Trouble(troubles.GPU_FAULTY, made.since, xid=48, action="reset")
    assert one.env
    made.cleared_at = clock.now()
    made.save()
    assert trouble(cast.milo, booked) is None


def test_an_xid_that_says_it_is_gone_is_as_lost(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    made = fault(node, xid=79, action="lost")
    found = trouble(cast.milo, booked)
    assert found is not None
    assert (found.code, found.since, found.xid) == ("gpu_lost", made.since, 79)
    made.good = 1
    made.save()
    assert trouble(cast.milo, booked) is None


def test_of_several_faults_the_gravest_is_told_with_what_says_why(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    fault(node, xid=74, action="drain")
    fault(node, "lost", action="lost")
    fault(node, xid=79, action="lost")
    found = trouble(cast.milo, booked)
    assert found is not None
    assert found.xid == 79


def test_what_is_yet_to_start_is_told_that_its_gpu_is_out_of_use(cast: Cast, node: SimNode) -> None:
    ahead = reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        start=clock.now() + timedelta(hours=3),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    assert (ahead.state, trouble(cast.milo, ahead)) == ("scheduled", None)
    made = fault(node, xid=48, action="drain")
    assert trouble(cast.milo, ahead) == Trouble(troubles.GPU_FAULTY, made.since, xid=48, action="drain")
    made.delete()
    node.gpus[0].lost = True
    node.send()
    found = trouble(cast.milo, ahead)
    assert found is not None
    assert (found.code, found.until, found.since) == ("gpu_lost", None, Fault.objects.get().since)
    # It answers again, and takes nobody new until it is given back.
    node.gpus[0].lost = False
    node.send()
    found = trouble(cast.milo, ahead)
    assert found is not None
    assert (found.code, found.action) == ("gpu_faulty", "lost")


def test_what_is_yet_to_start_is_told_that_its_gpu_is_not_reported(cast: Cast, node: SimNode) -> None:
    booked = active(cast, node)
    Reservation.objects.update(state="scheduled", started_at=None)
    Allocation.objects.update(wanted_at=None, ready_at=None)
    node.send(node.report(gpus=()))
    found = trouble(cast.milo, booked)
    assert found is not None
    assert (found.code, found.since is None) == ("gpu_unknown", False)
    node.send()
    assert trouble(cast.milo, booked) is None


# --- Shares -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ({"state": "ok", "memory_used_mib": 1}, None),
        ({"state": "degraded"}, Trouble(troubles.SHARE_DEGRADED)),
        ({"state": "over", "memory_used_mib": 9000}, Trouble(troubles.SHARE_OVER, used_mib=9000)),
    ],
)
def test_what_the_node_says_of_a_share(
    cast: Cast, node: SimNode, seen: dict[str, object], wanted: Trouble | None
) -> None:
    booked = active(cast, node)
    one = booked.allocations.get()
    one.kind, one.tenancy, one.share_memory_mib = "share", SHARED, 8192
    one.share_compute_pct, one.share_limit_pct = 20, 20
    one.save()
    others = {"allocation": "another", "state": "over", "memory_used_mib": 5}
    GpuState.objects.update(shares=[others, {"allocation": str(one.pk), **seen}])
    assert trouble(cast.milo, booked) == wanted
