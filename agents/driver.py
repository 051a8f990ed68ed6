"""The node's GPUs as one thing to look at and to change; every caller's door to `agents.nvml`.

Reads never raise for one bad GPU, orders raise `DriverRefusal`. No handle is
kept between calls, since any change may make handles stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from agents import driver_looks as looks
from agents import nvml, nvml_mig, nvml_readings
from agents.dcgm import Dcgm
from agents.driver_looks import raise_without_driver, refusal, refusals
from agents.gate import Gate
from agents.gpu import DriverRefusal, Gpu, Instance, Inventory, Readings, Xid
from agents.imex import Imex
from agents.nvml_gpm import Gpm
from agents.xids import Xids

#: The name of a GPU that does not tell it.
UNNAMED = "unknown"


class Driver:
    """An open connection to the driver; safe to share between threads."""

    def __init__(self, dcgm: Dcgm | None = None, imex: Imex | None = None) -> None:
        self._opened = False
        self._known: dict[str, Gpu] = {}  # identities by UUID, to name a GPU that no longer answers
        self._gate = Gate()
        self._geometry = looks.Geometry()
        self._gpm = Gpm()
        self._xids = Xids()
        self._dcgm = dcgm or Dcgm(None)
        self._imex = imex or Imex()

    def open(self) -> None:
        """Load and initialise the library. Raises `DriverRefusal` (code driver)."""
        if not self._opened:
            with self._gate.alone(), refusals():
                self._start()

    def close(self) -> None:
        """Give the library back; harmless when not open."""
        with self._gate.alone():
            self._stop()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Have nothing open meanwhile: a GPU cannot be reset while anybody, and be it this process, has it.

        Questions of other threads wait until the block ends, `readings` and `xids` are empty.
        Raises `DriverRefusal` (code driver) when the library cannot be opened again.
        """
        with self._gate.alone():
            opened, heard = self._opened, self._xids.waits
            self._stop()
            try:
                yield
            finally:
                if opened:
                    with refusals():
                        self._start()
                if heard:
                    self._xids.listen()

    def _start(self) -> None:
        if not self._opened:
            nvml.start()
            self._opened = True

    def _stop(self) -> None:
        if self._opened:
            self._geometry.forget()
            self._gpm.forget()
            self._xids.close()
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

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Beside other threads' questions; errors of pynvml leave only as `DriverRefusal`."""
        with self._gate.together(), refusals():
            yield

    def look(self) -> Inventory:
        """Everything about every GPU: identity, mode, offers, instances, processes, health, wiring.

        Never raises for one GPU: a lost one is listed with `lost` as far as this
        process has read its identity before, else only its index is. Raises
        `DriverRefusal` (code driver) when the driver itself does not answer.
        """
        with self._asked():
            version, count = nvml.driver_version(), nvml.count()
            identified = [(index, self._identified(index)) for index in range(count)]
            handles = {pair[1].uuid: pair[0] for _, pair in identified if pair is not None}
            uuids = looks.by_bus_id(self._known.values())
            found = {
                gpu.uuid: looks.complete_or_lost(device, gpu, self._geometry, handles, uuids)
                for device, gpu in (pair for _, pair in identified if pair is not None)
            }
        lost = [replace(gpu, lost=True) for uuid, gpu in self._known.items() if uuid not in found]
        named = {gpu.index for gpu in lost}
        gpus = sorted([*found.values(), *lost], key=lambda gpu: (gpu.index, gpu.uuid))
        silent = tuple(index for index, pair in identified if pair is None and index not in named)
        # Outside a domain there is no daemon to ask.
        imex = self._imex.state() if any(gpu.fabric_cluster for gpu in gpus) else None
        return Inventory(version, tuple(gpus), silent, imex)

    def gpu(self, uuid: str) -> Gpu:
        """One GPU without its wiring, read now. Raises `DriverRefusal` (gpu_is_lost) when it is lost or
        not there."""
        with self._asked():
            index, device = self._find(uuid)
            return looks.complete(device, self._identify(device, index), self._geometry)

    def readings(self) -> dict[str, Readings]:
        """Instant values by GPU UUID; lost GPUs are left out. Cheap: meant for every 2 s."""
        values: dict[str, Readings] = {}
        if self._gate.taken:
            return values
        with self._asked():
            for index in range(nvml.count()):
                try:
                    device = nvml.device(index)
                    uuid = nvml.uuid(device)
                    values[uuid] = self._measured(device, uuid)
                except nvml.Error as error:
                    raise_without_driver(error)
        return looks.with_dcgm(values, self._dcgm)

    def _measured(self, device: Any, uuid: str) -> Readings:
        values = looks.with_activity(nvml_readings.readings(device), self._gpm.activity(device, uuid))
        instances = {
            gi: looks.with_instance_activity(one, self._gpm.activity(device, uuid, gi))
            for gi, one in nvml_readings.instances(device).items()
        }
        return replace(values, instances=instances)

    def xids(self, timeout_ms: int) -> list[Xid]:
        """Error events in their order; [] after `timeout_ms` without one, also while the driver is not there.

        For one thread, which calls it again and again: events that come between two calls are kept.
        """
        until = time.monotonic() + timeout_ms / 1000
        found: list[Xid] = []
        if not self._gate.taken:
            with suppress(DriverRefusal), self._asked():
                found = self._xids.wait(timeout_ms)
        if not found:
            # An answer that came too early must not turn the caller's loop into a busy one.
            time.sleep(max(0.0, until - time.monotonic()))
        return found

    def watched(self) -> frozenset[str]:
        """UUIDs of the GPUs whose error events `xids` gets now: of any other none means nothing."""
        return self._xids.watched

    def set_mig_mode(self, uuid: str, on: bool) -> None:
        """Bring the GPU into MIG mode or out of it; returns when it is in force, does nothing if it is.

        Raises `DriverRefusal`: in_use (with holders) or reset_required when the driver
        accepted the wish but the change is only pending, not_supported, no_permission.
        """
        with self._asked():
            if nvml.mig_mode(self._find(uuid)[1]) == (on, on):
                return
            status = self._change_mig_mode(uuid, on)
            if self._xids.waits:
                self._xids.listen()
        if status == nvml.IN_USE and self._xids.waits:
            # Where the change is a reset, our own wait for error events may be one user too many.
            with self._gate.alone(), refusals():
                self._xids.close()
                status = self._change_mig_mode(uuid, on)
                self._xids.listen()
        if status:
            with self._asked():
                holders = nvml.running(self._find(uuid)[1]) if status == nvml.IN_USE else ()
            raise refusal(status, "the change of the MIG mode is pending", holders or ())

    def _change_mig_mode(self, uuid: str, on: bool) -> int:
        """0 when it is in force, else the activation status: why it is only pending."""
        status = nvml.set_mig_mode(self._find(uuid)[1], on)
        self._forget(uuid)
        _, device = self._find(uuid)  # the change may have reset the GPU
        return 0 if nvml.mig_mode(device)[0] == on else status or nvml.RESET_REQUIRED

    def set_compute_mode(self, uuid: str, mode: str) -> None:
        """default, exclusive_process or prohibited; returns when it is in force, does nothing if it is.

        Raises `DriverRefusal`: not_supported, no_permission, gpu_is_lost, driver.
        """
        with self._asked():
            _, device = self._find(uuid)
            if nvml.compute_mode(device) == mode:
                return
            nvml.set_compute_mode(device, mode)
            now = nvml.compute_mode(device)
            if now != mode:
                raise DriverRefusal("driver", None, f"the compute mode is {now}, not {mode} as asked for")

    def create(self, uuid: str, profile_id: int, start: int, size: int) -> Instance:
        """Make a GPU instance at exactly this span and the compute instance that fills it.

        Returns what was read back, with its MIG UUID. On any failure the GPU instance
        is removed again and `DriverRefusal` says what the driver said.
        """
        with self._asked():
            _, device = self._find(uuid)
            handle = nvml_mig.create_instance(device, profile_id, start, size)
            self._gpm.forget(uuid)
            try:
                nvml_mig.fill_instance(handle)
                made = self._read_back(uuid, nvml_mig.instance_id(handle))
                if made is None or (made.profile_id, made.start, made.size) != (profile_id, start, size):
                    raise DriverRefusal("driver", None, "the new instance does not read back as asked for")
            except (nvml.Error, DriverRefusal) as error:
                raise _undo(handle, error) from error
            return made

    def destroy(self, uuid: str, gi: int) -> None:
        """Destroy the compute instances of a GPU instance, then itself; harmless when it is gone.

        Raises `DriverRefusal`: in_use (with holders), no_permission, gpu_is_lost.
        """
        with self._asked():
            _, device = self._find(uuid)
            try:
                handle = nvml_mig.instance_by_id(device, gi)
            except nvml.Error as error:
                if error.value in (nvml.NOT_FOUND, nvml.NOT_SUPPORTED):  # with MIG off there is none
                    return
                raise
            self._gpm.forget(uuid)
            try:
                nvml_mig.destroy_instance(handle)
            except nvml.Error as error:
                holders = [
                    one.processes
                    for one in looks.instances(device, uuid, self._geometry) or ()
                    if one.gi == gi
                ]
                raise refusal(error.value, str(error), (holders and holders[0]) or ()) from error

    def _forget(self, uuid: str) -> None:
        """What was kept of a GPU that may have been reset."""
        self._geometry.forget(uuid)
        self._gpm.forget(uuid)
        self._xids.forget(uuid)

    def _identified(self, index: int) -> tuple[Any, Gpu] | None:
        """None when nothing identifies what is at this index now."""
        try:
            device = nvml.device(index)
            return device, self._identify(device, index)
        except nvml.Error as error:
            raise_without_driver(error)
            return None

    def _identify(self, device: Any, index: int) -> Gpu:
        """What cannot be read of it now is what it was before; only the UUID has to answer."""
        uuid = nvml.uuid(device)
        known = self._known.get(uuid) or Gpu(uuid, index, UNNAMED)
        bus_id, device_id = nvml.pci(device)
        memory, minor = nvml.memory(device), nvml.minor(device)
        self._known[uuid] = gpu = Gpu(
            uuid,
            index,
            nvml.name(device) or known.name,
            bus_id or known.pci_bus_id,
            known.pci_device_id if device_id is None else device_id,
            memory.total if memory else known.memory_total_mib,
            minor=known.minor if minor is None else minor,
        )
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
                raise_without_driver(error)
        raise DriverRefusal("gpu_is_lost", nvml.GPU_IS_LOST, f"{uuid} does not answer")

    def _read_back(self, uuid: str, gi: int) -> Instance | None:
        """The instance as a fresh handle shows it; one without a MIG UUID does not count."""
        _, device = self._find(uuid)
        shown = looks.instances(device, uuid, self._geometry) or ()
        return next((one for one in shown if one.gi == gi and one.mig_uuid is not None), None)


def _undo(handle: Any, error: Exception) -> DriverRefusal:
    """Remove a half-made instance; what could not be removed is said beside the first failure."""
    first = error if isinstance(error, DriverRefusal) else refusal(error.value, str(error))  # type: ignore[attr-defined]
    try:
        nvml_mig.destroy_instance(handle)
    except nvml.Error as second:
        first.detail += f"; the GPU instance could not be removed again: {second}"
    return first
