"""GPUs that are given for whatever is asked: when one may change between MIG and not, and when it has to.

A change takes the whole GPU for a while, so it is planned only where nothing of the
other mode is near.
"""

from __future__ import annotations

from datetime import timedelta

from pool.core.period import Period
from pool.core.placement_room import Busy, GpuView, Use, during

#: For so long a GPU that changes its mode is blocked, and has to be empty, before a booking: Ampere resets.
SWITCH = timedelta(seconds=60)


def wide(period: Period) -> Period:
    """The period with the time before and after it in which nothing of another mode may be."""
    return Period(period.start - SWITCH, None if period.end is None else period.end + SWITCH)


def is_mig(there: Busy) -> bool | None:
    """The mode that it needs; None when it is no booking."""
    if there.tenancy == "blocker":
        return None
    return there.profile_id is not None


def other_mode(gpu: GpuView, use: Use, period: Period) -> bool:
    """Whether something near needs the other mode, so that `use` is not possible in `period`."""
    if gpu.use is not Use.AUTO:
        return False
    near = wide(period)
    return any(is_mig(b) is (use is not Use.MIG) for b in during(gpu.busy, near.start, near.end))


def switches(gpu: GpuView, use: Use, period: Period) -> bool:
    """Whether the GPU has to change its mode before `period`: from that of the last booking, or of now."""
    if gpu.use is not Use.AUTO:
        return False
    before = [b for b in gpu.busy if b.period.start < period.start and is_mig(b) is not None]
    last = max(before, key=lambda b: b.period.start, default=None)
    now = bool(gpu.mig_now) if last is None else bool(is_mig(last))
    return now is not (use is Use.MIG)
