"""Resets a GPU with the driver's own tool: NVML has no call for it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from agents.gpu import DriverRefusal

#: A reset takes seconds; one that hangs must not hold the applier for ever.
LONGEST_S = 120.0


class Reset:
    """`words` is the program with its arguments; the GPU's UUID is put behind them."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def __call__(self, uuid: str) -> None:
        """Raises `DriverRefusal` (reset_required) with what the tool said when it did not do it."""
        try:
            done = subprocess.run(
                [*self._words, uuid],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LONGEST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DriverRefusal("reset_required", None, f"the GPU was not reset: {error}") from error
        if done.returncode:
            said = " ".join(done.stdout.split())[-300:]
            raise DriverRefusal("reset_required", None, f"the GPU was not reset: {said or done.returncode}")
