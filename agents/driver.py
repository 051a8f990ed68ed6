"""The node's GPUs as one thing to look at and to change; every caller's door to `agents.nvml`.

Reads never raise for one bad GPU, orders raise `DriverRefusal`. No handle is
kept between calls, since any change may make handles stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from agents import nvml
from agents.gpu import DriverRefusal, Gpu, Instance, Inventory, Readings
from pool.core.wire import Process

_CODES = {
    nvml.NOT_SUPPORTED: "not_supported",
    nvml.NO_PERMISSION: "no_permission",
    nvml.GPU_IS_LOST: "gpu_is_lost",
    nvml.RESET_REQUIRED: "reset_required",
    nvml.IN_USE: "in_use",
    nvml.INSUFFICIENT_RESOURCES: "insufficient_resources",
}


class Driver:
    """An open connection to the driver; safe to share between threads."""

    def __init__(self) -> None:
        self._opened = False
        self._known: dict[str, Gpu] = {}  # identities by UUID, to name a GPU that no longer answers

    def open(self) -> None:
        """Load and initialise the library. Raises `DriverRefusal` (code driver)."""
        if not self._opened:
            with _refusals():
                nvml.start()
            self._opened = True

    def close(self) -> None:
        """Give the library back; harmless when not open."""
        if self._opened:
            self._opened = False
            with suppress(nvml.Error):  # a driver that is gone has nothing to take back
                nvml.stop()

    def __enter__(self) -> Driver:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> Inventory:
        """Everything about every GPU: identity, mode, offers, instances, processes, fabric.

        A GPU that answers nothing is in it with `lost`, under the identity last read.
        Raises `DriverRefusal` only when the driver itself does not answer.
        """
        found: dict[str, Gpu] = {}
        silent = []
        with _refusals():
            version = nvml.driver_version()
            for index in range(nvml.count()):
                gpu = self._look_at(index)
                if gpu is None:
                    silent.append(index)
                else:
                    found[gpu.uuid] = gpu
        lost = [replace(gpu, lost=True) for uuid, gpu in self._known.items() if uuid not in found]
        named = {gpu.index for gpu in lost}
        gpus = sorted([*found.values(), *lost], key=lambda gpu: (gpu.index, gpu.uuid))
        return Inventory(version, tuple(gpus), tuple(index for index in silent if index not in named))

    def gpu(self, uuid: str) -> Gpu:
        """One GPU, read now. Raises `DriverRefusal` (gpu_is_lost) when it is lost or not there."""
        with _refusals():
            index, device = self._find(uuid)
            return _complete(device, self._identify(device, index))

    def readings(self) -> dict[str, Readings]:
        """Instant values by GPU UUID; lost GPUs are left out. Cheap: meant for every 2 s."""
        values: dict[str, Readings] = {}
        with _refusals():
            for index in range(nvml.count()):
                try:
                    device = nvml.device(index)
                    values[nvml.uuid(device)] = nvml.readings(device)
                except nvml.Error as error:
                    _raise_without_driver(error)
        return values

    def set_mig_mode(self, uuid: str, on: bool) -> None:
        """Bring the GPU into MIG mode or out of it; returns when it is in force, does nothing if it is.

        Raises `DriverRefusal`: in_use (with holders) or reset_required when the driver
        accepted the wish but the change is only pending, not_supported, no_permission.
        """
        with _refusals():
            _, device = self._find(uuid)
            if nvml.mig_mode(device) == (on, on):
                return
            status = nvml.set_mig_mode(device, on)
            _, device = self._find(uuid)  # the change may have reset the GPU
            if nvml.mig_mode(device)[0] == on:
                return
            number = status or nvml.RESET_REQUIRED
            holders = nvml.running(device) if number == nvml.IN_USE else ()
            raise _refusal(number, "the change of the MIG mode is pending", holders or ())

    def create(self, uuid: str, profile_id: int, start: int, size: int) -> Instance:
        """Make a GPU instance at exactly this span and the compute instance that fills it.

        Returns what was read back, with its MIG UUID. On any failure the GPU instance
        is removed again and `DriverRefusal` says what the driver said.
        """
        with _refusals():
            _, device = self._find(uuid)
            handle = nvml.create_instance(device, profile_id, start, size)
            try:
                nvml.fill_instance(handle)
                made = self._read_back(uuid, nvml.instance_id(handle))
                if made is None or (made.profile_id, made.start, made.size) != (profile_id, start, size):
                    raise DriverRefusal("driver", None, "the new instance does not read back as asked for")
            except (nvml.Error, DriverRefusal) as error:
                raise _undo(handle, error) from error
            return made

    def destroy(self, uuid: str, gi: int) -> None:
        """Destroy the compute instances of a GPU instance, then itself; harmless when it is gone.

        Raises `DriverRefusal`: in_use (with holders), no_permission, gpu_is_lost.
        """
        with _refusals():
            _, device = self._find(uuid)
            try:
                handle = nvml.instance_by_id(device, gi)
            except nvml.Error as error:
                if error.value in (nvml.NOT_FOUND, nvml.NOT_SUPPORTED):  # with MIG off there is none
                    return
                raise
            try:
                nvml.destroy_instance(handle)
            except nvml.Error as error:
                holders = [one.processes for one in _instances(device) or () if one.gi == gi]
                raise _refusal(error.value, str(error), (holders and holders[0]) or ()) from error

    def _look_at(self, index: int) -> Gpu | None:
        """None when nothing identifies what is at this index now."""
        try:
            device = nvml.device(index)
            gpu = self._identify(device, index)
        except nvml.Error as error:
            _raise_without_driver(error)
            return None
        try:
            return _complete(device, gpu)
        except nvml.Error as error:
            _raise_without_driver(error)
            return replace(gpu, lost=True)

    def _identify(self, device: Any, index: int) -> Gpu:
        uuid = nvml.uuid(device)
        bus_id, device_id = nvml.pci(device)
        memory = nvml.memory(device)
        total = memory[1] if memory else None
        gpu = Gpu(uuid, index, nvml.name(device), bus_id, device_id, memory_total_mib=total)
        self._known[uuid] = gpu
        return gpu

    def _find(self, uuid: str) -> tuple[int, Any]:
        """Index and handle, by walking: the driver's call by UUID fails as soon as any GPU is lost."""
        known = self._known.get(uuid)
        for index in sorted(range(nvml.count()), key=lambda index: known is None or index != known.index):
            try:
                device = nvml.device(index)
                if nvml.uuid(device) == uuid:
                    return index, device
            except nvml.Error as error:
                _raise_without_driver(error)
        raise DriverRefusal("gpu_is_lost", nvml.GPU_IS_LOST, f"{uuid} does not answer")

    def _read_back(self, uuid: str, gi: int) -> Instance | None:
        """The instance as a fresh handle shows it; one without a MIG UUID does not count."""
        _, device = self._find(uuid)
        shown = _instances(device) or ()
        return next((one for one in shown if one.gi == gi and one.mig_uuid is not None), None)


def _complete(device: Any, gpu: Gpu) -> Gpu:
    capable, mig, pending = _mode(device)
    offers = (nvml.optional(nvml.offers, device) or ()) if capable else ()
    cluster, clique = nvml.fabric(device)
    return replace(
        gpu,
        mig_capable=capable,
        mig=mig,
        mig_pending=pending,
        grid=max((max(offer.starts) + offer.size for offer in offers), default=None),
        offers=offers,
        instances=_instances(device) if mig else (None if capable is None else ()),
        processes=nvml.running(device),
        fabric_cluster=cluster,
        fabric_clique=clique,
    )


def _mode(device: Any) -> tuple[bool | None, bool | None, bool | None]:
    """Whether it can do MIG at all, whether it does, whether it will after a reset."""
    try:
        return True, *nvml.mig_mode(device)
    except nvml.Error as error:
        nvml.raise_if_gone(error)
        return (False if error.value == nvml.NOT_SUPPORTED else None), None, None


def _instances(device: Any) -> tuple[Instance, ...] | None:
    """None when they cannot be read, also when they change faster than one can look."""
    for _ in range(3):
        try:
            return nvml.instances(device)
        except nvml.Error as error:
            nvml.raise_if_gone(error)
            if error.value not in (nvml.INVALID_ARGUMENT, nvml.NOT_FOUND):
                return None
    return None


def _undo(handle: Any, error: Exception) -> DriverRefusal:
    """Remove a half-made instance; what could not be removed is said beside the first failure."""
    first = error if isinstance(error, DriverRefusal) else _refusal(error.value, str(error))  # type: ignore[attr-defined]
    try:
        nvml.destroy_instance(handle)
    except nvml.Error as second:
        first.detail += f"; the GPU instance could not be removed again: {second}"
    return first


def _refusal(number: int, detail: str, holders: tuple[Process, ...] = ()) -> DriverRefusal:
    return DriverRefusal(_CODES.get(number, "driver"), number, detail, holders)


def _raise_without_driver(error: Any) -> None:
    """One GPU's trouble is its own; without the driver there is nothing to look at."""
    if error.value in nvml.NO_DRIVER:
        raise error


@contextmanager
def _refusals() -> Iterator[None]:
    """Errors of pynvml leave this module only as `DriverRefusal`."""
    try:
        yield
    except nvml.Error as error:
        raise _refusal(error.value, str(error)) from error
