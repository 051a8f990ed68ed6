"""The way to a GPU, in demo, tests and production: the unmodified pynvml, here and in nvml_*.py.

One function a question or an order, on a device handle; values come back plain.
Errors are pynvml's (`Error`, `error.value`). Here: the library, devices and what
every other module needs; nvml_mig, nvml_readings, nvml_health, nvml_gpm and
nvml_events hold the rest. Not here: which GPUs there are, what is lost, refusals
and rollback (agents.driver).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml as n

from agents import processes
from pool.core.wire import Process

Error: Any = n.NVMLError  # no stubs: typed Any, used only in `except`

INVALID_ARGUMENT: int = n.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED: int = n.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION: int = n.NVML_ERROR_NO_PERMISSION
NOT_FOUND: int = n.NVML_ERROR_NOT_FOUND
GPU_IS_LOST: int = n.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED: int = n.NVML_ERROR_RESET_REQUIRED
IN_USE: int = n.NVML_ERROR_IN_USE
INSUFFICIENT_RESOURCES: int = n.NVML_ERROR_INSUFFICIENT_RESOURCES
#: Errors of the driver as a whole; no other GPU would answer either.
NO_DRIVER = (n.NVML_ERROR_UNINITIALIZED, n.NVML_ERROR_DRIVER_NOT_LOADED, n.NVML_ERROR_LIBRARY_NOT_FOUND)
#: What a driver answers that is older than the question.
OLD_DRIVER = (n.NVML_ERROR_FUNCTION_NOT_FOUND, n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
MIB = 1024 * 1024

_COMPUTE_MODES = {
    "default": n.NVML_COMPUTEMODE_DEFAULT,
    "exclusive_thread": n.NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
    "prohibited": n.NVML_COMPUTEMODE_PROHIBITED,
    "exclusive_process": n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
}


class Memory(NamedTuple):
    """MiB. `reserved` is what the driver keeps for itself; older drivers count it as used."""

    used: int
    total: int
    free: int
    reserved: int | None


def start() -> None:
    """Load and initialise the library."""
    n.nvmlInit()


def stop() -> None:
    """Give the library back."""
    n.nvmlShutdown()


def driver_version() -> str | None:
    """As the driver writes it: "580.95.05"."""
    version: str | None = optional(n.nvmlSystemGetDriverVersion)
    return version


def count() -> int:
    """GPUs that the driver counts, also those that no longer answer."""
    return int(n.nvmlDeviceGetCount())


def device(index: int) -> Any:
    """The handle of the GPU at `index`; keep it for no longer than one question."""
    return n.nvmlDeviceGetHandleByIndex(index)


def uuid(device: Any) -> str:
    """Of a GPU ("GPU-...") or of a MIG device ("MIG-...")."""
    return str(n.nvmlDeviceGetUUID(device))


def name(device: Any) -> str | None:
    """The product's name."""
    word: str | None = optional(n.nvmlDeviceGetName, device)
    return word


def minor(device: Any) -> int | None:
    """N of /dev/nvidiaN."""
    number: int | None = optional(n.nvmlDeviceGetMinorNumber, device)
    return number


def pci(device: Any) -> tuple[str | None, int | None]:
    """Bus id ("00000000:1B:00.0") and device id (0x233010DE)."""
    info = optional(n.nvmlDeviceGetPciInfo, device)
    return (text(info.busId), info.pciDeviceId) if info else (None, None)


def mig_mode(device: Any) -> tuple[bool, bool]:
    """Whether MIG is on, and whether it will be after the next reset."""
    current, pending = n.nvmlDeviceGetMigMode(device)
    return bool(current), bool(pending)


def set_mig_mode(device: Any, on: bool) -> int:
    """Returns the activation status, which is no exception: 0, IN_USE or RESET_REQUIRED."""
    return int(n.nvmlDeviceSetMigMode(device, n.NVML_DEVICE_MIG_ENABLE if on else n.NVML_DEVICE_MIG_DISABLE))


def compute_mode(device: Any) -> str | None:
    """Who may compute on it: default (everybody), exclusive_process, prohibited; None: not told."""
    number = optional(n.nvmlDeviceGetComputeMode, device)
    return next((word for word, its in _COMPUTE_MODES.items() if its == number), None)


def set_compute_mode(device: Any, word: str) -> None:
    """Raises KeyError for a word that is no mode."""
    n.nvmlDeviceSetComputeMode(device, _COMPUTE_MODES[word])


def running(device: Any) -> tuple[Process, ...] | None:
    """What computes (by itself or as a client of MPS) or draws on a GPU or MIG device, by pid;
    None when the driver does not tell."""
    found: dict[int, Process] = {}
    for kind in ("Graphics", "MPSCompute", "Compute"):
        try:
            rows = _rows(kind, device)
        except n.NVMLError as error:
            raise_if_gone(error)
            if kind != "Compute" and error.value in (*OLD_DRIVER, NOT_SUPPORTED):
                continue  # a GPU that only computes draws nothing, and a driver without MPS has no clients
            return None
        found.update({row.pid: _process(row, computes=kind != "Graphics") for row in rows})
    return tuple(one for _, one in sorted(found.items()))


def _rows(kind: str, device: Any) -> list[Any]:
    rows: list[Any]
    try:
        rows = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses_v3")(device)
    except n.NVMLError_FunctionNotFound:
        rows = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses_v2")(device)
    return rows


def _process(row: Any, *, computes: bool) -> Process:
    used = None if row.usedGpuMemory is None else row.usedGpuMemory // MIB
    return processes.describe(row.pid, memory_mib=used, computes=computes)


def memory(device: Any) -> Memory | None:
    """Of a GPU or a MIG device; only version 2 does not count what the driver keeps for itself as used."""
    info = optional(n.nvmlDeviceGetMemoryInfo, device, n.nvmlMemory_v2)
    if info is not None:
        return Memory(info.used // MIB, info.total // MIB, info.free // MIB, info.reserved // MIB)
    info = optional(n.nvmlDeviceGetMemoryInfo, device)
    return Memory(info.used // MIB, info.total // MIB, info.free // MIB, None) if info else None


def newest(call: Callable[..., Any], *args: Any) -> Any:
    """The struct with a name where the driver has it, else the first version."""
    try:
        return call(*args, version=2)
    except n.NVMLError as error:
        if error.value not in OLD_DRIVER:
            raise
        return call(*args, version=1)


def optional(call: Callable[..., Any], *args: Any) -> Any:
    """None where this GPU or this driver does not have the reading; a lost GPU still raises."""
    try:
        return call(*args)
    except n.NVMLError as error:
        raise_if_gone(error)
        return None


def raise_if_gone(error: Any) -> None:
    """Pass on what says that the GPU, or the driver, answers nothing any more."""
    if error.value in (*NO_DRIVER, GPU_IS_LOST):
        raise error


def text(value: str | bytes) -> str:
    """Structs of pynvml decode some of their fields themselves."""
    return value if isinstance(value, str) else value.decode(errors="replace")
