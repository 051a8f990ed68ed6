"""Error events as the driver's callers get them: each once, of every GPU, also after it was away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from agents import simulator_world
from agents.driver import Driver
from agents.gpu import Xid

Open = Callable[..., tuple[Driver, Path]]


def test_each_is_told_once_with_its_gpu(driver: Open) -> None:
    one, folder = driver("8xH100-80GB")
    uuids = [gpu.uuid for gpu in one.look().gpus]
    assert one.xids(1) == []
    for index in (7, 0, 3):
        simulator_world.xid(folder, index, 31 + index)
    assert one.xids(1000) == [Xid(uuids[7], 38), Xid(uuids[0], 31), Xid(uuids[3], 34)]
    assert one.xids(1) == []


def test_what_came_between_two_questions_is_kept(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    one.xids(1)
    simulator_world.xid(folder, 0, 13)
    one.look()
    one.readings()
    assert [xid.number for xid in one.xids(1000)] == [13]


def test_one_of_an_instance_names_it(driver: Open) -> None:
    one, folder = driver("1xH100-80GB", mig=(0,))
    uuid = one.look().gpus[0].uuid
    made = one.create(uuid, 9, 4, 4)
    one.xids(1)
    simulator_world.xid(folder, 0, 94, slice=0)
    assert one.xids(1000) == [Xid(uuid, 94, made.gi, made.ci)]


def test_a_lost_gpu_is_told_and_silences_no_other(driver: Open) -> None:
    one, folder = driver("8xH100-80GB")
    uuids = [gpu.uuid for gpu in one.look().gpus]
    one.xids(1)
    simulator_world.xid(folder, 2, 79)
    assert one.xids(1000) == [Xid(uuids[2], 79)]
    simulator_world.xid(folder, 6, 48)
    assert one.xids(1000) == [Xid(uuids[6], 48)]


def test_a_lost_gpu_is_heard_again_when_it_is_back(driver: Open) -> None:
    one, folder = driver("2xH100-80GB")
    uuids = [gpu.uuid for gpu in one.look().gpus]
    one.xids(1)
    simulator_world.xid(folder, 0, 79)
    one.xids(1000)
    simulator_world.reboot(folder)
    assert one.xids(1) == []
    for index in (0, 1):
        simulator_world.xid(folder, index, 13)
    assert one.xids(1000) == [Xid(uuids[0], 13), Xid(uuids[1], 13)]


def test_a_gpu_that_changed_its_mode_by_a_reset_is_heard_from_then_on(driver: Open) -> None:
    one, folder = driver("1xA100-40GB")
    uuid = one.look().gpus[0].uuid
    one.xids(1)
    one.set_mig_mode(uuid, True)
    simulator_world.xid(folder, 0, 31)
    assert one.xids(1000) == [Xid(uuid, 31)]


def test_a_gpu_that_was_reset_while_nobody_had_it_open_is_heard_again(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    uuid = one.look().gpus[0].uuid
    one.xids(1)
    with one.away():
        simulator_world.reset(folder, uuid)
        assert one.xids(1) == []
    simulator_world.xid(folder, 0, 31)
    assert one.xids(1000) == [Xid(uuid, 31)]


def test_a_gpu_that_changes_its_mode_while_somebody_waits_is_heard_from_then_on(driver: Open) -> None:
    one, folder = driver("2xH100-80GB")
    uuid = one.look().gpus[0].uuid
    got: list[list[Xid]] = []
    one.xids(1)
    waiting = threading.Thread(target=lambda: got.append(one.xids(20_000)))
    waiting.start()
    one.set_mig_mode(uuid, True)
    simulator_world.xid(folder, 0, 31)
    waiting.join(20)
    assert (got or [one.xids(1000)]) == [[Xid(uuid, 31)]]


def test_nobody_is_listened_to_before_the_first_wait(driver: Open) -> None:
    one, _ = driver("1xA100-40GB")
    one.set_mig_mode(one.look().gpus[0].uuid, True)
    with one.away():
        pass
    assert one.watched() == frozenset()


def test_it_is_told_of_which_gpus_none_would_be_heard(driver: Open) -> None:
    one, folder = driver("3xH100-80GB")
    uuids = [gpu.uuid for gpu in one.look().gpus]
    assert one.watched() == frozenset()
    simulator_world.fail_next(folder, "nvmlDeviceGetSupportedEventTypes", 3)
    one.xids(1)
    assert one.watched() == {uuids[1], uuids[2]}
    simulator_world.xid(folder, 2, 79)
    one.xids(1000)
    one.xids(1)
    assert one.watched() == {uuids[1]}
    one.close()
    assert one.watched() == frozenset()


def test_a_failing_wait_begins_anew(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    one.xids(1)
    simulator_world.fail_next(folder, "nvmlEventSetWait_v2", 15, 999)
    assert one.xids(1) == one.xids(1) == one.xids(1) == []
    simulator_world.xid(folder, 0, 31)
    assert [xid.number for xid in one.xids(1000)] == [31]


def test_without_events_or_a_driver_the_time_is_waited_out(driver: Open) -> None:
    """Else a loop around it would never rest."""
    one, folder = driver("1xH100-80GB")
    simulator_world.fail_next(folder, "nvmlEventSetCreate", 3)
    for prepare in (lambda: None, one.close):
        prepare()
        began = time.monotonic()
        assert one.xids(30) == []
        assert time.monotonic() - began >= 0.03


def test_it_waits_beside_other_questions_and_lets_the_driver_be_closed(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    got: list[list[Xid]] = []
    one.xids(1)

    def wait() -> None:
        got.append(one.xids(20_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert len(one.look().gpus) == 1
    simulator_world.xid(folder, 0, 48)
    waiting.join(20)
    one.close()
    assert [[xid.number for xid in some] for some in got] == [[48]]
