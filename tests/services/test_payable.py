"""The wait list and the month's budget: what waits is given only what its team can pay, and says so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.errors import Code
from pool.models import QuotaLine, Reservation
from pool.queries import access
from pool.services import explanations, giving, lanes, reservations
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Three whole GPUs, and a budget of two GPU-hours."""
    # However slow the machine is: each run of the lane thinks.
    monkeypatch.setattr(giving, "LONG", 1000.0)
    made = make_scene()
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=3)
    QuotaLine.objects.filter(team=made.lena.memberships.get().team).update(budget_milli_hours=2000)
    return made


def states() -> list[tuple[str, str]]:
    return list(Reservation.objects.order_by("created_at", "pk").values_list("state", "state_reason"))


def test_what_no_month_can_pay_is_not_waited_for(scene: Scene) -> None:
    told = refused(Code.QUOTA_EXCEEDED, lambda: join(scene, length=hours(3)))
    assert (told["reason"], told["budget"], told["asked"]) == ("over_budget", 2000, 3000)
    assert join(scene, gpus(2), length=hours(1)).state == "waiting"


def test_of_two_that_only_together_are_too_much_one_is_given(scene: Scene) -> None:
    """Decided at once, and each given under the lock."""
    first, second = join(scene, length=90 * MINUTE), join(scene, length=90 * MINUTE)
    for seconds in (0, 2, 4):
        lanes.due(now=NOON + timedelta(seconds=seconds))
    assert [state for state, _reason in states()] == ["starting", "waiting"]
    lanes.due(now=NOON + 2 * MINUTE)
    assert states()[1] == ("waiting", "no_quota")
    row = access.reservation(scene.lena, second.pk)
    told = explanations.explain(user=scene.lena, row=row, now=NOON + 2 * MINUTE)
    assert (told.rule, told.numbers["reason"]) == ("quota", "over_budget")
    assert (told.numbers["budget"], told.numbers["used"], told.numbers["asked"]) == (2000, 1500, 1500)
    QuotaLine.objects.filter(team=first.team).update(budget_milli_hours=3000)
    lanes.due(now=NOON + 3 * MINUTE)
    assert states()[1][0] == "starting"


def test_who_cannot_pay_lets_others_pass(scene: Scene) -> None:
    reservations.book(actor=scene.lena, team="vision", pool="main", ask=WHOLE, duration=hours(2), now=NOON)
    join(scene)
    other = join(scene, actor=scene.sam)
    lanes.due(now=NOON)
    other.refresh_from_db()
    assert (other.state, states()[1][0]) == ("starting", "waiting")
