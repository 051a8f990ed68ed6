"""Whose a process is: by its container's device, its environment, or its account. No driver, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from agents.gpu import Gpu
from agents.record import GpuRecord
from pool.core.wire import Stay


def attribute(gpu: Gpu, record: GpuRecord, stays: Sequence[Stay]) -> Gpu:
    """The GPU with `allocation`, `by` and `system` of all its processes and its instances' set."""
    return gpu
