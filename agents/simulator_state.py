"""The simulated driver's memory: DIR/driver.json, shared by processes and outliving them.

Not here: how the driver behaves (simulator_driver), what befalls the machine
(simulator_world) and what C sees (simulator_calls).
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gettext import gettext as _
from pathlib import Path

import msgspec

from pool.core import mig

_FILE, _LOCK = "driver.json", "driver.lock"
_NAMESPACE = uuid.UUID("5b1f0c2e-8a35-4a0e-9a0e-6a1c7f0d2b11")
_SPEC = re.compile(r"([1-9][0-9]?)x(.+)")
_MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class Plain:
    """A GPU that cannot do MIG, so that the catalogue does not have it."""

    nvml_name: str
    pci_device_id: int
    memory_mib: int


PLAIN = {
    "L40S-48GB": Plain("NVIDIA L40S", 0x26B910DE, 46068),
    "T4-16GB": Plain("Tesla T4", 0x1EB810DE, 15360),
}


#: A driver of 2021: its version, and functions that came with later ones.
OLD_DRIVER = "470.256.02"
NEWER_CALLS = (
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
)


class ComputeInstance(msgspec.Struct, kw_only=True):
    """`start` and `size` are compute slices; `serial` tells it from a later one of the same id."""

    id: int
    profile: int
    start: int
    size: int
    serial: int


class GpuInstance(msgspec.Struct, kw_only=True):
    """`start` and `size` are memory slices; ids come back, `serial` does not."""

    id: int
    profile_id: int
    start: int
    size: int
    serial: int
    inner: list[ComputeInstance] = []


class Gpu(msgspec.Struct, kw_only=True):
    """`epoch` counts resets, each of which makes every handle stale. `busy` is percent while MIG is off.

    `throttle` are NVML's bits, None: as its load makes them. `fabric` and `health` are NVML's state of
    the fabric and its summary, `fabric_error` is the code with which joining it ended.
    """

    uuid: str
    index: int
    model: str
    mig: bool = False
    pending: bool = False
    epoch: int = 0
    lost: bool = False
    passthrough: bool = False  # a virtual machine that cannot reset its GPU
    busy: int | None = None
    cluster: str | None = None
    clique: int = 0
    instances: list[GpuInstance] = []
    compute_mode: int = 0
    throttle: int | None = None
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remapped_correctable: int = 0
    remapped_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    links_down: int = 0
    fabric: int = 3
    fabric_error: int = 0
    health: int = 1


class Child(msgspec.Struct, kw_only=True):
    """A real process that this machine's driver reports on a GPU; `started` guards against a reused pid.

    `ours` False: it was started elsewhere, and is never ended from here. `mps`: a client of an MPS server.
    """

    pid: int
    started: str
    gpu: str
    gi: int | None
    ci: int | None
    memory_mib: int
    ours: bool = True
    mps: bool = False


class Xid(msgspec.Struct, kw_only=True):
    """An error event; `gi` only when it is attributable to an instance."""

    seq: int
    gpu: str
    number: int
    gi: int | None = None
    ci: int | None = None


class Machine(msgspec.Struct, kw_only=True):
    """All that a simulated node remembers.

    `permission` False: orders answer NO_PERMISSION. `missing` are C functions that this
    driver lacks; `faults` are the codes with which the next calls of a function fail.
    `profiles_when_off`: whether profiles are answered while MIG is off (drivers differ).
    `clients` are the processes that have the driver open: pid -> when it began.
    """

    seed: str
    machine_id: str
    boot_id: str
    driver: str = "595.71.05"
    permission: bool = True
    profiles_when_off: bool = True
    missing: list[str] = []
    faults: dict[str, list[int]] = {}
    serial: int = 0
    gpus: list[Gpu]
    children: list[Child] = []
    busy: dict[str, int] = {}  # percent by MIG UUID
    xids: list[Xid] = []
    clients: dict[str, str] = {}

    def draw(self) -> int:
        """A number that this machine never gives again."""
        self.serial += 1
        return self.serial

    def gpu(self, uuid: str) -> Gpu | None:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        return None


class Store:
    """The state in one folder. Several threads and processes may each have their own."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._path = str(self._file)  # looked at by every call of the driver
        self._lock = folder / _LOCK
        self._guard = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._machine: Machine | None = None

    def read(self) -> Machine:
        """The newest state, for looking only. Raises FileNotFoundError when there is none."""
        with self._guard:
            stat = os.stat(self._path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._machine is None or seen != self._seen:
                self._machine, self._seen = self._load(), seen
            return self._machine

    @contextmanager
    def edit(self) -> Iterator[Machine]:
        """The newest state, for changing; nobody else changes it meanwhile. An exception changes nothing."""
        with self._locked():
            machine = self._load()
            before = msgspec.json.encode(machine)
            yield machine
            after = msgspec.json.encode(machine)
            if after != before:
                self._save(after)

    def create(self, machine: Machine) -> None:
        """Begin with this state, unless there is one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._file.exists():
                self._save(msgspec.json.encode(machine))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock has a file of its own, since the state's file is replaced by each change.
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self) -> Machine:
        return msgspec.json.decode(self._file.read_bytes(), type=Machine)

    def _save(self, content: bytes) -> None:
        draft = self._file.with_suffix(".new")
        draft.write_bytes(content)
        # Always later than before, so that two changes within one tick of the clock look different.
        last = self._file.stat().st_mtime_ns if self._file.exists() else 0
        now = max(time.time_ns(), last + 1)
        os.utime(draft, ns=(now, now))
        draft.replace(self._file)


def create_state(
    folder: Path,
    spec: str,
    *,
    seed: str,
    cluster: str | None = None,
    clique: int = 0,
    mig: Sequence[int] = (),
    old_driver: bool = False,
) -> None:
    """Make a machine of `spec` ("8xH100-80GB", "4xGB200-186GB", "2xL40S-48GB", joined by "+").

    Keeps a state that is there. `seed` (the node's name) fixes machine id and GPU UUIDs;
    `cluster` is the NVLink domain's UUID; `mig` are the indices of GPUs that begin in MIG mode.
    `old_driver`: one without the newest calls. Raises ValueError for an unknown model, a bad count or index.
    """
    domain = None if cluster is None else _domain(cluster)
    gpus = [
        Gpu(uuid=_gpu_uuid(seed, index), index=index, model=model, cluster=domain, clique=clique)
        for index, model in enumerate(_models(spec))
    ]
    for index in mig:
        if not 0 <= index < len(gpus) or gpus[index].model in PLAIN:
            raise ValueError(_("GPU {index} of {spec} cannot be in MIG mode").format(index=index, spec=spec))
        gpus[index].mig = gpus[index].pending = True
    machine_id = uuid.uuid5(_NAMESPACE, f"machine {seed}").hex
    machine = Machine(seed=seed, machine_id=machine_id, boot_id=str(uuid.uuid4()), gpus=gpus)
    if old_driver:
        machine.driver, machine.missing = OLD_DRIVER, list(NEWER_CALLS)
    Store(folder).create(machine)


def machine_id(folder: Path) -> str:
    """Stable for the life of the folder: 32 hex digits."""
    return Store(folder).read().machine_id


def boot_id(folder: Path) -> str:
    """Changes with each `reboot`: a UUID."""
    return Store(folder).read().boot_id


def _models(spec: str) -> list[str]:
    found = []
    for part in spec.split("+"):
        match = _SPEC.fullmatch(part.strip())
        if not match or _model(match[2]) is None:
            known = ", ".join([*mig.models(), *PLAIN])
            sentence = _("{part!r} is not COUNTxMODEL with a model out of: {known}")
            raise ValueError(sentence.format(part=part, known=known))
        found += [str(_model(match[2]))] * int(match[1])
    if len(found) > _MOST_GPUS:
        raise ValueError(_("{spec} has more than {most} GPUs").format(spec=spec, most=_MOST_GPUS))
    return found


def _model(name: str) -> str | None:
    """The catalogue's name for a model or one of its other names."""
    if name in PLAIN:
        return name
    return next((model.name for model in mig.models().values() if name in (model.name, *model.aliases)), None)


def _domain(cluster: str) -> str:
    try:
        return str(uuid.UUID(cluster))
    except ValueError as error:
        raise ValueError(_("{cluster!r} is no UUID of an NVLink domain").format(cluster=cluster)) from error


def _gpu_uuid(seed: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed} {index}')}"
