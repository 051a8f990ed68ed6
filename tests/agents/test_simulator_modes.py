"""How long MIG mode and instances last, per generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml as n
import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.gpu import DriverRefusal
from pool.core import mig

Open = Callable[..., tuple[Driver, Path]]


@pytest.mark.parametrize("model", sorted(mig.models()))
def test_only_ampere_keeps_its_mode_over_a_reboot_and_nothing_keeps_its_instances(
    driver: Open, model: str
) -> None:
    one, folder = driver(f"1x{model}")
    uuid = one.look().gpus[0].uuid
    one.set_mig_mode(uuid, True)
    offer = one.gpu(uuid).offers[0]
    before = one.create(uuid, offer.profile_id, offer.starts[0], offer.size)
    simulator_world.reboot(folder)
    after = one.gpu(uuid)
    assert after.uuid == uuid
    assert after.mig is (mig.models()[model].arch == "ampere")
    assert after.mig_pending is after.mig
    assert after.instances == ()
    one.set_mig_mode(uuid, True)
    again = one.create(uuid, offer.profile_id, offer.starts[0], offer.size)
    assert again.mig_uuid == before.mig_uuid


def test_a_pending_change_comes_true_at_the_reboot_of_an_ampere(driver: Open) -> None:
    one, folder = driver("1xA100-40GB+1xH100-80GB")
    for index, gpu in enumerate(one.look().gpus):
        simulator_world.process(folder, index)
        with pytest.raises(DriverRefusal):
            one.set_mig_mode(gpu.uuid, True)
    simulator_world.reboot(folder)
    ampere, hopper = one.look().gpus
    assert (ampere.mig, ampere.mig_pending) == (True, True)
    assert (hopper.mig, hopper.mig_pending) == (False, False)


def test_the_activation_status_is_no_exception(driver: Open) -> None:
    _, folder = driver("3xA100-40GB", mig=(1,))
    with simulator.Session(folder).edit() as machine:
        machine.gpus[2].passthrough = True
    simulator_world.process(folder, 0)
    busy, used, virtual = (n.nvmlDeviceGetHandleByIndex(index) for index in range(3))
    n.nvmlDeviceCreateGpuInstance(used, 19)
    assert n.nvmlDeviceSetMigMode(busy, 1) == n.NVML_ERROR_IN_USE
    assert n.nvmlDeviceGetMigMode(busy) == [0, 1]
    assert n.nvmlDeviceSetMigMode(used, 0) == n.NVML_ERROR_IN_USE
    assert n.nvmlDeviceGetMigMode(used) == [1, 0]
    assert n.nvmlDeviceSetMigMode(virtual, 1) == n.NVML_ERROR_RESET_REQUIRED
    assert n.nvmlDeviceGetMigMode(virtual) == [0, 1]
    assert n.nvmlDeviceSetMigMode(virtual, 0) == n.NVML_SUCCESS
    assert n.nvmlDeviceGetMigMode(virtual) == [0, 0]


def test_a_virtual_machine_needs_no_reset_on_hopper(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    with simulator.Session(folder).edit() as machine:
        machine.gpus[0].passthrough = True
    uuid = one.look().gpus[0].uuid
    one.set_mig_mode(uuid, True)
    assert one.gpu(uuid).mig is True


def test_a_reboot_ends_processes_brings_lost_gpus_back_and_has_a_new_boot_id(driver: Open) -> None:
    from agents.simulator_processes import lives
    from agents.simulator_state import boot_id, machine_id

    one, folder = driver("2xH100-80GB")
    simulator_world.process(folder, 0)
    simulator_world.lose(folder, 1)
    (child,) = simulator.Session(folder).read().children
    boot, machine = boot_id(folder), machine_id(folder)
    assert [gpu.lost for gpu in one.look().gpus] == [False]
    simulator_world.reboot(folder)
    assert not lives(child.pid, child.started)
    assert [gpu.lost for gpu in one.look().gpus] == [False, False]
    assert one.look().gpus[0].processes == ()
    assert boot_id(folder) != boot
    assert machine_id(folder) == machine
