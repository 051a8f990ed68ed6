"""When a process was first seen at work: the first sample in which its GPU or instance was busy for it alone.

No source says how busy one process of several is, so one that is never alone has no such time.
Kept on disk, so that a restart of the agent does not make it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from agents.attribution import everything_on
from agents.gpu import Gpu, Readings
from agents.place import Place, write_whole
from pool.core.wire import Process

#: Less is the noise of a context that only waits.
BUSY_PCT = 1.0
#: The whole GPU, where MIG is off, among the ids of instances.
_WHOLE = -1


class FirstBusy:
    """One thread (the watch) notes readings and marks processes."""

    def __init__(self, place: Place) -> None:
        self._path = place.folder / "busy.json"
        self._first = self._load()
        self._since: dict[tuple[str, int], datetime] = {}
        self._news = False

    def note(self, readings: Mapping[str, Readings]) -> None:
        """Take a sample, by GPU UUID."""
        now = datetime.now(UTC)
        for uuid, seen in readings.items():
            whole = seen.activity_pct if seen.activity_pct is not None else seen.utilization_pct
            values = {_WHOLE: whole, **{gi: one.activity_pct for gi, one in seen.instances.items()}}
            for gi, value in values.items():
                if value is not None and value >= BUSY_PCT:
                    self._since.setdefault((uuid, gi), now)

    def mark(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """All GPUs of one look with `first_busy_at` of their processes set, by the samples since the last."""
        marked = tuple(gpu if gpu.lost else self._gpu(gpu) for gpu in gpus)
        self._since.clear()
        if self._forget(marked) or self._news:
            write_whole(self._path, msgspec.json.encode(self._first), durable=False)
            self._news = False
        return marked

    def _gpu(self, gpu: Gpu) -> Gpu:
        instances = gpu.instances and tuple(
            replace(one, processes=self._mark(one.processes, gpu.uuid, one.gi)) for one in gpu.instances
        )
        return replace(
            gpu,
            instances=instances,
            processes=self._mark(gpu.processes, gpu.uuid, None if instances else _WHOLE),
        )

    def _forget(self, gpus: Sequence[Gpu]) -> bool:
        """Drop what no longer runs, unless something could not be read; True if there was any."""
        if any(gpu.lost or gpu.instances is None or gpu.processes is None for gpu in gpus):
            return False
        if any(one.processes is None for gpu in gpus for one in gpu.instances or ()):
            return False
        alive = {_key(one) for gpu in gpus for one in everything_on(gpu)}
        gone = set(self._first) - alive
        self._first = {key: at for key, at in self._first.items() if key in alive}
        return bool(gone)

    def _mark(
        self, found: tuple[Process, ...] | None, uuid: str, gi: int | None
    ) -> tuple[Process, ...] | None:
        if found is None:
            return None
        at_work = [one for one in found if one.computes and not one.system and one.started]
        at = self._since.get((uuid, gi)) if gi is not None else None
        if at is not None and len(at_work) == 1 and _key(at_work[0]) not in self._first:
            self._first[_key(at_work[0])] = at
            self._news = True
        return tuple(msgspec.structs.replace(one, first_busy_at=self._first.get(_key(one))) for one in found)

    def _load(self) -> dict[str, datetime]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, datetime])
        except (OSError, msgspec.DecodeError):
            return {}


def _key(process: Process) -> str:
    return f"{process.pid} {process.started}"
