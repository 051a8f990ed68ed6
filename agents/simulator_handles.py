"""Handles of the simulated C functions, and one process's use of the driver.

A handle is a number that means nothing to anybody else; it is stale as soon as
what it stands for was destroyed or reset. Not here: what the functions do.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from agents import processes
from agents import simulator_driver as driver
from agents.simulator_driver import Failure, Ret
from agents.simulator_state import ComputeInstance, Gpu, GpuInstance, Machine, Store

_FIRST, _STEP = 0x6000_0000_0000, 0x40
_T = TypeVar("_T")


class Session:
    """What this process's handles mean, and how often it initialised the driver.

    Safe between threads: the state's own lock guards the machine, `guard` the rest.
    """

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self._meanings: dict[int, tuple[Any, ...]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._drawn = 0
        self._call = threading.local()
        self.guard = threading.RLock()
        self.opened = 0
        #: Event sets: of each registered GPU the number of its resets then, and from which event on.
        self.wanted: dict[int, dict[str, tuple[int, int]]] = {}
        #: What the buffers of GPM hold, by their numbers.
        self.samples: dict[int, Any] = {}
        #: When the energy of a GPU was last added up, and how much it was (mJ).
        self.energy: dict[str, tuple[float, float]] = {}

    def read(self) -> Machine:
        machine: Machine | None = getattr(self._call, "machine", None)
        return machine or self._store.read()

    def begin(self) -> Machine:
        """A call begins: until its `end` this thread sees the machine as it is now, unless it waits."""
        machine: Machine = self._store.read()
        self._call.machine = machine
        return machine

    def end(self) -> None:
        self._call.machine = None

    def wait(self) -> None:
        """From here on this call sees what changes."""
        self.end()

    def edit(self) -> AbstractContextManager[Machine]:
        return self._store.edit()

    def come(self) -> None:
        """This process now has the driver open; a real one knows it, too."""
        with self.edit() as machine:
            machine.clients = driver.clients(machine)
            machine.clients[str(os.getpid())] = processes.started(os.getpid()) or ""

    def go(self) -> None:
        with self.edit() as machine:
            machine.clients.pop(str(os.getpid()), None)

    def handle(self, *meaning: Any) -> int:
        """The same meaning has the same number."""
        with self.guard:
            if meaning not in self._numbers:
                number = _FIRST + _STEP * self.draw()
                self._numbers[meaning], self._meanings[number] = number, meaning
            return self._numbers[meaning]

    def draw(self) -> int:
        """A number that this process has not had before."""
        with self.guard:
            self._drawn += 1
            return self._drawn

    def drop(self, handle: int) -> None:
        """From now on it means nothing."""
        with self.guard:
            self._numbers.pop(self._meanings.pop(handle, ()), None)

    def gpu_handle(self, gpu: Gpu) -> int:
        return self.handle("gpu", gpu.uuid, gpu.epoch)

    def inner_handle(self, kind: str, gpu: Gpu, inner: GpuInstance | ComputeInstance) -> int:
        """Of a GPU instance ("gi"), a compute instance ("ci") or its MIG device ("mig")."""
        return self.handle(kind, gpu.uuid, gpu.epoch, inner.serial)

    def meaning(self, handle: Any, *kinds: str) -> tuple[Any, ...]:
        """INVALID_ARGUMENT for NULL, for a number never given, and for another kind of handle."""
        number = ctypes.c_void_p.from_buffer(handle).value if handle else None
        found = self._meanings.get(number or 0)
        if found is None or found[0] not in kinds:
            raise Failure(Ret.INVALID_ARGUMENT)
        return found

    def gpu(self, machine: Machine, handle: Any) -> Gpu:
        """The GPU itself, not one of its MIG devices."""
        _, uuid, epoch = self.meaning(handle, "gpu")
        return _reachable(machine, uuid, epoch)

    def device(self, machine: Machine, handle: Any) -> tuple[Gpu, GpuInstance | None, ComputeInstance | None]:
        """A GPU, or a MIG device with the instances that it stands for."""
        if self.meaning(handle, "gpu", "mig")[0] == "gpu":
            return self.gpu(machine, handle), None, None
        return self.mig(machine, handle)

    def instance(self, machine: Machine, handle: Any) -> tuple[Gpu, GpuInstance]:
        _, uuid, epoch, serial = self.meaning(handle, "gi")
        gpu = _reachable(machine, uuid, epoch)
        return gpu, _one(instance for instance in gpu.instances if instance.serial == serial)

    def mig(self, machine: Machine, handle: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        return self._inner(machine, handle, "mig")

    def compute(self, machine: Machine, handle: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        return self._inner(machine, handle, "ci")

    def _inner(self, machine: Machine, handle: Any, kind: str) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        _, uuid, epoch, serial = self.meaning(handle, kind)
        gpu = _reachable(machine, uuid, epoch)
        pairs = ((instance, inner) for instance in gpu.instances for inner in instance.inner)
        return gpu, *_one(pair for pair in pairs if pair[1].serial == serial)


def _reachable(machine: Machine, uuid: str, epoch: int) -> Gpu:
    gpu = machine.gpu(uuid)
    if gpu is None:
        raise Failure(Ret.INVALID_ARGUMENT)
    if gpu.lost:
        raise Failure(Ret.GPU_IS_LOST)
    if gpu.epoch != epoch:
        raise Failure(Ret.INVALID_ARGUMENT)
    return gpu


def _one(found: Iterable[_T]) -> _T:
    for each in found:
        return each
    raise Failure(Ret.INVALID_ARGUMENT)
