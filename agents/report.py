"""Puts what was seen, what is on record and what went wrong into the report on the wire."""

from __future__ import annotations

import msgspec

from agents.gpu import Gpu, Instance, Readings
from agents.place import Place, write_whole
from agents.plan import in_force, span_of
from agents.record import GpuRecord
from pool.core import wire

METRICS = ("utilization_pct", "memory_used_mib", "power_w", "temperature_c")


class _Running:
    """Min, mean, max and last of values that come one by one; a long outage costs no memory."""

    def __init__(self, value: float) -> None:
        self.min = self.max = self.last = self.sum = value
        self.count = 1

    def add(self, value: float) -> None:
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value
        self.sum += value
        self.count += 1

    def window(self) -> wire.Window:
        return wire.Window(min=self.min, mean=round(self.sum / self.count, 2), max=self.max, last=self.last)


class Fold:
    """One GPU's readings since the last report that arrived; a reading may be missing at times."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def add(self, readings: Readings) -> None:
        for metric in METRICS:
            value = getattr(readings, metric)
            if value is not None and metric in self._running:
                self._running[metric].add(value)
            elif value is not None:
                self._running[metric] = _Running(value)

    def windows(self) -> dict[str, wire.Window]:
        """By metric; one that was never read is not in it."""
        return {metric: running.window() for metric, running in self._running.items()}


def gpu_report(
    gpu: Gpu, record: GpuRecord, trouble: wire.Trouble | None, windows: dict[str, wire.Window]
) -> wire.GpuReport:
    """A lost GPU keeps what was last read of it, but holds nothing and measures nothing."""
    wanted = record.wanted
    instances = gpu.instances
    return wire.GpuReport(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        pci_bus_id=gpu.pci_bus_id,
        pci_device_id=gpu.pci_device_id,
        memory_total_mib=gpu.memory_total_mib,
        mig_capable=gpu.mig_capable,
        mig=gpu.mig,
        mig_pending=gpu.mig_pending,
        grid=gpu.grid,
        offers=gpu.offers,
        instances=None if instances is None else tuple(_instance(one, record) for one in instances),
        processes=gpu.processes,
        generation=record.applied,
        held=in_force(wanted.layout, gpu, record) if wanted and not gpu.lost else (),
        trouble=trouble,
        lost=gpu.lost,
        fabric_cluster=gpu.fabric_cluster,
        fabric_clique=gpu.fabric_clique,
        **({} if gpu.lost else windows),
    )


def _instance(one: Instance, record: GpuRecord) -> wire.Instance:
    made = record.owns(span_of(one))
    return wire.Instance(
        gi=one.gi,
        ci=one.ci,
        mig_uuid=one.mig_uuid,
        profile_id=one.profile_id,
        profile=one.profile,
        start=one.start,
        size=one.size,
        owned=made is not None,
        allocation=made.allocation if made else None,
        memory_used_mib=one.memory_used_mib,
        memory_total_mib=one.memory_total_mib,
        processes=one.processes,
    )


class _Seq(msgspec.Struct, frozen=True):
    boot_id: str
    seq: int


class Counter:
    """Numbers the reports of one boot. A number is on disk before it is used, so no restart repeats it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def next(self, boot_id: str) -> int:
        try:
            last = msgspec.json.decode(self._place.seq.read_bytes(), type=_Seq)
        except (FileNotFoundError, msgspec.DecodeError):
            last = _Seq("", 0)
        seq = last.seq + 1 if last.boot_id == boot_id else 1
        self._write(boot_id, seq)
        return seq

    def catch_up(self, boot_id: str, accepted: int, sent: int) -> None:
        """Go on behind what the portal has: a count that was lost would be taken for older reports."""
        if accepted > sent:
            self._write(boot_id, accepted)

    def _write(self, boot_id: str, seq: int) -> None:
        write_whole(self._place.seq, msgspec.json.encode(_Seq(boot_id, seq)), durable=False)
