"""What one booking may be by the lines of its team and those above: kinds, size, GPUs, length, lead time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pool.core.period import Period
from pool.core.quota_lines import Line


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

    Data: reason (kind_not_allowed, piece_too_large, too_many_gpus, too_long, too_far_ahead), line, team,
    model, and what is allowed and asked (cap, asked: kinds, milli, GPUs, minutes).
    """
    raise NotImplementedError
