"""What one booking may be by the lines of its team and those above: kinds, size, GPUs, length, lead time.

Each is a limit like a cap: every line that the booking counts on has to allow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_lines import Line

_WHOLE = 1000
_MINUTE = timedelta(minutes=1)


def check(
    lines: Iterable[Line],
    *,
    kind: str,
    largest_milli: int,
    milli: int,
    period: Period,
    now: datetime,
) -> None:
    """Refuses with QUOTA_EXCEEDED what one of `lines` does not allow for one booking.

    `largest_milli` is what its largest piece counts, `milli` all of it. Data: reason
    (kind_not_allowed, piece_too_large, too_many_gpus, too_long, too_far_ahead), line, team,
    model (None: any), cap and asked: kinds, milli, whole GPUs (rounded up) or minutes (rounded
    up). A booking without an end is longer than any limit; asked is then None.
    """
    gpus = -(-milli // _WHOLE)
    minutes = None if period.duration is None else -(-period.duration // _MINUTE)
    ahead = -((now - period.start) // _MINUTE)
    for line in lines:
        limits = line.limits
        if limits.kinds and kind not in limits.kinds:
            raise _refusal("kind_not_allowed", line, list(limits.kinds), kind)
        if limits.largest_milli is not None and largest_milli > limits.largest_milli:
            raise _refusal("piece_too_large", line, limits.largest_milli, largest_milli)
        if limits.most_gpus is not None and gpus > limits.most_gpus:
            raise _refusal("too_many_gpus", line, limits.most_gpus, gpus)
        if limits.longest_minutes is not None and (minutes is None or minutes > limits.longest_minutes):
            raise _refusal("too_long", line, limits.longest_minutes, minutes)
        if limits.ahead_minutes is not None and ahead > limits.ahead_minutes:
            raise _refusal("too_far_ahead", line, limits.ahead_minutes, ahead)


def _refusal(reason: str, line: Line, cap: Any, asked: Any) -> Refusal:
    known = {"line": line.id, "team": line.team, "model": line.model, "cap": cap, "asked": asked}
    return Refusal(Code.QUOTA_EXCEEDED, reason=reason, **known)
