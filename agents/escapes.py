"""Programs of a holder that run without the limits of its share, as /proc shows them.

Limits that a tenant can unset are no more than a wish where it does: that is looked for and told, and
nothing is done about it here. What cannot be read is not accused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agents import processes
from agents.mps import memory_mib, percent
from pool.core.wire import Process, Share

LIBRARY = "libvgpu.so"
_SWITCHES = ("CUDA_DISABLE_CONTROL", "CUDA_OVERSUBSCRIBE")
_ON = ("1", "true")
#: The variables with the limits of memory and of compute; HAMi-core's of a device win over the general ones.
_MPS = (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",))
_HAMI = (
    ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT"),
    ("CUDA_DEVICE_SM_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"),
)

#: Looks at one process: what is wrong with it, "" if nothing is.
Look = Callable[[int], str]


class Escapes:
    """Looks at each process once: its library and its environment come with its start or never."""

    def __init__(self) -> None:
        self._told: dict[str, dict[tuple[int, str], str]] = {}

    def first(self, allocation: str, found: Iterable[Process], look: Look) -> str:
        """The first of a holder's processes that escapes its limits, in words; "" if none does."""
        before = self._told.get(allocation, {})
        keys = sorted((one.pid, one.started or "") for one in found if not one.system)
        told = {key: before[key] if key in before else look(key[0]) for key in keys}
        self._told[allocation] = told
        return next((words for words in told.values() if words), "")

    def forget(self, kept: Iterable[str]) -> None:
        """Keep only what is known of these allocations."""
        wanted = set(kept)
        # Copied at once: another thread may look at a process meanwhile.
        self._told = {name: told for name, told in list(self._told.items()) if name in wanted}


def without_library(pid: int, share: Share) -> str:
    """Under HAMi-core a process without its library knows no limit, nor does one that switches it off."""
    try:
        loaded = LIBRARY in (Path("/proc") / str(pid) / "maps").read_text(errors="replace")
        settings = _environment(pid)
    except OSError:
        return ""
    if not loaded:
        return f"{_named(pid)} runs without {LIBRARY}"
    switched = next((name for name in _SWITCHES if settings.get(name, "").lower() in _ON), None)
    return f"{_named(pid)} sets {switched}" if switched else _loose(pid, settings, _HAMI, share)


def looser(pid: int, share: Share) -> str:
    """Under MPS a process without limits of its own gets the server's, which are the largest share's."""
    try:
        return _loose(pid, _environment(pid), _MPS, share)
    except OSError:
        return ""


def _loose(
    pid: int, settings: Mapping[str, str], names: tuple[tuple[str, ...], tuple[str, ...]], share: Share
) -> str:
    """Names the limit that is missing or larger than the share's."""
    values = [next((settings[name] for name in some if name in settings), "") for some in names]
    memory, threads = memory_mib(values[0].rpartition("=")[2]), percent(values[1])
    if memory is None or memory > share.memory_mib:
        return f"{_named(pid)} does not set {names[0][-1]} as it should"
    if threads is None or threads > share.limit_pct:
        return f"{_named(pid)} does not set {names[1][-1]} as it should"
    return ""


def _environment(pid: int) -> Mapping[str, str]:
    lines = (Path("/proc") / str(pid) / "environ").read_text(errors="replace").split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _named(pid: int) -> str:
    return f"process {pid} ({processes.name(pid) or '?'})"
