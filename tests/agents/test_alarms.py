"""The thread that waits for error events: hands them on in order, and outlives what nobody foresaw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import alarms
from agents import simulator_world as world
from agents.alarms import Alarms
from agents.driver import Driver
from agents.gpu import Xid
from tests.agents.stand_in import WAIT_S

Open = Callable[..., tuple[Driver, Path]]


class Bench:
    """Two GPUs, and who waits for their errors."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.uuids = [gpu.uuid for gpu in driver.look().gpus]
        driver.xids(0)  # only from now on the driver keeps events for this process
        self.news = threading.Event()
        self.alarms = Alarms(driver, self.news.set)

    def next(self) -> list[Xid]:
        assert self.news.wait(WAIT_S)
        self.news.clear()
        return self.alarms.take()


@pytest.fixture
def bench(driver: Open) -> Iterator[Bench]:
    one = Bench(*driver("2xH100-80GB"))
    yield one
    one.alarms.stop(WAIT_S)


def test_an_error_is_handed_on_once(bench: Bench) -> None:
    bench.alarms.start()
    world.xid(bench.folder, 1, 31)
    assert bench.next() == [Xid(bench.uuids[1], 31)]
    assert bench.alarms.take() == []


def test_what_came_before_anybody_asked_is_there_in_order(bench: Bench) -> None:
    for number in (43, 45):
        world.xid(bench.folder, 0, number)
    bench.alarms.start()
    found = bench.next()
    while len(found) < 2:
        found += bench.next()
    assert [one.number for one in found] == [43, 45]


def test_the_thread_outlives_what_nobody_foresaw(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "PAUSE_S", 0.01)
    usual, failures = bench.driver.xids, iter([RuntimeError("odd"), OSError("odd too")])

    def xids(timeout_ms: int) -> list[Xid]:
        for error in failures:
            raise error
        return usual(timeout_ms)

    monkeypatch.setattr(bench.driver, "xids", xids)
    bench.alarms.start()
    world.xid(bench.folder, 0, 13)
    assert [one.number for one in bench.next()] == [13]


def test_it_ends_with_the_agent(bench: Bench) -> None:
    bench.alarms.start()
    bench.alarms.stop(WAIT_S)
    assert "alarms" not in [thread.name for thread in threading.enumerate()]
