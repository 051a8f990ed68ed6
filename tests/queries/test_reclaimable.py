"""What of one reservation may be taken back, and when."""

from __future__ import annotations

import pytest

from pool.core.terms import Terms
from pool.models import QuotaLine, Reservation
from pool.queries import reclaimable
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    """Vision is guaranteed one of two GPUs."""
    made = make_scene(cap=2000, guaranteed=0)
    add_node(made.pool, mig_gpus=0, whole_gpus=2)
    QuotaLine.objects.filter(team=made.vision).update(guaranteed_milli=1000)
    return made


def told(row: Reservation, at: float = 0) -> list[tuple[float, float, int]]:
    found = reclaimable.of(row, NOON + hours(at))
    return [
        ((one.period.start - NOON) / hours(1), ((one.period.end or NOON) - NOON) / hours(1), one.milli)
        for one in found
    ]


def test_the_newer_of_two_is_borrowed_while_the_older_is_there(scene: Scene) -> None:
    first = scene.book(WHOLE, start=NOON + hours(2), duration=hours(2))
    second = scene.book(WHOLE, duration=hours(6), now=NOON)
    Reservation.objects.filter(pk=first.pk).update(created_at=NOON - hours(1))
    assert told(first) == []
    assert told(second) == [(2, 4, 1000)]
    assert told(second, at=3) == [(3, 4, 1000)]
    assert told(second, at=7) == []


def test_nothing_of_what_is_firm_or_over(scene: Scene) -> None:
    firm = scene.book(WHOLE, duration=hours(2), terms=Terms(preemptible=False))
    other = scene.book(WHOLE, duration=hours(2))
    assert (told(firm), told(other)) == ([], [(0, 2, 1000)])
    Reservation.objects.filter(pk=other.pk).update(recall_at=NOON + hours(1))
    assert told(Reservation.objects.get(pk=other.pk)) == [(0, 1, 1000)]
    Reservation.objects.filter(pk=other.pk).update(state="preempted")
    assert told(Reservation.objects.get(pk=other.pk)) == []
