"""Error events of all GPUs: one set kept open, each GPU registered once, and again after it was away."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from agents import nvml, nvml_events
from agents.gpu import Xid

#: The error with which a GPU leaves the bus: nothing of it comes any more until it is registered again.
_LOST = 79
_MOST_AT_ONCE = 256


class Xids:
    """One thread waits; others may `forget` and `listen`. Errors are pynvml's."""

    def __init__(self) -> None:
        self._events: Any = None
        self._turn = threading.Lock()  # around what is registered; never held while waiting
        self._registered: dict[int, str] = {}  # UUIDs by the numbers of the handles
        self._mute: frozenset[str] = frozenset()  # those of them that have no such events

    @property
    def watched(self) -> frozenset[str]:
        """UUIDs of which events come, if there are any."""
        return frozenset(self._registered.values()) - self._mute

    @property
    def waits(self) -> bool:
        """Whether the driver keeps a set for us."""
        return self._events is not None

    def wait(self, timeout_ms: int) -> list[Xid]:
        """What has happened, in its order; waits at most `timeout_ms` for the first.

        A failure ends the set, as it must when a GPU was lost; the next call begins a new one.
        """
        found: list[Xid] = []
        try:
            self._register()
            while self._registered and len(found) < _MOST_AT_ONCE:
                event = nvml_events.wait(self._events, 0 if found else timeout_ms)
                if event is None:
                    break
                xid = self._named(event)
                if xid is not None:
                    found.append(xid)
        except nvml.Error:
            self.close()
            if not found:
                raise
        return found

    def forget(self, uuid: str) -> None:
        """Register this GPU anew: it was reset, which ends its registration."""
        with self._turn:
            self._registered = {number: its for number, its in self._registered.items() if its != uuid}

    def listen(self) -> None:
        """Register now what has no registration: what comes before the next wait is then kept for it.

        What fails is tried again by that wait.
        """
        with suppress(nvml.Error):
            self._register()

    def close(self) -> None:
        """Give the set back."""
        with self._turn:
            events, self._events = self._events, None
            self._registered, self._mute = {}, frozenset()
            if events is not None:
                with suppress(nvml.Error):
                    nvml_events.free(events)

    def _register(self) -> None:
        """Every GPU that has no registration under the handle that it has now."""
        with self._turn:
            self._register_all()

    def _register_all(self) -> None:
        if self._events is None:
            self._events = nvml_events.create()
        for index in range(nvml.count()):
            with suppress(nvml.Error):  # one that is lost now is tried again at the next call
                device = nvml.device(index)
                number = nvml_events.number(device)
                if number not in self._registered:
                    uuid = nvml.uuid(device)
                    if not nvml_events.register(device, self._events):
                        self._mute |= {uuid}
                    self._registered = {**self._registered, number: uuid}

    def _named(self, event: nvml_events.Event) -> Xid | None:
        """None for an event of a GPU that was reset meanwhile, whose handle means nothing any more."""
        uuid = self._registered.get(event.device)
        if uuid is None:
            return None
        if event.xid == _LOST:
            self.forget(uuid)
        return Xid(uuid, event.xid, event.gi, event.ci)
