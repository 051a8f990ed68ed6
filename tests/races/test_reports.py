"""Reports beside bookings, freezes and lanes: one order of locks, nobody waits for ever, all converges."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection

from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk
from pool.core.states import State
from pool.models import Allocation, Command, GpuState, Reservation
from pool.queries import clock
from pool.services import broker, inventory, reservations, telemetry
from tests.cast import enrol_node, make_cast

ROUNDS = 6


def rounds(work: Callable[[], object]) -> int:
    """How many rounds were done; a refusal is an answer, anything else is a fault."""
    done = 0
    try:
        for _ in range(ROUNDS):
            try:
                work()
                done += 1
            except Refusal as refusal:
                if refusal.code == Code.BUSY:  # somebody held a lock for three seconds
                    raise
    finally:
        connection.close()
    return done


@pytest.mark.django_db(transaction=True)
def test_reports_bookings_and_freezes_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "nudge", lambda _messages: 0)
    cast = make_cast()
    nodes = [enrol_node(cast.main, name, count=2) for name in ("node-1", "node-2")]

    def book() -> None:
        booked = reservations.book(
            actor=cast.lena,
            team="vision",
            pool="main",
            ask=MigAsk(profile="2g.20gb"),
            duration=timedelta(hours=1),
            now=clock.now(),
        )
        reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())

    def freeze() -> None:
        for frozen in (True, False):
            inventory.freeze(actor=cast.otto, target="node", id="node-1", frozen=frozen, now=clock.now())

    def silence() -> None:
        telemetry.mark_silent(pool_id=cast.main.pk, received=clock.real_now())

    jobs = [book, book, book, freeze, silence, *(node.follow for node in nodes)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = [future.result() for future in [pool.submit(rounds, job) for job in jobs]]
    assert all(done)
    for _ in range(2):
        for node in nodes:
            node.follow()
    assert set(Reservation.objects.values_list("state", flat=True)) <= {State.ENDED}
    assert not Allocation.objects.filter(holds=True).exists()
    assert not Command.objects.filter(state="open").exists()
    assert all(state.instances == [] for state in GpuState.objects.all())
