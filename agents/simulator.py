"""Puts the simulated driver under the unmodified pynvml, and takes it away again."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path) -> None:
    """From now on pynvml in this process talks to the driver simulated in `folder`.

    Call it before `Driver.open`; the state must have been made by `simulator_state.create_state`.
    """
    raise NotImplementedError


def uninstall() -> None:
    """Take the simulated driver away; the next `nvmlInit` loads the real library."""
    raise NotImplementedError
