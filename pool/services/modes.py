"""GPUs that are given for whatever is asked change their mode in the time that is blocked before a booking.

So what is booked is ready at its start. When a change is planned, and for how long it
blocks the GPU: core/placement_mode. Steps and reads for commands.py and lanes.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet

from pool.core.states import State
from pool.models import Allocation, Gpu, Reservation

_SLICE = Q(kind=Allocation.Kind.MIG)


def _ahead(now: datetime) -> QuerySet[Allocation]:
    """What is booked on such a GPU, and only blocked as yet."""
    return Allocation.objects.filter(
        gpu__use=Gpu.Use.AUTO,
        holds=True,
        blocked__startswith__lte=now,
        period__startswith__gt=now,
        reservation__state=State.SCHEDULED,
    )


def soon(pool_id: int, now: datetime) -> QuerySet[Reservation]:
    """Bookings whose GPU has to change its mode now, and has not been told to."""
    mig = Q(gpu__wanted__mig=True)
    other = _ahead(now).filter(_SLICE & ~mig | ~_SLICE & mig)
    rows = Reservation.objects.filter(pool=pool_id, state=State.SCHEDULED)
    return rows.filter(Exists(other.filter(reservation=OuterRef("pk")))).order_by("period__startswith", "pk")


def gpus_of(rows: Sequence[Reservation], now: datetime) -> set[int]:
    """The GPUs that these make change."""
    return set(_ahead(now).filter(reservation__in=rows).values_list("gpu_id", flat=True)) if rows else set()


def ahead(gpu_ids: Collection[int], now: datetime) -> dict[int, bool]:
    """By GPU id whether it shall be in MIG mode for what begins next; only where that time has come."""
    rows = _ahead(now).filter(gpu__in=gpu_ids).order_by("-period__startswith")
    return {pk: kind == Allocation.Kind.MIG for pk, kind in rows.values_list("gpu_id", "kind")}
