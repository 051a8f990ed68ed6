"""What happened on the node, kept on disk until a report with it is accepted."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

import msgspec

from agents.place import Place, write_whole
from pool.core.wire import Happened

log = logging.getLogger("agents.happened")

MOST = 200
LONGEST_TEXT = 500


class _Kept(msgspec.Struct, frozen=True):
    """`n` is the highest number drawn so far."""

    n: int = 0
    pending: tuple[Happened, ...] = ()


class Log:
    """Safe to share between threads. The oldest is dropped when too much comes together.

    Without a `place` it is forgotten with the process. Numbers rise over
    restarts, also when the machine's clock goes back or the file is lost.
    """

    def __init__(self, place: Place | None = None) -> None:
        self._place = place
        self._lock = threading.Lock()
        kept = _load(place)
        self._kept: deque[Happened] = deque(kept.pending, maxlen=MOST)
        self._n = max(kept.n, time.time_ns() // 1_000_000)

    def add(
        self, kind: str, text: str = "", *, gpu: str | None = None, allocation: str | None = None, **data: Any
    ) -> None:
        """Note it now. A disk that cannot be written costs only its life beyond this process."""
        with self._lock:
            self._n += 1
            one = Happened(
                n=self._n,
                kind=kind,
                at=datetime.now(UTC),
                text=text[:LONGEST_TEXT],
                gpu=gpu,
                allocation=allocation,
                data=data,
            )
            self._kept.append(one)
            self._store()

    def pending(self) -> tuple[Happened, ...]:
        """What no accepted report has told yet, oldest first."""
        with self._lock:
            return tuple(self._kept)

    def told(self, newest: int) -> None:
        """A report with everything up to number `newest` was accepted."""
        with self._lock:
            before = len(self._kept)
            while self._kept and self._kept[0].n <= newest:
                self._kept.popleft()
            if len(self._kept) < before:
                self._store()

    def _store(self) -> None:
        if self._place is None:
            return
        try:
            data = msgspec.json.encode(_Kept(self._n, tuple(self._kept)))
            write_whole(self._place.happened, data, durable=False)
        except OSError as error:
            log.warning("What happened cannot be kept: %s", error)


def _load(place: Place | None) -> _Kept:
    if place is None:
        return _Kept()
    try:
        return msgspec.json.decode(place.happened.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return _Kept()
