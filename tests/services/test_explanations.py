"""Why a reservation is as it is: the rule, its numbers, and the rows as far as the viewer may see them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.models import QuotaLine, Reservation, User
from pool.queries import access, reservations
from pool.services import explanations, giving, lanes
from pool.services.explanations import Explanation, Rule
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene
from tests.services.test_waitlist import gpus, join

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


@pytest.fixture
def scene() -> Scene:
    """Two whole GPUs, of which nothing is guaranteed to anybody."""
    made = make_scene(guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


def told(row: Reservation, user: User, after: timedelta = 2 * SECOND) -> Explanation:
    return explanations.explain(user=user, row=access.reservation(user, row.pk), now=NOON + after)


def serve(scene: Scene) -> None:
    giving.serve(pool_id=scene.pool.pk, now=NOON + SECOND, hidden=(), aside=lambda pk, why: None)


def test_for_want_of_room_it_counts_what_is_in_the_way(scene: Scene) -> None:
    own = scene.book(WHOLE, duration=hours(5))
    scene.book(WHOLE, duration=hours(5), actor=scene.sam, team="speech")
    why = told(join(scene), scene.lena)
    assert (why.rule, why.numbers["asked"], why.numbers["free"]) == (Rule.ROOM, 1, 0)
    assert [row.id for row in why.rows.shown] == [own.pk]
    assert (why.rows.others, why.rows.others_milli) == (1, 1000)


def test_behind_another_it_says_who_comes_first(scene: Scene) -> None:
    scene.book(WHOLE, duration=hours(2))
    first = join(scene, gpus(2), length=hours(4), actor=scene.sam)
    longer = join(scene, length=hours(3))
    why = told(longer, scene.lena)
    assert why.rule is Rule.TURN
    assert why.place is not None
    assert (why.place.position, why.rows.shown, why.rows.others) == (2, (), 1)
    assert told(longer, scene.otto).rows.shown[0].id == first.pk


def test_a_full_line_is_named_with_its_figures_and_what_counts_there(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1000)
    used = scene.book(WHOLE, duration=hours(5))
    why = told(join(scene), scene.milo)
    assert why.rule is Rule.QUOTA
    assert (why.numbers["reason"], why.numbers["cap"], why.numbers["used"]) == ("over_cap", 1000, 1000)
    assert why.numbers["team"] == "vision"
    assert [row.id for row in why.rows.shown] == [used.pk]


def test_to_whom_it_is_only_shown_the_figures_of_its_team_are_not(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.vision).update(cap_milli=1000)
    scene.book(WHOLE, duration=hours(5))
    row = join(scene)
    Reservation.objects.filter(pk=row.pk).update(visibility="everyone")
    why = told(row, scene.sam)
    assert (why.rule, why.numbers, why.rows.shown, why.rows.others) == (Rule.QUOTA, {}, (), 1)
    assert told(row, scene.milo).numbers["cap"] == 1000


def test_what_is_not_lent_is_said_so(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000, lend_milli=0)
    why = told(join(scene), scene.lena)
    assert (why.rule, why.numbers["reason"]) == (Rule.LENDING, "not_lent")


def test_an_offer_says_until_when(scene: Scene) -> None:
    row = join(scene, asks_first=True)
    serve(scene)
    why = told(row, scene.lena)
    assert (why.rule, set(why.numbers)) == (Rule.OFFER, {"hold_until"})


def test_before_its_earliest_start_that_is_the_reason(scene: Scene) -> None:
    assert told(join(scene, start=NOON + hours(1)), scene.lena).rule is Rule.WINDOW


def test_what_has_borrowed_is_told_how_much(scene: Scene) -> None:
    why = told(scene.book(WHOLE, start=NOON + hours(1)), scene.lena)
    assert why.rule is Rule.BORROWED
    assert (why.numbers["borrowed_milli"], why.numbers["charge_milli"]) == (1000, 1000)


def test_what_is_taken_back_says_for_what_but_names_nobody_else(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    lent = scene.book(gpus(2), duration=hours(9))
    holder = scene.book(gpus(2), actor=scene.sam, team="speech", now=NOON + SECOND)
    why = told(lent, scene.lena)
    assert (why.rule, why.numbers["within"]) == (Rule.RECALL, "guaranteed")
    assert str(holder.pk) not in str(why.numbers)
    assert not {"asked_milli", "victims"} & set(why.numbers)
    seen = access.reservation(scene.lena, lent.pk)
    (event,) = (one for one in reservations.events_for(seen) if one.verb == "reservation.recalled")
    assert event.after["borrowed_milli"] == 2000
    assert not {"recall_for", "asked_milli", "victims"} & set(event.after)
    assert (why.rows.shown, why.rows.others) == ((), 1)
    assert [row.id for row in told(lent, scene.otto).rows.shown] == [holder.pk]


def test_what_was_taken_back_says_it_still(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=2000)
    lent = scene.book(gpus(2), start=NOON + hours(1), duration=hours(9))
    scene.book(gpus(2), actor=scene.sam, team="speech", start=NOON + hours(1), now=NOON + SECOND)
    lanes.due(now=NOON + hours(1))
    why = told(lent, scene.lena, hours(1))
    assert (why.state, why.rule) == ("preempted", Rule.RECALL)
