"""Simulated processes are real: their pids, users, signals and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pynvml as n
import pytest

from agents import processes, simulator, simulator_processes, simulator_world
from agents.driver import Driver
from agents.simulator_state import Child, create_state

Open = Callable[..., tuple[Driver, Path]]
ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while processes.started(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.002)
    return processes.started(pid) is None


def test_it_is_reported_with_its_memory_until_it_ends(driver: Open) -> None:
    one, folder = driver("2xH100-80GB")
    uuid = one.look().gpus[1].uuid
    pid = simulator_world.process(folder, 1, memory_mib=1000)
    assert [(each.pid, each.memory_mib) for each in one.gpu(uuid).processes or ()] == [(pid, 1000)]
    assert one.readings()[uuid].memory_used_mib == 1000
    os.kill(pid, signal.SIGTERM)  # started above
    assert gone(pid)
    assert one.gpu(uuid).processes == ()
    assert one.readings()[uuid].memory_used_mib == 0


def test_instances_keep_their_processes_apart(driver: Open) -> None:
    one, folder = driver("1xH100-80GB", mig=(0,))
    uuid = one.look().gpus[0].uuid
    for start in (5, 2):
        one.create(uuid, 19, start, 1)
    pids = [simulator_world.process(folder, 0, number) for number in (0, 1)]
    shown = one.gpu(uuid).instances or ()
    assert [each.start for each in shown] == [2, 5]
    assert [[row.pid for row in each.processes or ()] for each in shown] == [[pids[0]], [pids[1]]]
    rows = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))
    assert {(row.pid, row.gpuInstanceId) for row in rows} == {(pids[0], shown[0].gi), (pids[1], shown[1].gi)}


def test_on_a_whole_gpu_it_is_in_no_instance(driver: Open) -> None:
    _, folder = driver("1xH100-80GB")
    simulator_world.process(folder, 0)
    (row,) = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))
    assert (row.gpuInstanceId, row.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_its_user_is_who_was_asked_for_or_it_is_refused(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    mine, other = os.getuid(), 54321
    pid = simulator_world.process(folder, 0, uid=mine)
    if mine == 0:
        pid = simulator_world.process(folder, 0, uid=other)
        shown = {each.pid: each.uid for each in one.look().gpus[0].processes or ()}
        assert shown[pid] == other
    else:
        with pytest.raises(PermissionError):
            simulator_world.process(folder, 0, uid=other)
        assert [each.pid for each in one.look().gpus[0].processes or ()] == [pid]


def test_it_outlives_whoever_started_it(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    command = [sys.executable, "-c", f"""
from pathlib import Path
from agents import simulator_world
print(simulator_world.process(Path({str(folder)!r}), 0), flush=True)
import time
time.sleep(600)
"""]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    assert [each.pid for each in one.look().gpus[0].processes or ()] == [pid]
    assert os.getsid(pid) != os.getsid(0)
    assert simulator_world.stop_processes(folder) == 1
    assert gone(pid)


def test_stopping_never_touches_a_process_that_took_over_a_pid(driver: Open) -> None:
    _, folder = driver("1xH100-80GB")
    with subprocess.Popen(["sleep", "100"]) as stranger:
        uuid = simulator.Session(folder).read().gpus[0].uuid
        with simulator.Session(folder).edit() as machine:
            reused = Child(pid=stranger.pid, started="12345", gpu=uuid, gi=None, ci=None, memory_mib=1)
            machine.children.append(reused)
        assert simulator_world.stop_processes(folder) == 0
        simulator_world.reboot(folder)
        assert stranger.poll() is None
        stranger.kill()


def test_the_ones_of_another_machine_are_left_alone(driver: Open, tmp_path: Path) -> None:
    one, folder = driver("1xH100-80GB")
    create_state(tmp_path / "other", "1xH100-80GB", seed="node-2")
    pid = simulator_world.process(folder, 0)
    assert simulator_world.stop_processes(tmp_path / "other") == 0
    assert [each.pid for each in one.look().gpus[0].processes or ()] == [pid]


def test_it_needs_a_slice_exactly_when_mig_is_on(driver: Open) -> None:
    one, folder = driver("2xH100-80GB", mig=(0,))
    with pytest.raises(ValueError, match="say which slice"):
        simulator_world.process(folder, 0)
    with pytest.raises(LookupError, match="has no slices now"):
        simulator_world.process(folder, 0, 0)
    with pytest.raises(ValueError, match="MIG is off"):
        simulator_world.process(folder, 1, 0)
    with pytest.raises(LookupError, match="no GPU 2"):
        simulator_world.process(folder, 2)
    assert all(gpu.processes == () for gpu in one.look().gpus)


def test_it_gets_no_more_memory_than_there_is(driver: Open) -> None:
    one, folder = driver("1xH100-80GB", mig=(0,))
    one.create(one.look().gpus[0].uuid, 19, 0, 1)
    simulator_world.process(folder, 0, 0, memory_mib=9000)
    with pytest.raises(ValueError, match="984 MiB are free"):
        simulator_world.process(folder, 0, 0, memory_mib=985)
    simulator_world.process(folder, 0, 0, memory_mib=984)


def test_a_lost_gpu_starts_none(driver: Open) -> None:
    _, folder = driver("1xH100-80GB")
    simulator_world.lose(folder, 0)
    with pytest.raises(ValueError, match="is lost"):
        simulator_world.process(folder, 0)


def test_a_working_gpu_is_busy_warm_and_hungry(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    (idle,) = one.readings().values()
    simulator_world.process(folder, 0)
    (working,) = one.readings().values()
    assert (idle.utilization_pct, working.utilization_pct) == (0, 95)
    assert (working.power_w or 0) > (idle.power_w or 0)
    assert (working.temperature_c or 0) > (idle.temperature_c or 0)


def test_how_busy_a_slice_is_shows_in_the_power_of_its_gpu(driver: Open) -> None:
    one, folder = driver("1xH100-80GB", mig=(0,))
    uuid = one.look().gpus[0].uuid
    made = one.create(uuid, 9, 0, 4)
    assert made.mig_uuid is not None
    simulator_world.process(folder, 0, 0)
    simulator_world.busy(folder, made.mig_uuid, 50)
    assert one.readings()[uuid].power_w == pytest.approx(70 + 530 * 0.25)
    simulator_world.busy(folder, made.mig_uuid, 0)
    assert one.readings()[uuid].power_w == pytest.approx(70)
    for nonsense in (-1, 101):
        with pytest.raises(ValueError, match="no percentage"):
            simulator_world.busy(folder, made.mig_uuid, nonsense)
    with pytest.raises(LookupError):
        simulator_world.busy(folder, uuid, 10)  # its MIG mode is on: only its slices are busy


def test_a_pid_with_another_start_is_not_alive() -> None:
    began = processes.started(os.getpid())
    assert began is not None
    assert simulator_processes.lives(os.getpid(), began)
    assert not simulator_processes.lives(os.getpid(), f"{began}0")


def test_it_can_be_another_program_with_an_environment_of_its_own() -> None:
    pid, began = simulator_processes.start(
        None, ["sleep", "1000"], {"GPUPOOL_RESERVATION": "r 1", "EMPTY": ""}
    )
    try:
        told = processes.describe(pid)
        assert (told.started, told.command) == (began, "sleep 1000")
        assert processes.facts_of(told).marks == {"GPUPOOL_RESERVATION": "r 1"}
    finally:
        simulator_processes.stop([(pid, began)])
    with pytest.raises(FileNotFoundError, match="no program nowhere"):
        simulator_processes.start(None, ["nowhere"])
