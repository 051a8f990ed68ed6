"""The only way to a GPU, in demo, tests and production: the unmodified pynvml.

Reads never raise for one bad GPU, writes raise `DriverRefusal`. No handle is
kept between calls, since any change may make handles stale.
"""

from __future__ import annotations

from types import TracebackType

from agents.gpu import Gpu, Instance, Inventory, Readings


class Nvml:
    """An open connection to the driver; safe to share between threads."""

    def open(self) -> None:
        """Load and initialise the library. Raises `DriverRefusal` (code driver)."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the library back; harmless when not open."""
        raise NotImplementedError

    def __enter__(self) -> Nvml:
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
        raise NotImplementedError

    def gpu(self, uuid: str) -> Gpu:
        """One GPU, read now. Raises `DriverRefusal` (gpu_is_lost) when it is lost or not there."""
        raise NotImplementedError

    def readings(self) -> dict[str, Readings]:
        """Instant values by GPU UUID; lost GPUs are left out. Cheap: meant for every 2 s."""
        raise NotImplementedError

    def set_mig_mode(self, uuid: str, on: bool) -> None:
        """Bring the GPU into MIG mode or out of it; returns when it is in force, does nothing if it is.

        Raises `DriverRefusal`: in_use (with holders) or reset_required when the driver
        accepted the wish but the change is only pending, not_supported, no_permission.
        """
        raise NotImplementedError

    def create(self, uuid: str, profile_id: int, start: int, size: int) -> Instance:
        """Make a GPU instance at exactly this span and the compute instance that fills it.

        Returns what was read back, with its MIG UUID. On any failure the GPU instance
        is removed again and `DriverRefusal` says what the driver said.
        """
        raise NotImplementedError

    def destroy(self, uuid: str, gi: int) -> None:
        """Destroy the compute instances of a GPU instance, then itself; harmless when it is gone.

        Raises `DriverRefusal`: in_use (with holders), no_permission, gpu_is_lost.
        """
        raise NotImplementedError
