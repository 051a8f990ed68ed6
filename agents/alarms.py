"""Waits for the driver's error events in a thread of its own, and hands them to the watch."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from agents.driver import Driver
from agents.gpu import Xid

log = logging.getLogger("agents.alarms")

WAIT_MS = 500
#: What failed in a way that nobody foresaw is tried again after this.
PAUSE_S = 10.0
MOST = 1000


class Alarms:
    """`tell` is called, in this thread, when there are new ones to take."""

    def __init__(self, driver: Driver, tell: Callable[[], None]) -> None:
        self._driver = driver
        self._tell = tell
        self._new: deque[Xid] = deque(maxlen=MOST)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def take(self) -> list[Xid]:
        """Those that came since the last time, oldest first."""
        found = []
        while self._new:
            found.append(self._new.popleft())
        return found

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._driver.xids(WAIT_MS)
            except Exception:  # the thread must live on
                log.exception("Error events cannot be read")
                self._stopping.wait(PAUSE_S)
                continue
            if found:
                self._new.extend(found)
                self._tell()
