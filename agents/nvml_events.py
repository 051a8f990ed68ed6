"""The driver's error events (Xids) by pynvml: a set, registrations, and waiting.

Conventions as in nvml. Not here: which GPUs are registered, and when again (agents.xids).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import pynvml as n

from agents import nvml

_NO_INSTANCE = 0xFFFFFFFF


class Event(NamedTuple):
    """`device` is the handle's `number`. `gi` and `ci` only where attributable."""

    device: int
    xid: int
    gi: int | None
    ci: int | None


def create() -> Any:
    """An empty set."""
    return n.nvmlEventSetCreate()


def free(events: Any) -> None:
    """Give the set back; its registrations end with it."""
    n.nvmlEventSetFree(events)


def number(device: Any) -> int:
    """By which a handle is known again; it changes when the driver begins anew with the GPU."""
    return ctypes.cast(device, ctypes.c_void_p).value or 0


def register(device: Any, events: Any) -> bool:
    """Record the Xids of this GPU from now on. False: it has no such events and is let be."""
    types = nvml.optional(n.nvmlDeviceGetSupportedEventTypes, device) or 0
    if types & n.nvmlEventTypeXidCriticalError:
        n.nvmlDeviceRegisterEvents(device, n.nvmlEventTypeXidCriticalError, events)
        return True
    return False


def wait(events: Any, timeout_ms: int) -> Event | None:
    """The next error of the set's GPUs, None when none came in time."""
    try:
        event = n.nvmlEventSetWait_v2(events, timeout_ms)
    except n.NVMLError_Timeout:
        return None
    return Event(
        number(event.device), int(event.eventData), _id(event.gpuInstanceId), _id(event.computeInstanceId)
    )


def _id(told: int) -> int | None:
    return None if told == _NO_INSTANCE else int(told)
