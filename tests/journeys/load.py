"""People who book and release all the time, try again after failures, and remember what they were told."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from types import TracebackType

import httpx

from tests.journeys.journey import OVERLAPS, SLICE, Journey
from tests.stack import await_

#: What somebody who is told so may try again: not ready, busy, no answer at all.
AGAIN = (503,)


class Load:
    """While it is entered, threads book single slices with a key each, and release them a little later."""

    def __init__(self, journey: Journey, people: int = 2) -> None:
        self.granted: dict[str, str] = {}
        self.refused: set[str] = set()
        self.odd: list[str] = []
        self.statuses: Counter[str] = Counter()
        self._journey = journey
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._live, daemon=True) for _ in range(people)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def await_more(self, count: int = 4) -> None:
        """Until so many more bookings have been granted."""
        wanted = len(self.granted) + count
        await_(lambda: self.odd or len(self.granted) >= wanted, f"{count} more bookings are granted", 60)

    def check(self) -> None:
        """What was granted is there once, what was refused is not there, and nobody was told nonsense."""
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.odd, self.odd
        rows = self._journey.rows(
            "SELECT title, count(*), min(id::text) FROM pool_reservation GROUP BY title"
        )
        found = {title: (count, first) for title, count, first in rows}
        for key, booked in self.granted.items():
            assert found.get(key) == (1, booked), (key, booked, found.get(key))
        assert not self.refused & found.keys()
        assert not self._journey.rows(OVERLAPS)

    def _live(self) -> None:
        try:
            while not self._ended.is_set():
                key = f"load-{uuid.uuid4()}"
                booked = self._book(key)
                self._ended.wait(0.3)
                if booked is not None:
                    self._release(booked)
        except Exception as error:
            self.odd.append(repr(error))

    def _book(self, key: str) -> str | None:
        """The id once it is granted; the same key until there is an answer."""
        while True:
            answer = self._try(lambda: self._journey.ask(SLICE, title=key, key=key))
            if answer is None:
                continue
            if answer.status_code == 201:
                self.granted[key] = answer.json()["id"]
                return self.granted[key]
            if answer.status_code == 409 and answer.json()["code"] == "no_capacity":
                self.refused.add(key)
                return None
            if answer.json().get("code") != "in_progress":
                self.odd.append(f"{answer.status_code} {answer.text[:300]}")
                return None

    def _release(self, booked: str) -> None:
        """The second of two tries finds it released; that is as good."""
        path = f"/reservations/{booked}/release"
        while True:
            answer = self._try(lambda: self._journey.stack.ask("POST", path, {}, "lena"))
            if answer is None:
                continue
            if answer.status_code != 200 and answer.json().get("code") != "wrong_state":
                self.odd.append(f"{answer.status_code} {answer.text[:300]}")
            return

    def _try(self, request: Callable[[], httpx.Response]) -> httpx.Response | None:
        """None, after a moment, when it should be tried again."""
        try:
            answer = request()
        except httpx.TransportError as error:
            self.statuses[type(error).__name__] += 1
        else:
            self.statuses[str(answer.status_code)] += 1
            if answer.status_code not in AGAIN:
                return answer
        time.sleep(0.2)
        return None
