"""The state of the node's IMEX daemon, which carries NVLink domains across nodes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence

PROGRAM = ("nvidia-imex-ctl",)
_PATIENCE_S = 3.0
#: Starting a program each time one looks would cost more than the answer is worth.
_KEEP_S = 60.0
_WORD = re.compile(r"[A-Z][A-Z_]{1,31}")


class Imex:
    """Asks `nvidia-imex-ctl -q` (NVIDIA's IMEX guide), which answers one word: READY, INITIALIZING, ..."""

    def __init__(self, program: Sequence[str] = PROGRAM, now: Callable[[], float] = time.monotonic) -> None:
        self._program = tuple(program)
        self._now = now
        self._asked_at: float | None = None
        self._state: str | None = None

    def state(self) -> str | None:
        """The word, asked at most once a minute; UNAVAILABLE when the daemon does not answer,
        None where there is no program to ask."""
        if not self._program:
            return None
        now = self._now()
        if self._asked_at is None or now - self._asked_at >= _KEEP_S:
            self._asked_at, self._state = now, self._ask()
        return self._state

    def _ask(self) -> str | None:
        try:
            done = subprocess.run(
                [*self._program, "-q"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except FileNotFoundError:
            return None
        except (OSError, subprocess.TimeoutExpired):
            return "UNAVAILABLE"
        word = done.stdout.strip()
        return word if done.returncode == 0 and _WORD.fullmatch(word) else "UNAVAILABLE"
