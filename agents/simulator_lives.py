"""Whether processes still run, asked many times a second: the kernel tells it of each at once.

Not here: starting and ending them (simulator_processes).
"""

from __future__ import annotations

import os
import select
import threading

from agents import simulator_processes

_lock = threading.Lock()
#: A descriptor of the process, which becomes readable when it ends, by pid and start.
_watched: dict[tuple[int, str], int] = {}


def lives(pid: int, began: str) -> bool:
    """Whether the very process that began then still runs."""
    with _lock:
        descriptor = _watched.get((pid, began))
        if descriptor is None:
            return _watch(pid, began)
        if not _ended(descriptor):
            return True
        _drop((pid, began))
        return False


def _watch(pid: int, began: str) -> bool:
    for key in [key for key, descriptor in _watched.items() if _ended(descriptor)]:
        _drop(key)
    if not simulator_processes.lives(pid, began):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # no such call on this system, or it has just ended
        return simulator_processes.lives(pid, began)
    _watched[pid, began] = descriptor
    if not simulator_processes.lives(pid, began):  # its pid may have gone to another in between
        _drop((pid, began))
        return False
    return True


def _ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _drop(key: tuple[int, str]) -> None:
    os.close(_watched.pop(key))
