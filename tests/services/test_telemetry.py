"""services.telemetry: what reports write, what they settle, and what they may not do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.models import Gpu, GpuState, Node
from pool.queries import clock
from pool.services import telemetry
from tests.cast import Cast, SimNode, enrol_node


def test_a_first_report_makes_gpus_that_are_only_observed(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2, managed=False)
    rows = node.rows()
    assert [(gpu.model, gpu.grid, gpu.managed) for gpu in rows] == [("H100-80GB", 8, False)] * 2
    assert all(gpu.profiles for gpu in rows)


def test_a_managed_gpu_looks_as_commanded(node: SimNode) -> None:
    (gpu,) = node.rows()
    assert gpu.managed
    assert gpu.generation == 1
    state = GpuState.objects.get(gpu=gpu)
    assert (state.mig, state.instances, state.generation) == (True, [], 1)
