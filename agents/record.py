"""What the agent made and what it was asked for, on disk: record.json.

The record is the only proof that an instance is ours. It is written before and
after each change, so that a crash in between leaves either the instance or a
note that it may be there. One thread writes (the applier), others read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from agents.place import Place, write_whole
from pool.core.wire import Command

log = logging.getLogger("agents.record")

Span = tuple[int, int, int]


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of ours. `making`: about to be made, may be there or not. `adopted`: others made it."""

    profile_id: int
    start: int
    size: int
    allocation: str
    owner: str
    state: Literal["making", "made"] = "made"
    adopted: bool = False

    @property
    def span(self) -> Span:
        return self.profile_id, self.start, self.size


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the whole GPU was handed to. It outlives a boot, since nothing has to be made again.

    `adopted`: with what ran on it already.
    """

    allocation: str
    owner: str
    adopted: bool = False


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`wanted` is the newest command acted on, `applied` the newest generation read back as
    done in this boot, `made` the instances of ours in this boot. `reset` is the number of the
    newest reset that was carried out. `compute_mode` is what the GPU was in before it was closed
    to processes, None while it is not closed by us."""

    wanted: Command | None = None
    applied: int = 0
    made: tuple[Made, ...] = ()
    reset: int = 0
    whole: Whole | None = None
    compute_mode: str | None = None

    @property
    def generation(self) -> int:
        return self.wanted.generation if self.wanted else 0

    def owns(self, span: Span) -> Made | None:
        return next((made for made in self.made if made.span == span), None)

    def has_whole(self, allocation: str) -> bool:
        """Whether the whole GPU is that allocation's. An older record does not say, and counts by what
        was applied."""
        if self.whole is None:
            return 0 < self.applied == self.generation
        return self.whole.allocation == allocation


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`manage` and `frozen` are the portal's last word, kept for a start without it."""

    boot_id: str
    gpus: dict[str, GpuRecord] = {}
    manage: tuple[str, ...] = ()
    frozen: bool = False


class Ledger:
    """The record in memory and on disk; what a method returns or raises is already on disk.

    `boot_id` may be a call: a simulated machine boots under the agent, and what
    is noted from then on must not be taken for the earlier boot's.
    """

    def __init__(self, place: Place, boot_id: str | Callable[[], str]) -> None:
        self._place = place
        self._boot_id = boot_id if callable(boot_id) else lambda: boot_id
        self._lock = threading.Lock()
        self._record = _load(place, self._boot_id())
        self.notice_boot()

    def notice_boot(self) -> None:
        """Instances never survive a boot; what was wanted, and may be changed, does."""
        with self._lock:
            self._notice_boot()

    def _notice_boot(self) -> None:
        boot_id = self._boot_id()
        if self._record.boot_id != boot_id:
            log.info("The machine was booted anew; its instances are gone")
            self._write(_after_boot(self._record, boot_id))

    @property
    def record(self) -> Record:
        return self._record

    def gpu(self, uuid: str) -> GpuRecord:
        return self._record.gpus.get(uuid, GpuRecord())

    def keep_rules(self, manage: Sequence[str], frozen: bool) -> bool:
        """Keep what the portal said; True if that is news."""
        rules = {"manage": tuple(sorted(manage)), "frozen": frozen}
        with self._lock:
            if all(getattr(self._record, name) == value for name, value in rules.items()):
                return False
            self._write(replace(self._record, **rules))
        return True

    def want(self, command: Command) -> None:
        self._change(command.gpu, lambda gpu: replace(gpu, wanted=command))

    def applied(self, uuid: str, generation: int) -> None:
        self._change(uuid, lambda gpu: replace(gpu, applied=generation))

    def reset(self, uuid: str, number: int) -> None:
        """It was reset, and with that its instances and its compute mode are gone."""
        self._change(uuid, lambda gpu: replace(gpu, reset=number, made=(), compute_mode=None))

    def hand(self, uuid: str, whole: Whole | None) -> None:
        """Note whom the whole GPU belongs to now."""
        self._change(uuid, lambda gpu: replace(gpu, whole=whole))

    def closed(self, uuid: str, before: str | None) -> None:
        """Note the compute mode to go back to; None when the GPU is open again."""
        self._change(uuid, lambda gpu: replace(gpu, compute_mode=before))

    def forbidden(self, uuid: str) -> str | None:
        """Why this GPU must not be changed now (frozen, observe), or None."""
        if self._place.is_frozen() or self._record.frozen:
            return "frozen"
        return None if uuid in self._record.manage else "observe"

    def put(self, uuid: str, made: Made) -> None:
        """Note an instance, in place of one at the same span."""
        self._change(uuid, lambda gpu: replace(gpu, made=(*_without(gpu, [made.span]), made)))

    def drop(self, uuid: str, spans: Sequence[Span]) -> None:
        """Forget instances that are no more."""
        self._change(uuid, lambda gpu: replace(gpu, made=_without(gpu, spans)))

    def _change(self, uuid: str, change: Callable[[GpuRecord], GpuRecord]) -> None:
        with self._lock:
            self._notice_boot()
            before = self._record.gpus.get(uuid, GpuRecord())
            after = change(before)
            if after != before:
                self._write(replace(self._record, gpus={**self._record.gpus, uuid: after}))

    def _write(self, record: Record) -> None:
        write_whole(self._place.record, msgspec.json.encode(record), durable=True)
        self._record = record


def _load(place: Place, boot_id: str) -> Record:
    try:
        return msgspec.json.decode(place.record.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record(boot_id=boot_id)
    except msgspec.DecodeError as error:
        # Without the record every instance counts as foreign: nothing is destroyed.
        aside = place.record.with_suffix(".unreadable")
        place.record.replace(aside)
        log.error("The record cannot be read (%s) and was put aside as %s", error, aside)
        return Record(boot_id=boot_id)


def _after_boot(record: Record, boot_id: str) -> Record:
    return replace(record, boot_id=boot_id, gpus={uuid: _booted(gpu) for uuid, gpu in record.gpus.items()})


def _booted(gpu: GpuRecord) -> GpuRecord:
    """A boot resets every GPU, so that a reset that was wanted is done."""
    wanted = gpu.wanted.layout.reset if gpu.wanted else 0
    return replace(gpu, made=(), applied=0, compute_mode=None, reset=max(gpu.reset, wanted))


def _without(gpu: GpuRecord, spans: Sequence[Span]) -> tuple[Made, ...]:
    return tuple(one for one in gpu.made if one.span not in spans)
