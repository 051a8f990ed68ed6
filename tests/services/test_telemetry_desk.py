"""services.telemetry_desk: the rows of one report, and when it has to be taken anew."""

from __future__ import annotations

import pytest

from pool.models import Gpu, Node
from pool.queries import clock
from pool.queries.commands import commandable
from pool.services.telemetry_desk import Desk, NeedsPool, layout_of
from tests.cast import SimNode


def desk(node: SimNode, *, locked: bool = False) -> Desk:
    made = Desk(report=node.report(), seen=(), dropped=0, received=clock.real_now(), now=clock.now())
    row = Node.objects.select_related("pool").get(pk=node.row.pk)
    made.open(row, row.pool if locked else None)
    return made


def test_what_needs_the_pool_breaks_off_without_its_lock(node: SimNode) -> None:
    with pytest.raises(NeedsPool):
        desk(node).need_pool()


def test_under_the_lock_it_goes_on(node: SimNode) -> None:
    desk(node, locked=True).need_pool()


@pytest.mark.parametrize(
    ("table", "field"),
    [("gpu", "frozen"), ("gpu", "managed"), ("node", "frozen"), ("node", "agent_frozen"), ("pool", "frozen")],
)
def test_it_agrees_with_the_query_on_what_may_be_commanded(node: SimNode, table: str, field: str) -> None:
    gpu = node.rows()[0]
    row = {"gpu": gpu, "node": gpu.node, "pool": gpu.node.pool}[table]

    def both() -> tuple[bool, bool]:
        fresh = desk(node)
        return fresh.commandable(fresh.gpus[gpu.uuid]), gpu.pk in commandable([gpu.pk])

    assert both() == (True, True)
    setattr(row, field, not getattr(row, field))
    row.save()
    assert both() == (False, False)


def test_a_gpu_that_was_never_commanded_has_no_layout(node: SimNode) -> None:
    assert layout_of(Gpu(wanted=None)) is None
    layout = layout_of(node.rows()[0])
    assert layout is not None
    assert (layout.mig, layout.held) == (True, ())
