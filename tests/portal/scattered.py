"""A pool in which one move makes a whole GPU free again: two small bookings to come, on a node each."""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.core.mix import Form, Kind, Mix
from pool.core.shapes import MigAsk
from pool.models import Allocation, PoolMix, Reservation
from pool.queries import clock, mixes
from pool.services import reservations
from tests.cast import Cast, enrol_node


def scatter(cast: Cast) -> list[Reservation]:
    """Tomorrow for two hours, in a pool that is usually asked for whole GPUs in one slice."""
    usual = Mix((Kind(Form.MIG, profile="7g.80gb"),), (1.0,))
    PoolMix.objects.create(pool=cast.main, mix=usual.as_json(), at=clock.now())
    mixes.forget()
    start = clock.now() + timedelta(days=1)
    return [_on(cast, name, start) for name in ("apart-1", "apart-2")]


def nodes_of(booked: Reservation) -> set[str]:
    rows = Allocation.objects.filter(reservation=booked, holds=True)
    return set(rows.values_list("gpu__node__name", flat=True))


def _on(cast: Cast, name: str, start: datetime) -> Reservation:
    enrol_node(cast.main, name)
    booked = reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb", node=name),
        start=start,
        duration=timedelta(hours=2),
        now=clock.now(),
    )
    booked.ask.pop("node")
    booked.save()
    return booked
