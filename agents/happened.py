"""What happened on the node, kept until a report with it is accepted."""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from pool.core.wire import Happened

MOST = 200


class Log:
    """Safe to share between threads. The oldest is dropped when too much comes together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Happened] = deque(maxlen=MOST)
        self._n = time.time_ns() // 1_000_000  # rises over restarts, so nothing is taken twice

    def add(
        self, kind: str, text: str = "", *, gpu: str | None = None, allocation: str | None = None, **data: Any
    ) -> None:
        with self._lock:
            self._n += 1
            one = Happened(
                n=self._n,
                kind=kind,
                at=datetime.now(UTC),
                text=text[:500],
                gpu=gpu,
                allocation=allocation,
                data=data,
            )
            self._kept.append(one)

    def pending(self) -> tuple[Happened, ...]:
        """What no accepted report has told yet, oldest first."""
        with self._lock:
            return tuple(self._kept)

    def told(self, newest: int) -> None:
        """A report with everything up to number `newest` was accepted."""
        with self._lock:
            while self._kept and self._kept[0].n <= newest:
                self._kept.popleft()
