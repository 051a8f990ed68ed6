"""Puts what was seen, what is on record and what went wrong into the report on the wire."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from agents.gpu import Health, Instance, Readings
from agents.observe import Card
from agents.place import Place, write_whole
from agents.plan import span_of
from pool.core import wire

METRICS = (
    "utilization_pct",
    "memory_used_mib",
    "power_w",
    "temperature_c",
    "activity_pct",
    "memory_activity_pct",
)
#: What is measured of a single instance, and of a whole GPU by the same source.
ACTIVITIES = ("activity_pct", "memory_activity_pct")

#: Metric, and the instance's id (None: the GPU).
Key = tuple[str, int | None]


class _Running:
    """Min, mean, max and last of values that come one by one; a long outage costs no memory."""

    def __init__(self, value: float, source: str) -> None:
        self.min = self.max = self.last = self.sum = value
        self.count = 1
        self.source = source

    def add(self, value: float, source: str) -> None:
        self.min, self.max, self.last = min(self.min, value), max(self.max, value), value
        self.sum += value
        self.count += 1
        self.source = source

    def window(self) -> wire.Window:
        mean = round(self.sum / self.count, 2)
        return wire.Window(min=self.min, mean=mean, max=self.max, last=self.last, source=self.source)


class Fold:
    """One GPU's readings since the last report that arrived; a reading may be missing at times."""

    def __init__(self) -> None:
        self._running: dict[Key, _Running] = {}

    def add(self, readings: Readings) -> None:
        for metric in METRICS:
            source = readings.source if metric in ACTIVITIES else "nvml"
            self._put((metric, None), getattr(readings, metric), source)
        for gi, of in readings.instances.items():
            for metric in ACTIVITIES:
                self._put((metric, gi), getattr(of, metric), of.source)

    def forget_instances(self) -> None:
        """Another instance may have the same id: what was measured of the former is not its."""
        self._running = {key: one for key, one in self._running.items() if key[1] is None}

    def windows(self, gi: int | None = None) -> dict[str, wire.Window]:
        """By metric; one that was never read is not in it."""
        return {key[0]: one.window() for key, one in self._running.items() if key[1] == gi}

    def _put(self, key: Key, value: float | None, source: str) -> None:
        if value is None:
            return
        if key in self._running:
            self._running[key].add(value, source)
        else:
            self._running[key] = _Running(value, source)


def gpu_report(card: Card, trouble: wire.Trouble | None, fold: Fold) -> wire.GpuReport:
    """A lost GPU keeps what was last read of it, but holds nothing and measures nothing."""
    gpu, record = card.gpu, card.record
    measured: dict[str, Any] = {} if gpu.lost else {**fold.windows(), **_health(gpu.health)}
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
        instances=_instances(card, fold),
        processes=gpu.processes,
        generation=record.applied,
        held=() if gpu.lost else card.held,
        trouble=trouble,
        lost=gpu.lost,
        fabric_cluster=gpu.fabric_cluster,
        fabric_clique=gpu.fabric_clique,
        shares=() if gpu.lost else card.shares,
        reset=record.reset,
        **measured,
    )


def _health(health: Health) -> dict[str, Any]:
    """Under the same names on the wire."""
    return {field.name: getattr(health, field.name) for field in fields(health)}


def _instances(card: Card, fold: Fold) -> tuple[wire.Instance, ...] | None:
    if card.gpu.instances is None:
        return None
    return tuple(_instance(one, card, fold) for one in card.gpu.instances)


def _instance(one: Instance, card: Card, fold: Fold) -> wire.Instance:
    made = card.record.owns(span_of(one))
    windows: dict[str, Any] = {} if card.gpu.lost else {**fold.windows(one.gi)}
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
        sm=one.sm,
        **windows,
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
