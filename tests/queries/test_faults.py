"""Faults as doors show them: open before closed, and when a GPU may come back."""

from __future__ import annotations

from datetime import timedelta

from pool.models import Fault, Gpu, GpuState
from pool.queries import faults
from tests.cast import NOW, Cast, SimNode

HOUR = timedelta(hours=1)


def fault(gpu: Gpu, xid: int = 48, action: str = "reset", **more: object) -> Fault:
    values = {"kind": "xid", "since": NOW, "last_at": NOW} | more
    return Fault.objects.create(gpu=gpu, xid=xid, action=action, **values)


def test_the_open_ones_come_first_and_then_what_was_closed_last(cast: Cast, node: SimNode) -> None:
    (gpu,) = node.rows()
    fault(gpu, 1, "drain", cleared_at=NOW + HOUR)
    fault(gpu, 2, "drain", cleared_at=NOW + 2 * HOUR, cleared_by=cast.otto)
    fault(gpu, 3, "drain", since=NOW + HOUR)
    fault(gpu, 4, "drain")
    seen = faults.of_gpu(gpu)
    assert [one.xid for one in seen] == [4, 3, 2, 1]
    assert [(one.open, one.cleared_by) for one in seen][2:] == [(False, "otto"), (False, "")]


def test_of_closed_ones_only_the_last_are_told(node: SimNode) -> None:
    (gpu,) = node.rows()
    for n in range(12):
        fault(gpu, 100 + n, "drain", cleared_at=NOW + n * HOUR)
    assert [one.xid for one in faults.of_gpu(gpu)] == [111 - n for n in range(10)]


def test_it_may_return_when_all_that_is_open_is_well(node: SimNode) -> None:
    (gpu,) = node.rows()
    assert not faults.may_return(faults.of_gpu(gpu))
    fault(gpu, 74, "drain", good=5)
    assert faults.may_return(faults.of_gpu(gpu))
    fault(gpu, 4711, "drain", good=4)
    assert [one.may_return for one in faults.of_gpu(gpu)] == [True, False]
    assert not faults.may_return(faults.of_gpu(gpu))
    assert faults.of_gpu(gpu)[0].needed == 5


def test_it_says_how_far_the_reset_is(node: SimNode) -> None:
    (gpu,) = node.rows()
    one = fault(gpu)
    assert [f.reset for f in faults.of_gpu(gpu)] == ["waiting"]
    Fault.objects.update(reset=3)
    assert [f.reset for f in faults.of_gpu(gpu)] == ["asked"]
    GpuState.objects.filter(gpu=gpu).update(health={"reset": 3})
    assert [f.reset for f in faults.of_gpu(gpu)] == ["done"]
    Fault.objects.filter(pk=one.pk).update(action="drain")
    assert [f.reset for f in faults.of_gpu(gpu)] == [""]
