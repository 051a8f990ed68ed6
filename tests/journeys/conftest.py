"""One running product for all journeys of a session; one that is left unwhole is replaced by a new one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

from tests.journeys.journey import MODEL, NODE, Journey
from tests.stack import Stack, stack

#: Two GPUs for slices, one that is booked whole.
MACHINE = f"3x{MODEL}"
WHOLE = ((NODE, 2),)
#: Short, so that "at the next report" and "after three reports" are soon.
REPORT_SECONDS = 2

#: Its first turn, 15 s early, so that the first journey need not wait for its heartbeat.
_SLOW_LANE = """
from pool.queries import clock
from pool.services import lanes
lanes.slow(now=clock.now())
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/journeys/" in str(item.path):
            item.add_marker(pytest.mark.journey)


class Products:
    """The one that runs, if any."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._running: Stack | None = None

    def get(self) -> Stack:
        if self._running is None:
            start = stack({NODE: MACHINE}, whole=WHOLE, report_seconds=REPORT_SECONDS)
            self._running = self._exits.enter_context(start)
            self._running.python(_SLOW_LANE)
            Journey(self._running).await_whole()
        return self._running

    def throw_away(self) -> None:
        self._running = None
        self._exits.close()


@pytest.fixture(scope="session")
def products() -> Iterator[Products]:
    found = Products()
    yield found
    found.throw_away()


@pytest.fixture
def journey(products: Products) -> Generator[Journey]:
    """The product, whole and with nothing booked; afterwards it is so again, or is thrown away."""
    made = Journey(products.get())
    try:
        yield made
        made.give_all_back()
        made.await_whole()
    except BaseException:
        products.throw_away()
        raise
