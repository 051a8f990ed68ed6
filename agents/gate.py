"""A gate before the driver: many threads may be inside together, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Whoever wants to be alone goes before those who come after. Not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._taken = False

    @property
    def taken(self) -> bool:
        """Whether somebody is alone inside, or waits for it."""
        return self._taken

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._taken = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()
