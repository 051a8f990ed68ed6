"""The programs of the machine: where they are, and running one with a time limit.

A simulated machine has only what lies in its own root. Not here: what the programs are for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agents.gpu import DriverRefusal
from agents.place import Place

_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin")
#: The environment of a service, without the agent's own settings and secrets.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LONGEST_S = 20.0


def program(place: Place, name: str) -> str | None:
    """The path of a program on this machine; None when it is not installed."""
    if place.real:
        return shutil.which(name) or shutil.which(name, path=_PATH)
    found = (place.root / folder / name for folder in _FOLDERS)
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


def run(
    words: Sequence[str | Path],
    code: str,
    *,
    told: str | None = None,
    environment: Mapping[str, str] | None = None,
    longest_s: float = LONGEST_S,
) -> str:
    """What a program printed; `told` goes to its standard input.

    Raises `DriverRefusal` with `code` when it cannot be started, takes too long or fails.
    """
    name = Path(words[0]).name
    try:
        done = subprocess.run(
            [str(word) for word in words],
            input=told,
            stdin=subprocess.DEVNULL if told is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8", **(environment or {})},
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DriverRefusal(code, None, f"{name} did not answer within {longest_s:.0f} s") from error
    except OSError as error:
        raise DriverRefusal(code, None, f"{name} could not be started: {error.strerror}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DriverRefusal(code, None, f"{name} failed with {done.returncode}: {said}")
    return done.stdout
