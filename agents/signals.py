"""Signals to exactly the process that was seen, or to none.

A process is (boot id, pid, start time). The pidfd pins whoever has the pid now;
only then is it compared with what was seen, so that a pid that was given to
another in between is never hit.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from agents import processes


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was seen. Without `started` or `uid` nothing can be matched."""

    boot_id: str
    pid: int
    started: str | None
    uid: int | None


class Outcome(StrEnum):
    """`gone`: it ended, or another has its pid by now. `refused`: no rights, or it must not be signalled."""

    SENT = "sent"
    GONE = "gone"
    REFUSED = "refused"


def send(seen: Seen, number: signal.Signals, boot_id: str) -> Outcome:
    """Send the signal if the very process still lives in this boot, under the same account."""
    if seen.started is None or seen.uid is None or seen.pid <= 1 or seen.pid == os.getpid():
        return Outcome.REFUSED
    if seen.boot_id != boot_id:
        return Outcome.GONE
    try:
        handle = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return Outcome.GONE
    except (OSError, AttributeError):  # no such call on this system
        return Outcome.REFUSED
    try:
        if processes.started(seen.pid) != seen.started:
            return Outcome.GONE
        if processes.owner(seen.pid)[0] != seen.uid:
            return Outcome.REFUSED
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return Outcome.GONE
    except OSError:
        return Outcome.REFUSED
    finally:
        os.close(handle)
    return Outcome.SENT
