"""The device files of GPUs and instances, by the kernel's tables of a simulated machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agents import devices, simulator_devices
from agents.devices import Node
from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu, Instance
from agents.place import Place

Open = Callable[..., tuple[Driver, Path]]
SLICE = Instance(gi=1, ci=0, mig_uuid="MIG-1", profile_id=9, profile="3g.40gb", start=0, size=4)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    one = Place(tmp_path)
    simulator_devices.lay_out(one.root, 4)
    return one


def test_everybody_needs_the_control_and_the_unified_memory(place: Place) -> None:
    assert devices.of_everybody(place) == (
        Node("/dev/nvidiactl", 195, 255),
        Node("/dev/nvidia-uvm", 235, 0),
        Node("/dev/nvidia-uvm-tools", 235, 1),
    )


def test_a_gpu_is_its_minor(place: Place) -> None:
    assert devices.of_card(place, 3) == Node("/dev/nvidia3", 195, 3)


@pytest.mark.parametrize(
    ("minor", "gi", "ci", "numbers"), [(0, 0, 0, (3, 4)), (0, 1, 0, (12, 13)), (31, 14, 7, (4314, 4322))]
)
def test_an_instance_is_two_capabilities(
    place: Place, minor: int, gi: int, ci: int, numbers: tuple[int, int]
) -> None:
    """The numbers are those of the MIG guide."""
    found = devices.of_instance(place, minor, replace(SLICE, gi=gi, ci=ci))
    assert tuple(node.minor for node in found) == numbers
    assert found[0] == Node(f"/dev/nvidia-caps/nvidia-cap{numbers[0]}", 234, numbers[0], "r")


def test_an_instance_without_a_compute_part_cannot_be_handed_out(place: Place) -> None:
    with pytest.raises(DriverRefusal, match="no compute part") as refusal:
        devices.of_instance(place, 0, replace(SLICE, ci=None))
    assert refusal.value.code == "access"


def test_a_driver_that_is_not_loaded_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(DriverRefusal, match="module nvidia is not loaded"):
        devices.of_everybody(place)
    with pytest.raises(DriverRefusal, match="module nvidia is not loaded"):
        devices.of_card(place, 0)
    with pytest.raises(DriverRefusal, match="no capability"):
        devices.of_instance(place, 0, SLICE)


def test_unified_memory_is_loaded_by_nvidias_program_where_it_lacks(place: Place) -> None:
    table = place.root / "proc/devices"
    whole = table.read_text()
    table.write_text(whole.replace("235 nvidia-uvm\n", ""))
    with pytest.raises(DriverRefusal, match="module nvidia-uvm is not loaded"):
        devices.of_everybody(place)
    loader = place.root / "usr/bin/nvidia-modprobe"
    loader.parent.mkdir(parents=True)
    loader.write_text(
        f'#!/bin/sh\ntest "$*" = "-u -c 0" || exit 1\nsed -i "/234 nvidia-caps/a 235 nvidia-uvm" {table}\n'
    )
    loader.chmod(0o755)
    assert Node("/dev/nvidia-uvm", 235, 0) in devices.of_everybody(place)


def test_an_older_driver_has_another_name(place: Place) -> None:
    table = place.root / "proc/devices"
    table.write_text(table.read_text().replace("195 nvidia\n", "195 nvidia-frontend\n"))
    assert devices.of_card(place, 0).major == 195


def test_a_block_device_is_no_group_of_ours(place: Place) -> None:
    names = devices.groups(place)
    assert "pts" in names
    assert "blkext" not in names
    assert not [name for name in names if name.startswith("nvidia")]


def test_every_gpu_with_a_file_is_found(place: Place) -> None:
    assert devices.cards(place) == (0, 1, 2, 3)


class TestMinor:
    def test_the_driver_says_it(self, driver: Open) -> None:
        opened, folder = driver("2xH100-80GB")
        assert [devices.minor_of(Place(folder), gpu) for gpu in opened.look().gpus] == [0, 1]

    def test_an_old_driver_wrote_it_down(self, place: Place) -> None:
        note = place.root / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
        note.parent.mkdir(parents=True)
        note.write_text("Model: \t NVIDIA H100\nDevice Minor: \t 5\n")
        gpu = Gpu("GPU-1", 0, "NVIDIA H100", pci_bus_id="00000000:1B:00.0")
        assert devices.minor_of(place, gpu) == 5

    def test_a_gpu_without_one_cannot_be_handed_out(self, place: Place) -> None:
        with pytest.raises(DriverRefusal, match="which device"):
            devices.minor_of(place, Gpu("GPU-1", 0, "NVIDIA H100"))


def test_a_machine_is_laid_out_once(place: Place) -> None:
    (place.root / "proc/devices").write_text("Character devices:\n")
    simulator_devices.lay_out(place.root, 4)
    assert (place.root / "proc/devices").read_text() == "Character devices:\n"


def test_an_imex_channel_is_made_where_it_is_missing(place: Place) -> None:
    """On a simulated machine an empty file stands for the device."""
    node = devices.of_imex(place, 7)
    assert node == Node("/dev/nvidia-caps-imex-channels/channel7", 236, 7)
    assert (place.root / node.path[1:]).exists()
    assert devices.of_imex(place, 7) == node


def test_a_driver_without_imex_channels_says_so(place: Place) -> None:
    table = place.root / "proc/devices"
    table.write_text(table.read_text().replace("236 nvidia-caps-imex-channels\n", ""))
    with pytest.raises(DriverRefusal, match="no IMEX channels") as refusal:
        devices.of_imex(place, 0)
    assert refusal.value.code == "access"


def test_on_a_real_machine_it_is_a_device_of_the_drivers_number(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int, int]] = []

    def mknod(path: Path, mode: int, device: int) -> None:
        made.append((path.name, mode, device))
        path.touch()

    monkeypatch.setattr(devices.os, "mknod", mknod)
    monkeypatch.setattr(Place, "root", property(lambda self: self.folder / "root"))
    real = Place(place.folder, real=True)
    devices.of_imex(real, 3)
    assert made == [("channel3", stat.S_IFCHR | 0o666, os.makedev(236, 3))]
    # What is there but is not this device is made anew.
    devices.of_imex(real, 3)
    assert len(made) == 2
    assert stat.S_IMODE((real.root / "dev/nvidia-caps-imex-channels/channel3").stat().st_mode) == 0o666


def test_where_it_cannot_be_made_the_refusal_names_it(place: Place) -> None:
    (place.root / "dev/nvidia-caps-imex-channels").touch()
    with pytest.raises(DriverRefusal, match="channel1 was not made"):
        devices.of_imex(place, 1)
