"""How busy a GPU or a GPU instance really is, by GPM (Hopper and later): two samples, and what lies between.

Conventions as in nvml. Holds buffers of the library between samples, so give them back
(`forget`) before the library is closed.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, NamedTuple

import pynvml as n

from agents import nvml

#: Samples nearer to one another than this measure nothing (nvml.h).
SHORTEST_S = 0.1
_PERCENT, _SLACK = 100.0, 1.01
#: Metric and its highest value that makes sense; rates are MiB/s (nvml.h) and below 16 TiB/s.
_INSTANCE = (
    (n.NVML_GPM_METRIC_GRAPHICS_UTIL, _PERCENT),
    (n.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _PERCENT),
    (n.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT),
)
_MOST_MIB = 16.0 * 1024 * 1024
_DEVICE = (
    *_INSTANCE,
    (n.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MOST_MIB),
    (n.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MOST_MIB),
    (n.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MOST_MIB),
    (n.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MOST_MIB),
)
_now = time.monotonic


class Activity(NamedTuple):
    """Percent of the time in which engines, tensor cores and memory were busy; traffic in MiB/s,
    of whole GPUs only."""

    engines: float | None = None
    tensor: float | None = None
    memory: float | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None


class _Pair:
    """Two buffers: one holds the last sample, the other takes the next."""

    def __init__(self) -> None:
        self.last, self.next = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
        self.taken_at: float | None = None
        self.activity: Activity | None = None

    def free(self) -> None:
        for buffer in (self.last, self.next):
            nvml.optional(n.nvmlGpmSampleFree, buffer)


class _Question:
    """Which metrics lie between two samples; 19 KB, so made once. Not safe between threads."""

    def __init__(self, metrics: tuple[tuple[int, float], ...]) -> None:
        self._ask = n.c_nvmlGpmMetricsGet_t()
        self._ask.version, self._ask.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        self._answers = []
        for place, (metric, most) in enumerate(metrics):
            self._ask.metrics[place].metricId = metric
            self._answers.append((self._ask.metrics[place], most))

    def ask(self, first: Any, second: Any) -> Activity:
        self._ask.sample1, self._ask.sample2 = first, second
        n.nvmlGpmMetricsGet(self._ask)
        return Activity(*(_value(metric, most) for metric, most in self._answers))


class Gpm:
    """Samples kept by GPU UUID and instance id. Safe between threads."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, int | None], _Pair] = {}
        self._supported: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._whole, self._instance = _Question(_DEVICE), _Question(_INSTANCE)

    def activity(self, device: Any, uuid: str, gi: int | None = None) -> Activity | None:
        """Since the question before this one; None for the first, and where GPM does not measure.

        `gi` asks for one GPU instance of the device. Asked again too soon, it says what it said last.
        """
        with self._lock:
            if not self._supports(device, uuid):
                return None
            try:
                return self._since_last(device, uuid, gi)
            except n.NVMLError as error:
                self._drop((uuid, gi))
                nvml.raise_if_gone(error)
                return None

    def forget(self, uuid: str | None = None) -> None:
        """Give back the buffers of one GPU, whose instances have changed, or of all."""
        with self._lock:
            for key in [key for key in self._pairs if uuid in (None, key[0])]:
                self._drop(key)
            if uuid is None:
                self._supported.clear()

    def _supports(self, device: Any, uuid: str) -> bool:
        if uuid not in self._supported:
            support = nvml.optional(n.nvmlGpmQueryDeviceSupport, device)
            self._supported[uuid] = bool(support and support.isSupportedDevice)
        return self._supported[uuid]

    def _since_last(self, device: Any, uuid: str, gi: int | None) -> Activity | None:
        pair = self._pairs.get((uuid, gi))
        if pair is None:
            pair = self._pairs[uuid, gi] = _Pair()
        now = _now()
        if pair.taken_at is not None and now - pair.taken_at < SHORTEST_S:
            return pair.activity
        if gi is None:
            n.nvmlGpmSampleGet(device, pair.next)
        else:
            n.nvmlGpmMigSampleGet(device, gi, pair.next)
        first, pair.taken_at = pair.taken_at is None, now
        question = self._whole if gi is None else self._instance
        pair.activity = None if first else question.ask(pair.last, pair.next)
        pair.last, pair.next = pair.next, pair.last
        return pair.activity

    def _drop(self, key: tuple[str, int | None]) -> None:
        pair = self._pairs.pop(key, None)
        if pair is not None:
            try:
                pair.free()
            except n.NVMLError:
                return  # the library is gone, and its buffers with it


def _value(metric: Any, most: float) -> float | None:
    """None for a metric that this GPU lacks, and for what makes no sense."""
    value = metric.value
    if metric.nvmlReturn != n.NVML_SUCCESS or not math.isfinite(value):
        return None
    # Counters that are read one after the other may give a hair more than everything.
    return round(min(float(value), most), 2) if 0 <= value <= most * _SLACK else None
