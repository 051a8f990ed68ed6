"""A folder of the agent's own that one account may enter beside it, by an access list (acl(5)).

The account does not become its owner: an owner could put a link in the place of what lies in it,
and the agent, which is root, would follow.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

_ACCESS = "system.posix_acl_access"
#: The kernel's format: a version, then tag, permissions and id of each entry, sorted by tag.
_VERSION, _ENTRY = struct.pack("<I", 2), struct.Struct("<HHI")
_OWNER, _ACCOUNT, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_ALL, _ENTER, _NOTHING = 7, 5, 0
_NO_ID = 0xFFFFFFFF


def close_to_all_but(folder: Path, account: int | None) -> None:
    """The folder is ours; that account may look into it and pass, None: anybody may. Raises OSError."""
    os.chown(folder, os.getuid(), -1, follow_symlinks=False)
    if account is None:
        with suppress(OSError):  # it has none
            os.removexattr(folder, _ACCESS, follow_symlinks=False)
        folder.chmod(0o755)
        return
    entries = [(_OWNER, _ALL, _NO_ID), (_ACCOUNT, _ENTER, account), (_GROUP, _NOTHING, _NO_ID)]
    entries += [(_MASK, _ENTER, _NO_ID), (_OTHERS, _NOTHING, _NO_ID)]
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    os.setxattr(folder, _ACCESS, _VERSION + packed, follow_symlinks=False)
