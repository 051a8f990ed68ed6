"""Puts the simulated driver under the unmodified pynvml, and takes it away again.

Every C function arrives as an attribute call on `Library`, with ctypes arguments.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from agents import simulator_calls, simulator_gpm, simulator_health_calls, simulator_mig_calls
from agents.simulator_driver import Failure, Ret
from agents.simulator_handles import Session

_CALLS: dict[str, Any] = {
    name: call
    for module in (simulator_calls, simulator_mig_calls, simulator_health_calls, simulator_gpm)
    for name, call in vars(module).items()
    if name.startswith("nvml")
}
_BEFORE_INIT = ("nvmlInitWithFlags", "nvmlErrorString")


class Library:
    """Stands where pynvml keeps the loaded C library. Functions it lacks raise AttributeError."""

    def __init__(self, folder: Path) -> None:
        self._session = Session(folder)
        self._missing = frozenset(self._session.read().missing)

    def __getattr__(self, name: str) -> Any:
        if name not in _CALLS or name in self._missing:
            raise AttributeError(f"{name}: this driver has no such function")
        # A partial takes attributes, as pynvml sets `restype` on what it finds.
        return partial(self._run, name)

    def _run(self, name: str, *args: Any) -> Any:
        try:
            if not self._session.opened and name not in _BEFORE_INIT:
                return int(Ret.UNINITIALIZED)
            if name == "nvmlErrorString":  # needs no driver
                return self._result(name, args)
            if name in self._session.begin().faults:
                self._fail(name)
            return self._result(name, args)
        except Failure as failure:
            return int(failure.code)
        except FileNotFoundError:
            return int(Ret.DRIVER_NOT_LOADED)
        finally:
            self._session.end()

    def _result(self, name: str, args: tuple[Any, ...]) -> Any:
        result = _CALLS[name](self._session, *args)
        return result if isinstance(result, bytes) else int(result or 0)

    def _fail(self, name: str) -> None:
        """Give the next of the codes that a test has put down for this function."""
        with self._session.edit() as machine:
            codes = machine.faults.pop(name, [])
            if codes[1:]:
                machine.faults[name] = codes[1:]
        if codes:
            raise Failure(codes[0])


def install(folder: Path) -> None:
    """From now on pynvml in this process talks to the driver simulated in `folder`.

    Call it before `Driver.open`. Raises FileNotFoundError when
    `simulator_state.create_state` has made no state there.
    """
    _put(Library(folder))


def uninstall() -> None:
    """Take the simulated driver away; the next `nvmlInit` loads the real library."""
    _put(None)


def _put(library: Library | None) -> None:
    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        pynvml._nvmlLib_refcount = 0
        # pynvml keeps the functions it found in the library before.
        pynvml._nvmlGetFunctionPointer_cache.clear()
