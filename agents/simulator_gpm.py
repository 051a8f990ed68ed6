"""The simulated C functions of GPM: samples of counters, and what lies between two of them.

Conventions as in simulator_calls. Hopper and later; a whole GPU only while its MIG mode is off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from agents import simulator_driver as driver
from agents import simulator_hardware as hardware
from agents.simulator_arguments import number, put_handle, versioned
from agents.simulator_driver import Failure, Ret
from agents.simulator_handles import Session

#: As the real one, this driver does not compare samples that are nearer to one another.
SHORTEST_S = 0.1
_SUPPORT_V1 = _METRICS_V1 = 1
#: Metric -> its part of the load: graphics, SM and tensor engines, memory; then MiB/s for each percent.
_PARTS = {1: 1.0, 2: 0.9, 5: 0.6, 10: 0.5, 20: 20.0, 21: 30.0}
_NVLINK = {60: 400.0, 61: 400.0}
_now = time.monotonic


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one GPU, or one of its instances, after so many resets."""

    subject: tuple[str, int, int | None]
    at: float
    load: int
    linked: bool


def nvmlGpmQueryDeviceSupport(session: Session, device: Any, support: Any) -> None:
    gpu = session.gpu(session.read(), device)
    versioned(support, _SUPPORT_V1).isSupportedDevice = int(hardware.has_gpm(gpu))


def nvmlGpmSampleAlloc(session: Session, sample: Any) -> None:
    with session.guard:
        handle = session.handle("sample", session.draw())
        session.samples[handle] = None
    put_handle(sample, handle)


def nvmlGpmSampleFree(session: Session, sample: Any) -> None:
    handle = _buffer(session, sample)
    with session.guard:
        del session.samples[handle]
        session.drop(handle)


def nvmlGpmSampleGet(session: Session, device: Any, sample: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    if not hardware.has_gpm(gpu) or gpu.mig:
        raise Failure(Ret.NOT_SUPPORTED)
    load = driver.load_pct(machine, gpu)
    taken = Sample((gpu.uuid, gpu.epoch, None), _now(), load, hardware.links(gpu) > 0)
    session.samples[_buffer(session, sample)] = taken


def nvmlGpmMigSampleGet(session: Session, device: Any, gi: Any, sample: Any) -> None:
    machine = session.read()
    gpu = session.gpu(machine, device)
    if not hardware.has_gpm(gpu):
        raise Failure(Ret.NOT_SUPPORTED)
    instance = driver.instance_by_id(gpu, number(gi))
    loads = [driver.instance_pct(machine, gpu, instance, inner) for inner in instance.inner]
    taken = Sample((gpu.uuid, gpu.epoch, instance.serial), _now(), max(loads, default=0), False)
    session.samples[_buffer(session, sample)] = taken


def nvmlGpmMetricsGet(session: Session, ask: Any) -> None:
    struct = versioned(ask, _METRICS_V1)
    first, second = (session.samples[_buffer(session, sample)] for sample in (struct.sample1, struct.sample2))
    if first is None or second is None or first.subject != second.subject:
        raise Failure(Ret.INVALID_ARGUMENT)
    if second.at - first.at < SHORTEST_S:
        raise Failure(Ret.INVALID_ARGUMENT)
    for place in range(struct.numMetrics):
        metric = struct.metrics[place]
        part = _PARTS.get(metric.metricId, _NVLINK.get(metric.metricId) if second.linked else None)
        metric.nvmlReturn = Ret.NOT_SUPPORTED if part is None else Ret.SUCCESS
        metric.value = 0.0 if part is None else part * second.load


def _buffer(session: Session, sample: Any) -> int:
    """The number of a buffer that was given and not yet taken back."""
    return session.handle(*session.meaning(sample, "sample"))
