"""The device files by which a GPU or one of its instances is reached (NVIDIA MIG guide, "Device nodes").

Numbers come from the kernel's own tables, so that a file that is not there yet
has one too. Not here: who may use them (access, access_unix, cdi).
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agents.gpu import DriverRefusal, Gpu, Instance
from agents.machine import program, run
from agents.place import Place

_CONTROL_MINOR = 255
#: The driver's name in /proc/devices: the older one first.
_DRIVER = ("nvidia-frontend", "nvidia")
_UVM, _CAPS, _IMEX = "nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels"
#: As NVIDIA's IMEX guide makes them; who may open one is the control group's affair.
_MODE = 0o666
_CARD = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A character device; `permissions` as control groups write them."""

    path: str
    major: int
    minor: int
    permissions: str = "rw"


def of_everybody(place: Place) -> tuple[Node, ...]:
    """What every user of any GPU opens: the driver's control and its unified memory.

    Raises `DriverRefusal` (access) when the driver is not loaded.
    """
    majors = _majors(place)
    if _UVM not in majors:
        _load(place, "-u", "-c", "0")
        majors = _majors(place)
    driver = next((majors[name] for name in _DRIVER if name in majors), None)
    if driver is None or _UVM not in majors:
        missing = _UVM if driver is not None else "nvidia"
        raise DriverRefusal("access", None, f"the kernel module {missing} is not loaded")
    return (
        Node("/dev/nvidiactl", driver, _CONTROL_MINOR),
        Node("/dev/nvidia-uvm", majors[_UVM], 0),
        Node("/dev/nvidia-uvm-tools", majors[_UVM], 1),
    )


def of_card(place: Place, minor: int) -> Node:
    """The GPU's own file. With MIG on it opens nothing without an instance's."""
    majors = _majors(place)
    driver = next((majors[name] for name in _DRIVER if name in majors), None)
    if driver is None:
        raise DriverRefusal("access", None, "the kernel module nvidia is not loaded")
    return Node(f"/dev/nvidia{minor}", driver, minor)


def of_instance(place: Place, minor: int, one: Instance) -> tuple[Node, ...]:
    """The two capabilities of an instance: of its memory part and of its compute part."""
    if one.ci is None:
        raise DriverRefusal("access", None, f"the instance {one.gi} has no compute part")
    major = _majors(place).get(_CAPS)
    minors = _capabilities(place)
    names = (f"gpu{minor}/gi{one.gi}/access", f"gpu{minor}/gi{one.gi}/ci{one.ci}/access")
    if major is None or any(name not in minors for name in names):
        raise DriverRefusal("access", None, f"the driver names no capability for {names[0]}")
    found = tuple(
        Node(f"/dev/nvidia-caps/nvidia-cap{minors[name]}", major, minors[name], "r") for name in names
    )
    for name, node in zip(names, found, strict=True):
        if not (place.root / node.path[1:]).exists():
            instance = name.replace(f"gpu{minor}/", f"gpu{minor}/mig/")
            _load(place, "-f", f"/proc/driver/nvidia/capabilities/{instance}")
    return found


def of_imex(place: Place, channel: int) -> Node:
    """By which a booking's GPUs on several nodes share memory (NVIDIA IMEX guide, "IMEX channels").

    The driver makes no file for it, and none outlives a boot, so it is made here where it is missing.
    """
    major = _majors(place).get(_IMEX)
    if major is None:
        raise DriverRefusal("access", None, "the driver has no IMEX channels")
    node = Node(f"/dev/{_IMEX}/channel{channel}", major, channel)
    try:
        _make(place, node)
    except OSError as error:
        raise DriverRefusal("access", None, f"{node.path} was not made: {error}") from error
    return node


def _make(place: Place, node: Node) -> None:
    path = place.root / node.path[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not place.real:
        path.touch()
        return
    device = os.makedev(node.major, node.minor)
    with suppress(FileNotFoundError):
        there = path.lstat()
        if stat.S_ISCHR(there.st_mode) and there.st_rdev == device:
            return
        # Loaded anew, the driver has another number.
        path.unlink()
    os.mknod(path, stat.S_IFCHR | _MODE, device)
    path.chmod(_MODE)


def minor_of(place: Place, gpu: Gpu) -> int:
    """The number in /dev/nvidiaN, which is not the driver's index. Raises `DriverRefusal` (access)."""
    if gpu.minor is not None:
        return gpu.minor
    bus = (gpu.pci_bus_id or "").lower()
    note = place.root / "proc/driver/nvidia/gpus" / bus[-12:] / "information"
    with suppress(OSError):
        for line in note.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Device Minor" and value.strip().isdecimal():
                return int(value)
    raise DriverRefusal("access", None, f"the driver does not tell which device {gpu.uuid} is")


def cards(place: Place) -> tuple[int, ...]:
    """The minors of all GPUs that have a file."""
    found = (_CARD.fullmatch(path.name) for path in (place.root / "dev").glob("nvidia*"))
    return tuple(sorted(int(match[1]) for match in found if match))


def groups(place: Place) -> tuple[str, ...]:
    """The kernel's groups of character devices, without NVIDIA's."""
    return tuple(sorted(name for name in _table(place)[0] if not name.startswith("nvidia")))


def _majors(place: Place) -> dict[str, int]:
    return _table(place)[0]


def _table(place: Place) -> tuple[dict[str, int], dict[str, int]]:
    """/proc/devices: majors by name, of character and of block devices."""
    kinds: tuple[dict[str, int], dict[str, int]] = ({}, {})
    into = kinds[0]
    for line in _lines(place.root / "proc/devices"):
        number, _, name = line.strip().partition(" ")
        if line.startswith("Block"):
            into = kinds[1]
        elif number.isdecimal():
            into.setdefault(name.strip(), int(number))
    return kinds


def _capabilities(place: Place) -> dict[str, int]:
    """/proc/driver/nvidia-caps/mig-minors: fixed for all instances that could ever be."""
    found = {}
    for line in _lines(place.root / "proc/driver/nvidia-caps/mig-minors"):
        name, _, number = line.strip().rpartition(" ")
        if name and number.isdecimal():
            found[name] = int(number)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _load(place: Place, *words: str) -> None:
    """Ask NVIDIA's own program to load a module or make a file; whether it did shows afterwards."""
    loader = program(place, "nvidia-modprobe")
    if loader is not None:
        with suppress(DriverRefusal):
            run([loader, *words], "access")
