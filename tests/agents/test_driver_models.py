"""The complete MIG sequence on every model of the catalogue, carved and read back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.gpu import DriverRefusal, Instance
from pool.core import mig

Open = Callable[..., tuple[Driver, Path]]


def shown(driver: Driver, uuid: str) -> tuple[Instance, ...]:
    instances = driver.gpu(uuid).instances
    assert instances is not None
    return instances


@pytest.mark.parametrize("model", sorted(mig.models()))
def test_a_model_is_brought_into_mig_carved_in_every_way_and_back(driver: Open, model: str) -> None:
    one, _ = driver(f"1x{model}")
    entry = mig.models()[model]
    (gpu,) = one.look().gpus
    assert (gpu.mig_capable, gpu.mig) == (True, False)
    assert mig.identify(gpu.name, gpu.pci_device_id, gpu.memory_total_mib) == entry
    one.set_mig_mode(gpu.uuid, True)
    gpu = one.gpu(gpu.uuid)
    assert (gpu.mig, gpu.mig_pending, gpu.grid) == (True, True, entry.grid)
    assert {(offer.profile_id, offer.name, offer.starts) for offer in gpu.offers} == {
        (profile.profile_id, profile.name, profile.starts) for profile in entry.profiles
    }
    for profile in entry.profiles:
        fill_and_clear(one, gpu.uuid, profile)
    one.set_mig_mode(gpu.uuid, False)
    assert (one.gpu(gpu.uuid).mig, one.gpu(gpu.uuid).instances) == (False, ())


def fill_and_clear(driver: Driver, uuid: str, profile: mig.Profile) -> None:
    """As many of one profile as the GPU holds; the next is refused; all go again."""
    made: list[Instance] = []
    taken: list[mig.Slice] = []
    while room := mig.room(profile, taken):
        made.append(driver.create(uuid, profile.profile_id, room[0], profile.size))
        taken.append(mig.Slice(profile, room[0]))
    assert len(made) == mig.most(profile)
    assert shown(driver, uuid) == tuple(sorted(made, key=lambda each: each.start))
    assert {(each.profile, each.size) for each in made} == {(profile.name, profile.size)}
    assert len({each.mig_uuid for each in made}) == len(made)
    assert all(each.sm and each.memory_total_mib for each in made)
    with pytest.raises(DriverRefusal) as caught:
        driver.create(uuid, profile.profile_id, profile.starts[0], profile.size)
    assert caught.value.code == "insufficient_resources"
    assert len(driver.readings()[uuid].instances) == len(made)
    for each in made:
        driver.destroy(uuid, each.gi)
    assert shown(driver, uuid) == ()


@pytest.mark.parametrize(
    ("name", "starts"), [("3g.93gb", (0, 4)), ("1g.47gb", (0, 2, 4, 6)), ("1g.23gb", tuple(range(7)))]
)
def test_a_gb200_is_cut_into_two_into_four_and_into_seven(
    driver: Open, name: str, starts: tuple[int, ...]
) -> None:
    one, folder = driver("4xGB200-186GB", mig=(2,))
    uuid = one.look().gpus[2].uuid
    offer = next(offer for offer in one.gpu(uuid).offers if offer.name == name)
    for start in starts:
        one.create(uuid, offer.profile_id, start, offer.size)
    assert [(each.profile, each.start, each.size) for each in shown(one, uuid)] == [
        (name, start, offer.size) for start in starts
    ]
    assert [len(gpu.instances or ()) for gpu in one.look().gpus] == [0, 0, len(starts), 0]
    pid = simulator_world.process(folder, 2, len(starts) - 1)
    used = [[each.pid for each in one.processes or ()] for one in shown(one, uuid)]
    assert used == [[]] * (len(starts) - 1) + [[pid]]


@pytest.mark.parametrize("name", ["3g.93gb", "1g.47gb", "1g.23gb"])
def test_a_cut_gb200_is_seen_whole_by_another_driver(driver: Open, name: str) -> None:
    """Another process, which knows nothing of what was made."""
    one, folder = driver("1xGB200-186GB", mig=(0,))
    (gpu,) = one.look().gpus
    offer = next(offer for offer in gpu.offers if offer.name == name)
    for start in offer.starts:
        one.create(gpu.uuid, offer.profile_id, start, offer.size)
    before = shown(one, gpu.uuid)
    one.close()
    simulator.install(folder)
    with Driver() as other:
        assert shown(other, gpu.uuid) == before


def test_a_three_does_not_go_beside_a_four_that_overlaps(driver: Open) -> None:
    one, _ = driver("1xH100-80GB", mig=(0,))
    uuid = one.look().gpus[0].uuid
    one.create(uuid, 5, 0, 4)
    with pytest.raises(DriverRefusal) as caught:
        one.create(uuid, 9, 0, 4)
    assert (caught.value.code, caught.value.nvml) == ("insufficient_resources", 23)
    assert one.create(uuid, 9, 4, 4).start == 4


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (19, "in_use"),
        (16, "reset_required"),
        (4, "no_permission"),
        (23, "insufficient_resources"),
        (3, "not_supported"),
        (15, "gpu_is_lost"),
        (999, "driver"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceDestroy",
        "nvmlComputeInstanceDestroy",
        "nvmlDeviceSetMigMode",
    ],
)
def test_each_refusal_of_the_driver_keeps_its_number_and_changes_nothing(
    driver: Open, function: str, code: int, word: str
) -> None:
    one, folder = driver("2xH100-80GB", mig=(0, 1))
    uuid, other = (gpu.uuid for gpu in one.look().gpus)
    made = one.create(uuid, 19, 0, 1)
    simulator_world.fail_next(folder, function, code)
    order = {
        "nvmlDeviceSetMigMode": partial(one.set_mig_mode, other, False),
        "nvmlGpuInstanceDestroy": partial(one.destroy, uuid, made.gi),
        "nvmlComputeInstanceDestroy": partial(one.destroy, uuid, made.gi),
    }.get(function, partial(one.create, uuid, 19, 3, 1))
    with pytest.raises(DriverRefusal) as caught:
        order()
    assert (caught.value.code, caught.value.nvml) == (word, code)
    assert [(each.start, each.gi) for each in shown(one, uuid)] == [(0, made.gi)]
    assert one.gpu(other).mig is True
    one.destroy(uuid, made.gi)
    assert shown(one, uuid) == ()


class TestEightGpus:
    def test_one_that_is_lost_hides_none_of_the_others_in_any_question(self, driver: Open) -> None:
        one, folder = driver("8xH100-80GB", mig=tuple(range(8)))
        uuids = [gpu.uuid for gpu in one.look().gpus]
        for uuid in uuids:
            one.create(uuid, 19, 0, 1)
        simulator_world.lose(folder, 4)
        seen = one.look()
        assert [gpu.uuid for gpu in seen.gpus] == uuids
        assert [gpu.lost for gpu in seen.gpus] == [index == 4 for index in range(8)]
        assert [len(gpu.instances or ()) for gpu in seen.gpus if not gpu.lost] == [1] * 7
        assert set(one.readings()) == set(uuids) - {uuids[4]}
        for uuid in uuids:
            if uuid == uuids[4]:
                with pytest.raises(DriverRefusal, match="does not answer"):
                    one.create(uuid, 19, 1, 1)
            else:
                assert one.create(uuid, 19, 1, 1).start == 1

    def test_it_is_itself_again_after_a_reboot(self, driver: Open) -> None:
        one, folder = driver("8xH100-80GB")
        uuids = [gpu.uuid for gpu in one.look().gpus]
        simulator_world.lose(folder, 0)
        assert [gpu.lost for gpu in one.look().gpus] == [True] + [False] * 7
        simulator_world.reboot(folder)
        assert [(gpu.uuid, gpu.lost) for gpu in one.look().gpus] == [(uuid, False) for uuid in uuids]


class TestAway:
    def test_a_gpu_is_reset_only_while_nobody_has_it_open(self, driver: Open) -> None:
        one, folder = driver("2xH100-80GB", mig=(0,))
        first, second = one.look().gpus
        one.create(first.uuid, 19, 0, 1)
        simulator_world.ecc(folder, 0, uncorrected=1)
        simulator_world.remap(folder, 0)
        with pytest.raises(ValueError, match="is in use by"):
            simulator_world.reset(folder, first.uuid)
        with one.away():
            simulator_world.reset(folder, first.uuid)
            assert one.readings() == {}
        after = one.gpu(first.uuid)
        assert (after.mig, after.instances, after.health.ecc_uncorrected) == (True, (), 0)
        assert after.health.remapped is not None
        assert (after.health.remapped.pending, after.health.remapped.uncorrectable) == (False, 1)
        assert one.gpu(second.uuid).lost is False

    def test_a_driver_that_is_closed_stays_closed(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        one.close()
        with one.away():
            pass
        with pytest.raises(DriverRefusal) as caught:
            one.look()
        assert caught.value.nvml == 1

    def test_it_is_opened_again_after_a_failure_too(self, driver: Open) -> None:
        one, _ = driver("1xH100-80GB")
        with pytest.raises(LookupError), one.away():
            raise LookupError
        assert len(one.look().gpus) == 1

    def test_a_driver_that_does_not_come_back_is_a_refusal(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB")
        with pytest.raises(DriverRefusal) as caught, one.away():
            (folder / "driver.json").rename(folder / "gone.json")
        assert (caught.value.code, caught.value.nvml) == ("driver", 9)
        (folder / "gone.json").rename(folder / "driver.json")
        one.open()
        assert len(one.look().gpus) == 1
