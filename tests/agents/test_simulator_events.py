"""Error events of the simulated driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from agents import simulator_world
from agents.driver import Driver

Open = Callable[..., tuple[Driver, Path]]


def registered(*indices: int) -> Any:
    events = n.nvmlEventSetCreate()
    for index in indices:
        device = n.nvmlDeviceGetHandleByIndex(index)
        wanted = n.nvmlDeviceGetSupportedEventTypes(device) & n.nvmlEventTypeXidCriticalError
        n.nvmlDeviceRegisterEvents(device, wanted, events)
    return events


def none_comes(events: Any) -> bool:
    with pytest.raises(n.NVMLError_Timeout):
        n.nvmlEventSetWait_v2(events, 1)
    return True


def test_an_error_comes_once_to_whoever_registered_for_its_gpu(driver: Open) -> None:
    _, folder = driver("2xH100-80GB")
    first, second, both = registered(0), registered(1), registered(0, 1)
    assert none_comes(first)
    simulator_world.xid(folder, 1, 31)
    for events in (second, both):
        event = n.nvmlEventSetWait_v2(events, 1000)
        assert (event.eventType, event.eventData) == (n.nvmlEventTypeXidCriticalError, 31)
        assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
        assert n.nvmlDeviceGetIndex(event.device) == 1
        assert none_comes(events)
    assert none_comes(first)


def test_errors_come_in_their_order(driver: Open) -> None:
    _, folder = driver("2xH100-80GB")
    events = registered(0, 1)
    for gpu, number in ((0, 13), (1, 94), (0, 45)):
        simulator_world.xid(folder, gpu, number)
    assert [n.nvmlEventSetWait_v2(events, 1000).eventData for _ in range(3)] == [13, 94, 45]


def test_an_error_from_before_the_registration_does_not_come(driver: Open) -> None:
    _, folder = driver("1xH100-80GB")
    simulator_world.xid(folder, 0, 31)
    assert none_comes(registered(0))


def test_an_error_of_an_instance_names_it(driver: Open) -> None:
    one, folder = driver("1xH100-80GB", mig=(0,))
    made = one.create(one.look().gpus[0].uuid, 9, 4, 4)
    events = registered(0)
    simulator_world.xid(folder, 0, 31, slice=0)
    event = n.nvmlEventSetWait_v2(events, 1000)
    assert (event.gpuInstanceId, event.computeInstanceId) == (made.gi, made.ci)


def test_xid_79_is_told_and_takes_the_gpu_away(driver: Open) -> None:
    one, folder = driver("2xH100-80GB")
    one.look()
    events = registered(0, 1)
    simulator_world.xid(folder, 0, simulator_world.XID_LOST)
    event = n.nvmlEventSetWait_v2(events, 1000)
    assert event.eventData == 79
    with pytest.raises(n.NVMLError_GpuIsLost):
        n.nvmlDeviceGetUUID(event.device)
    assert [gpu.lost for gpu in one.look().gpus] == [True, False]


def test_waiting_holds_up_nobody_and_ends_with_the_event(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    events = registered(0)
    got: list[int] = []

    def wait() -> None:
        got.append(n.nvmlEventSetWait_v2(events, 30_000).eventData)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began = time.monotonic()
    assert len(one.look().gpus) == 1
    simulator_world.xid(folder, 0, 48)
    waiting.join(timeout=20)
    assert got == [48]
    assert time.monotonic() - began < 20


def test_a_freed_set_gives_nothing_and_other_events_are_not_supported(driver: Open) -> None:
    _, folder = driver("1xH100-80GB")
    events = registered(0)
    n.nvmlEventSetFree(events)
    simulator_world.xid(folder, 0, 31)
    with pytest.raises(n.NVMLError):
        n.nvmlEventSetWait_v2(events, 1)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceRegisterEvents(
            n.nvmlDeviceGetHandleByIndex(0), n.nvmlEventTypePState, n.nvmlEventSetCreate()
        )
