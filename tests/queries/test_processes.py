"""queries.processes: what runs on a GPU, told only to those who may know it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Gpu, Node, Reservation, User
from pool.queries import clock, inventory, processes
from pool.services import reservations
from tests.cast import Cast, SimNode, enrol_node

A_WINDOW = wire.Window(min=1, mean=40, max=90, last=50, source="gpm")


def gpu_of(viewer: User) -> Gpu:
    return inventory.gpus_visible_to(viewer).get()


def pids(viewer: User, **more: Any) -> list[int]:
    return [one.process.pid for one in processes.of_gpu(gpu_of(viewer), viewer, **more) or ()]


@pytest.fixture
def held(cast: Cast, node: SimNode) -> Reservation:
    """Milo's slice with two processes in it, one the machine's own; on the GPU also one of nobody's."""
    row = reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    node.follow()
    gpu = node.gpus[0]
    own = str(row.allocations.get().pk)
    inside = (
        wire.Process(pid=11, name="python", user="milo", allocation=own, by="user"),
        wire.Process(pid=12, name="nvidia-cuda-mps-server", system=True),
    )
    (one,) = gpu.instances
    values = {name: getattr(one, name) for name in one.__struct_fields__}
    gpu.instances = [wire.Instance(**values | {"processes": inside, "activity_pct": A_WINDOW})]
    gpu.processes = (*inside, wire.Process(pid=13, name="xmrig", user="eve"))
    node.send()
    return row


def test_those_who_see_all_see_every_process_once(cast: Cast, held: Reservation) -> None:
    found = processes.of_gpu(gpu_of(cast.otto), cast.otto)
    assert found is not None
    assert [(one.process.pid, one.span is not None, one.unattributed) for one in found] == [
        (13, False, True),
        (11, True, False),
        (12, True, False),
    ]
    assert [one.reservation_id for one in found] == [None, held.pk, None]


def test_a_holders_team_sees_those_of_its_own_slices(cast: Cast, held: Reservation) -> None:
    assert pids(cast.milo) == [11]
    assert pids(cast.lena) == [11]


def test_what_is_nobodys_in_a_slice_is_shown_to_its_holder_as_nobodys(
    cast: Cast, held: Reservation, node: SimNode
) -> None:
    (one,) = node.gpus[0].instances
    values = {name: getattr(one, name) for name in one.__struct_fields__}
    node.gpus[0].instances = [wire.Instance(**values | {"processes": (wire.Process(pid=14, user="eve"),)})]
    node.gpus[0].processes = ()
    node.send()
    (seen,) = processes.of_gpu(gpu_of(cast.milo), cast.milo) or ()
    assert (seen.process.pid, seen.reservation_id, seen.unattributed) == (14, held.pk, True)
    Node.objects.update(wire=1)  # an agent that cannot say whose it is
    (seen,) = processes.of_gpu(gpu_of(cast.milo), cast.milo) or ()
    assert (seen.reservation_id, seen.unattributed) == (held.pk, False)


def test_a_stranger_sees_none_not_even_where_the_booking_is_shown_to_everyone(
    cast: Cast, held: Reservation
) -> None:
    assert pids(cast.sam) == []
    Reservation.objects.update(visibility="everyone")
    assert pids(cast.sam) == []


def test_whoever_is_bound_to_one_team_sees_that_teams_alone(cast: Cast, held: Reservation) -> None:
    assert pids(cast.otto, only=cast.speech) == []
    assert pids(cast.otto, only=cast.vision) == [11]


def test_what_was_not_read_is_not_nothing(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    assert processes.of_gpu(gpu_of(cast.otto), cast.otto) == ()
    node.send(node.report(gpus=(node.gpus[0].report(processes=None),)))
    assert processes.of_gpu(gpu_of(cast.otto), cast.otto) is None
    node.gpus[0].lost = True
    node.send()
    assert processes.of_gpu(gpu_of(cast.otto), cast.otto) is None


def test_of_a_node_that_is_not_heard_nothing_is_said(cast: Cast, held: Reservation, node: SimNode) -> None:
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(hours=1)
    node.row.save()
    assert processes.of_gpu(gpu_of(cast.otto), cast.otto) is None
    assert processes.activities(gpu_of(cast.otto)) == ()


def test_on_a_whole_gpu_what_is_not_attributed_is_nobodys(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    row = reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=GpuAsk(models=("H100-80GB",)),
        duration=timedelta(hours=1),
        now=clock.now(),
    )
    own = str(row.allocations.get().pk)
    node.gpus[0].processes = (wire.Process(pid=1, allocation=own, by="label"), wire.Process(pid=2))
    node.follow()
    assert pids(cast.milo) == [1]
    assert pids(cast.otto) == [1, 2]


def test_the_activity_of_an_instance_comes_with_its_source(held: Reservation, cast: Cast) -> None:
    (one,) = processes.activities(gpu_of(cast.sam))
    assert one.activity == {"min": 1, "mean": 40, "max": 90, "last": 50, "source": "gpm"}
    assert (one.profile, one.memory_activity) == ("1g.10gb", None)
