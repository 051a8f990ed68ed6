"""queries.commands: what may be commanded, and what was."""

from __future__ import annotations

import pytest

from pool.core import wire
from pool.models import Command
from pool.queries import clock, commands
from pool.services import commands as services
from tests.cast import Cast, SimNode, enrol_node


def test_it_names_the_node_of_each_gpu_that_may_be_commanded(cast: Cast) -> None:
    one, other = enrol_node(cast.main), enrol_node(cast.main, "node-2", managed=False)
    ids = [gpu.pk for gpu in [*one.rows(), *other.rows()]]
    assert commands.commandable(ids) == {ids[0]: commands.Addressee("node-1", heard=True, wire=wire.WIRE)}
    assert commands.commandable([]) == {}


@pytest.mark.parametrize(
    "change", ["gpu.frozen", "node.frozen", "node.agent_frozen", "pool.frozen", "gpu.retired_at"]
)
def test_a_freeze_at_any_level_and_retirement_forbid_it(node: SimNode, change: str) -> None:
    (gpu,) = node.rows()
    table, field = change.split(".")
    row = {"gpu": gpu, "node": gpu.node, "pool": gpu.node.pool}[table]
    setattr(row, field, clock.now() if field == "retired_at" else True)
    row.save()
    assert commands.commandable([gpu.pk]) == {}


def test_open_are_those_that_nothing_newer_has_replaced(node: SimNode) -> None:
    (gpu,) = node.rows()
    assert not commands.open_of_node(node.row.pk)
    services.reissue([gpu], clock.now())
    services.reissue([gpu], clock.now())
    assert [row.generation for row in commands.open_of_node(node.row.pk)] == [3]


def test_the_history_of_a_gpu_is_newest_first_and_bounded(node: SimNode) -> None:
    (gpu,) = node.rows()
    for _ in range(3):
        services.reissue([gpu], clock.now())
    assert [row.generation for row in commands.of_gpu(gpu, most=2)] == [4, 3]
    assert Command.objects.count() == 4
