"""Two bookings of one team on different GPUs: together over its cap, so only one is granted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.period import Period
from pool.models import QuotaLine, Reservation
from pool.queries import quota as queries
from pool.services import plans, quota
from pool.services.plans import Plan
from tests.races.runners import PATIENCE_S, codes, spread, think_together, together, without_the_lock
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

LATER = NOON + hours(1)


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=1000, guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def both_book(scene: Scene) -> list[Any]:
    return together(*[lambda: scene.book(WHOLE, start=LATER)] * 2)


def used(scene: Scene) -> int:
    rows = list(QuotaLine.objects.filter(team=scene.vision))
    (line,) = queries.used_of(scene.pool, rows, Period(LATER, LATER + hours(1)))
    return line.used_milli


def test_without_the_lock_both_are_granted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each on a GPU of its own, as the second would choose if the first were only a little quicker.
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    spread(monkeypatch)
    assert codes(both_book(scene)) == {"ok": 2}
    assert used(scene) == 2000


def test_one_is_granted_and_the_other_hears_the_numbers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    spread(monkeypatch)
    results = both_book(scene)
    assert codes(results) == {"ok": 1, Code.QUOTA_EXCEEDED: 1}
    (refusal,) = (one for one in results if not isinstance(one, Reservation))
    assert (refusal.data["cap"], refusal.data["used"], refusal.data["asked"]) == (1000, 1000, 1000)
    assert used(scene) == 1000


def test_a_cap_that_is_lowered_meanwhile_is_the_one_that_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, lowered = threading.Event(), threading.Event()
    choose = plans.choose

    def choose_and_wait(*args: Any, **kwargs: Any) -> list[Plan]:
        found: list[Plan] = choose(*args, **kwargs)
        chosen.set()
        assert lowered.wait(PATIENCE_S)
        return found

    def lower() -> QuotaLine:
        assert chosen.wait(PATIENCE_S)
        line = quota.set_line(
            actor=None, team=scene.vision, pool=scene.pool, guaranteed_milli=0, cap_milli=0, now=NOON
        )
        lowered.set()
        return line

    monkeypatch.setattr(plans, "choose", choose_and_wait)
    booked, _ = together(lambda: scene.book(WHOLE, start=LATER), lower)
    assert codes([booked]) == {Code.QUOTA_EXCEEDED: 1}
    assert not Reservation.objects.exists()
