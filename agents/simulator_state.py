"""The simulated driver's memory: DIR/driver.json, shared by processes and outliving them.

Not here: how the driver behaves (simulator_driver) and what C sees (simulator_calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def create_state(
    folder: Path,
    spec: str,
    *,
    seed: str,
    cluster: str | None = None,
    clique: int = 0,
    mig: Sequence[int] = (),
) -> None:
    """Make a machine of `spec` ("8xH100-80GB", "4xGB200-186GB", "2xL40S-48GB", joined by "+").

    Keeps a state that is there. `seed` (the node's name) fixes machine id and GPU UUIDs;
    `cluster` is the NVLink domain's UUID; `mig` are the indices of GPUs that begin in MIG mode.
    Raises ValueError for an unknown model, a bad count or index.
    """
    raise NotImplementedError


def machine_id(folder: Path) -> str:
    """Stable for the life of the folder: 32 hex digits."""
    raise NotImplementedError


def boot_id(folder: Path) -> str:
    """Changes with each `reboot`: a UUID."""
    raise NotImplementedError
