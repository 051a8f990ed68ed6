"""The terminals of a user's own sessions, and one line written to them.

As write(1) does it: a terminal whose owner said `mesg n` has no write bit for its group and is left alone.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def uid_of(user: str) -> int | None:
    """The account's uid on this machine; None when it has none here."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def tell(uid: int, line: str, folder: Path) -> int:
    """Write one line to each terminal in `folder` that belongs to the account; returns to how many.

    A terminal that is full or stopped is passed over: nobody waits for it.
    """
    text = "".join(sign if sign.isprintable() else " " for sign in line)
    data = f"\r\n{text}\r\n".encode()
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return 0
    return sum(_write(device, uid, data) for device in devices if device.name.isdecimal())


def _write(device: Path, uid: int, data: bytes) -> bool:
    try:
        handle = os.open(device, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        seen = os.fstat(handle)
        if not stat.S_ISCHR(seen.st_mode) or seen.st_uid != uid or not seen.st_mode & stat.S_IWGRP:
            return False
        os.write(handle, data)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
