"""How a GPU is, and how it is wired to its neighbours, by pynvml. Every value may be absent.

Conventions as in nvml. Not here: what is done about it (pool.core.health), Xids (nvml_events).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pynvml as n

from agents import nvml
from agents.gpu import Health
from pool.core.wire import Link, Remapped

#: nvmlClocksEventReasons; the words are the wire's.
_THROTTLE = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
_STATES = {
    n.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "not_supported",
    n.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    n.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    n.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_SUMMARIES = {
    n.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY: "healthy",
    n.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY: "unhealthy",
    n.NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY: "limited",
}
_P2P_READ = 0  # pynvml's own NVML_P2P_CAPS_INDEX_READ is the tuple (0,)
#: Words of 64 NUMA nodes each that the driver may answer with.
_NODE_WORDS = 16


class Fabric(NamedTuple):
    """NVLink domain in hex (None: it does not leave the node), clique; state and health in words."""

    cluster: str | None = None
    clique: int | None = None
    state: str | None = None
    health: str | None = None


def health(device: Any, fabric: Fabric, links: tuple[Link, ...] | None) -> Health:
    """Clocks, throttle reasons, ECC, remapped rows, NUMA node and compute mode of the moment."""
    return Health(
        sm_clock_mhz=nvml.optional(n.nvmlDeviceGetClockInfo, device, n.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.optional(n.nvmlDeviceGetClockInfo, device, n.NVML_CLOCK_MEM),
        throttle=_throttle(device),
        ecc_corrected=_ecc(device, n.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(device, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remapped=_remapped(device),
        fabric_state=fabric.state,
        fabric_health=fabric.health,
        numa=_numa(device),
        links=links,
        compute_mode=nvml.compute_mode(device),
    )


def _throttle(device: Any) -> tuple[str, ...] | None:
    bits = nvml.optional(n.nvmlDeviceGetCurrentClocksEventReasons, device)
    if bits is None:
        bits = nvml.optional(n.nvmlDeviceGetCurrentClocksThrottleReasons, device)
    return None if bits is None else tuple(word for bit, word in _THROTTLE.items() if bits & bit)


def _ecc(device: Any, kind: int) -> int | None:
    """Counted since the driver came up; None where ECC is off or there is none."""
    count: int | None = nvml.optional(n.nvmlDeviceGetTotalEccErrors, device, kind, n.NVML_VOLATILE_ECC)
    return count


def _remapped(device: Any) -> Remapped | None:
    rows = nvml.optional(n.nvmlDeviceGetRemappedRows, device)
    if rows is None:
        return None
    correctable, uncorrectable, pending, failure = rows
    return Remapped(
        correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failure=bool(failure)
    )


def _numa(device: Any) -> int | None:
    """The NUMA node of the host whose memory is nearest; the lowest of several."""
    words = nvml.optional(n.nvmlDeviceGetMemoryAffinity, device, _NODE_WORDS, n.NVML_AFFINITY_SCOPE_NODE)
    near = sum(int(word) << (64 * place) for place, word in enumerate(words or ()))
    return (near & -near).bit_length() - 1 if near else None


def fabric(device: Any) -> Fabric:
    """An all-zero domain does not leave the node and is None; so is that of a fabric not yet complete."""
    for struct in (n.c_nvmlGpuFabricInfo_v3_t, n.c_nvmlGpuFabricInfo_v2_t):
        info = struct()
        try:
            n.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
        except n.NVMLError as error:
            nvml.raise_if_gone(error)
            if error.value == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                continue
            break
        return _fabric(info)
    return Fabric()


def _fabric(info: Any) -> Fabric:
    state, summary = _STATES.get(info.state), _SUMMARIES.get(getattr(info, "healthSummary", 0))
    if info.state != n.NVML_GPU_FABRIC_STATE_COMPLETED:
        return Fabric(state=state, health=summary)
    if info.status != n.NVML_SUCCESS:
        return Fabric(state="failed", health=summary)
    cluster = bytes(info.clusterUuid)
    return Fabric(cluster.hex() if any(cluster) else None, info.cliqueId, state, summary)


def links(device: Any, uuids: Mapping[str, str]) -> tuple[Link, ...] | None:
    """NVLinks by neighbour, those of a kind counted as far as they are up; () without NVLink.

    `uuids` holds GPU UUIDs by upper-case PCI bus id. A neighbour with all its links down is
    named with 0, if the driver still names it. None: the driver does not tell.
    """
    counts: dict[tuple[str | None, str], int] = {}
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        try:
            up = n.nvmlDeviceGetNvLinkState(device, link)
        except n.NVMLError as error:
            nvml.raise_if_gone(error)
            if error.value == nvml.INVALID_ARGUMENT or (error.value == nvml.NOT_SUPPORTED and link == 0):
                break  # past the last link, or there is none
            if error.value == nvml.NOT_SUPPORTED:
                continue
            return None
        end = nvml.optional(_far_end, device, link, uuids)
        if end is not None:
            counts[end] = counts.get(end, 0) + (1 if up else 0)
    ends = sorted(counts, key=lambda end: (end[1], end[0] or ""))
    return tuple(Link(peer=peer, kind=kind, count=counts[peer, kind]) for peer, kind in ends)


def _far_end(device: Any, link: int, uuids: Mapping[str, str]) -> tuple[str | None, str] | None:
    """Who is at the other end, and what kind of neighbour it is; None when the link leads nowhere."""
    kind = n.nvmlDeviceGetNvLinkRemoteDeviceType(device, link)
    if kind == n.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return None, "nvswitch"
    if kind != n.NVML_NVLINK_DEVICE_TYPE_GPU:
        return None
    info = nvml.optional(n.nvmlDeviceGetNvLinkRemotePciInfo, device, link)
    return (uuids.get(nvml.text(info.busId).upper()) if info else None), "nvlink"


def peers(device: Any, others: Mapping[str, Any]) -> Iterator[Link]:
    """The GPUs of `others` (handles by UUID) whose memory this one reads directly, by whatever way."""
    for uuid, other in others.items():
        try:
            status = n.nvmlDeviceGetP2PStatus(device, other, _P2P_READ)
        except n.NVMLError:
            continue  # either of the two may be lost or new: that is said elsewhere
        if status == n.NVML_P2P_STATUS_OK:
            yield Link(peer=uuid, kind="p2p", count=None)
