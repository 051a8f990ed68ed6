"""Taking back what was lent: for whom, from whom, when, and what becomes of those who leave."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import Ask, Class, GpuAsk, MigAsk
from pool.core.states import HOLDING
from pool.core.terms import Terms
from pool.models import Allocation, Event, Gpu, OutboxMessage, Pool, QuotaLine, Reservation, Team
from pool.services import explanations, lanes, reservations
from portal import explainwords, noticewords
from tests.scene import H100, NOON, WHOLE, Scene, add_node, hours, make_scene, refused, settle

pytestmark = pytest.mark.django_db

#: The pool's notice: five minutes.
SOON = NOON + timedelta(minutes=5)
TWO = GpuAsk(models=(H100,), count=2)


@pytest.fixture
def scene() -> Scene:
    """Two GPUs, both guaranteed to speech; vision has none of its own and borrows."""
    made = make_scene(cap=9000, guaranteed=0)
    add_node(made.pool, mig_gpus=0, whole_gpus=2)
    QuotaLine.objects.filter(team=made.speech).update(guaranteed_milli=2000)
    Pool.objects.update(min_run_seconds=0)
    return made


def speech(scene: Scene, ask: Ask = WHOLE, **more: Any) -> Reservation:
    return scene.book(ask, actor=scene.sam, team="speech", **more)


def now_is(row: Reservation) -> Reservation:
    return Reservation.objects.get(pk=row.pk)


def rest_of(row: Reservation) -> Reservation:
    return Reservation.objects.get(continues=row)


def test_what_is_guaranteed_is_had_after_the_notice_and_lasts_as_long_as_was_asked(scene: Scene) -> None:
    victims = [scene.book(WHOLE, duration=hours(4)) for _ in range(2)]
    mine = speech(scene, duration=hours(2))
    assert (mine.state, mine.state_reason) == ("scheduled", "reclaiming")
    assert (mine.period.lower, mine.period.upper) == (SOON, SOON + hours(2))
    (victim,) = (row for row in map(now_is, victims) if row.recall_at)
    assert (victim.state, victim.recall_at, victim.notice_until) == ("starting", SOON, SOON)
    assert (victim.recall_for, victim.notice_why) == (mine, "reclaimed")
    held = Allocation.objects.get(reservation=victim)
    assert (held.blocked.upper, held.period.upper) == (SOON, NOON + hours(4))


def test_the_newest_gives_way(scene: Scene) -> None:
    old = scene.book(WHOLE, duration=hours(4), now=NOON - timedelta(minutes=9))
    new = scene.book(WHOLE, duration=hours(4))
    speech(scene)
    assert (now_is(old).recall_at, now_is(new).recall_at) == (None, SOON)


def test_the_lower_priority_gives_way_before_that(scene: Scene) -> None:
    low = scene.book(WHOLE, duration=hours(4), now=NOON - timedelta(minutes=9), terms=Terms(priority=10))
    high = scene.book(WHOLE, duration=hours(4))
    speech(scene)
    assert (now_is(low).recall_at, now_is(high).recall_at) == (SOON, None)


def test_who_has_just_begun_has_the_least_time_to_run(scene: Scene) -> None:
    Pool.objects.update(min_run_seconds=1800)
    scene.book(WHOLE, duration=hours(4), now=NOON - timedelta(minutes=20))
    scene.book(WHOLE, duration=hours(4), now=NOON - timedelta(minutes=20))
    assert speech(scene).period.lower == NOON + timedelta(minutes=10)


def test_no_recall_takes_longer_than_an_hour(scene: Scene) -> None:
    Pool.objects.update(min_run_seconds=36_000)
    for _ in range(2):
        scene.book(WHOLE, duration=hours(48))
    assert speech(scene).period.lower == NOON + hours(1)


def test_at_the_recall_it_ends_and_the_rest_waits_at_the_head(scene: Scene) -> None:
    scene.book(TWO, duration=hours(4))
    victim = Reservation.objects.get()
    mine = speech(scene, TWO)
    lanes.due(now=SOON - timedelta(seconds=1))
    assert now_is(victim).state == "starting"
    lanes.due(now=SOON)
    assert (now_is(victim).state, now_is(victim).state_reason) == ("ending", "reclaimed")
    assert now_is(mine).state == "starting"
    rest = rest_of(victim)
    assert (rest.state, rest.waiting_order) == ("waiting", -1)
    assert rest.period.upper - rest.period.lower == hours(4) - timedelta(minutes=5)


def test_what_was_never_there_is_preempted_at_once_when_it_ends(scene: Scene) -> None:
    Pool.objects.update(frozen=True)
    victim = scene.book(TWO, duration=hours(4))
    Pool.objects.update(frozen=False)
    speech(scene, TWO)
    lanes.due(now=SOON)
    assert (now_is(victim).state, now_is(victim).state_reason) == ("preempted", "reclaimed")


def test_what_would_begin_later_goes_back_to_wait_at_once(scene: Scene) -> None:
    later = scene.book(TWO, start=NOON + hours(1), duration=hours(4))
    mine = speech(scene, TWO, start=NOON + hours(2))
    assert (mine.period.lower, mine.state_reason) == (NOON + hours(2), "reclaiming")
    victim = now_is(later)
    assert (victim.state, victim.recall_at) == ("scheduled", NOON + hours(2))
    other = speech(scene, TWO, start=NOON + hours(0.5), duration=hours(0.25))
    assert other.state_reason == "booked"


def test_what_begins_within_is_taken_back_before_it_began(scene: Scene) -> None:
    later = scene.book(TWO, start=NOON + hours(1), duration=hours(4))
    mine = speech(scene, TWO, duration=hours(2))
    assert (mine.period.lower, mine.state_reason) == (SOON, "reclaiming")
    assert (now_is(later).state, now_is(later).state_reason) == ("preempted", "reclaimed")
    assert rest_of(later).period.upper - rest_of(later).period.lower == hours(4)


@pytest.mark.parametrize(
    "more", [{"klass": Class.ONLINE}, {"terms": Terms(preemptible=False)}], ids=["online", "firm"]
)
def test_what_is_firm_is_within_the_guaranteed_and_never_taken(scene: Scene, more: dict[str, Any]) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=1000)
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=1000)
    firm = scene.book(WHOLE, duration=hours(4), **more)
    scene.book(WHOLE, duration=hours(4))
    speech(scene)
    assert now_is(firm).recall_at is None
    assert Reservation.objects.filter(recall_at__isnull=False).count() == 1


def test_nobody_is_taken_from_if_it_would_still_not_fit(scene: Scene) -> None:
    Reservation.objects.all().delete()
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=1000)
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=1000)
    for _ in range(2):
        scene.book(WHOLE, duration=hours(4))
    refused(Code.NO_CAPACITY, lambda: speech(scene, TWO))
    assert not Reservation.objects.filter(recall_at__isnull=False).exists()


def test_who_would_only_borrow_takes_nothing_back(scene: Scene) -> None:
    QuotaLine.objects.filter(team=scene.speech).update(guaranteed_milli=0)
    scene.book(TWO, duration=hours(4))
    refused(Code.NO_CAPACITY, lambda: speech(scene))


def test_a_hold_takes_nothing_back(scene: Scene) -> None:
    scene.book(TWO, duration=hours(4))
    refused(
        Code.NO_CAPACITY,
        lambda: reservations.hold(
            actor=scene.sam, team="speech", pool="main", ask=WHOLE, duration=hours(1), now=NOON
        ),
    )


def test_a_frozen_pool_takes_nothing_back_and_lets_nobody_leave(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    speech(scene)
    Pool.objects.update(frozen=True)
    lanes.due(now=SOON + timedelta(minutes=1))
    assert now_is(victim).state == "starting"
    refused(Code.NO_CAPACITY, lambda: speech(scene))
    Pool.objects.update(frozen=False)
    lanes.due(now=SOON + timedelta(minutes=2))
    assert now_is(victim).state == "ending"


def test_what_is_not_needed_any_more_is_put_back(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    mine = speech(scene)
    reservations.release(actor=scene.sam, reservation_id=mine.pk, now=NOON + timedelta(minutes=1))
    lanes.due(now=NOON + timedelta(minutes=2))
    stays = now_is(victim)
    assert (stays.recall_at, stays.recall_for, stays.notice_until, stays.notice_why) == (None, None, None, "")
    uppers = Allocation.objects.filter(reservation=victim).values_list("blocked", flat=True)
    assert {one.upper for one in uppers} == {NOON + hours(4)}
    assert Event.objects.filter(verb="reservation.put_back", reservation_id=victim.pk).count() == 1
    lanes.due(now=SOON)
    assert now_is(victim).state == "starting"
    assert OutboxMessage.objects.filter(kind="returned", reservation=victim).count() == 1


def test_what_somebody_else_took_meanwhile_is_not_put_back(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    mine = speech(scene, TWO)
    reservations.release(actor=scene.sam, reservation_id=mine.pk, now=NOON + timedelta(minutes=1))
    speech(scene, start=NOON + hours(1), now=NOON + timedelta(minutes=1))
    lanes.due(now=NOON + timedelta(minutes=2))
    assert now_is(victim).recall_at == SOON


def test_the_owner_is_told_who_why_and_what_next(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    mine = speech(scene, visibility="everyone")
    told = OutboxMessage.objects.get(recipient=scene.lena)
    assert (told.kind, told.reservation_id) == ("evicted", victim.pk)
    assert told.data == {
        "recall_at": SOON.isoformat(),
        "why": "reclaimed",
        "within": "guaranteed",
        "for_team": "speech",
    }
    event = Event.objects.get(verb="reservation.recalled")
    assert event.after["recall_for"] == str(mine.pk)
    assert (event.after["asked_milli"], event.after["borrowed_milli"], event.after["victims"]) == (
        1000,
        2000,
        1,
    )


def test_a_team_is_not_named_to_those_who_may_not_see_what_it_booked(scene: Scene) -> None:
    scene.book(TWO, duration=hours(4))
    speech(scene)
    assert "for_team" not in OutboxMessage.objects.get(recipient=scene.lena).data


def test_more_time_is_no_way_out(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    speech(scene)
    told = refused(
        Code.WRONG_STATE,
        lambda: reservations.extend(actor=scene.lena, reservation_id=victim.pk, duration=hours(1), now=NOON),
    )
    assert told["state"] == "recalled"


def test_a_lane_that_runs_twice_does_nothing_twice(scene: Scene) -> None:
    scene.book(TWO, duration=hours(4))
    speech(scene, TWO)
    lanes.due(now=SOON)
    before = (Reservation.objects.count(), Event.objects.count(), OutboxMessage.objects.count())
    lanes.due(now=SOON)
    assert (Reservation.objects.count(), Event.objects.count(), OutboxMessage.objects.count()) == before


def test_in_a_gang_across_the_line_nobody_is_taken_while_another_will_do(scene: Scene) -> None:
    add_node(scene.pool, "dgx-02", mig_gpus=0, whole_gpus=1)
    QuotaLine.objects.filter(team=scene.vision).update(guaranteed_milli=1000)
    gang = scene.book(TWO, duration=hours(4), terms=Terms(priority=1))
    single = scene.book(WHOLE, duration=hours(4))
    speech(scene)
    assert (now_is(gang).recall_at, now_is(single).recall_at) == (None, SOON)


def times(row: Reservation) -> tuple[datetime, datetime]:
    return row.period.lower, row.period.upper


def test_the_charge_of_who_left_ends_with_the_recall(scene: Scene) -> None:
    victim = scene.book(TWO, duration=hours(4))
    speech(scene, TWO)
    # Its period stays what was booked; what counts until then is cut.
    assert times(now_is(victim)) == (NOON, NOON + hours(4))
    assert speech(scene, start=NOON + hours(2)).state == "scheduled"


def test_who_is_inside_in_anothers_place_goes_last_of_all_and_gets_as_much_elsewhere() -> None:
    scene = make_scene(cap=9000, guaranteed=1000)
    add_node(scene.pool, mig_gpus=2)
    QuotaLine.objects.filter(team=scene.speech).update(unit="gpu")
    Pool.objects.update(min_run_seconds=0)
    half = MigAsk(profile="3g.40gb")
    times = (NOON - timedelta(minutes=n) for n in (3, 2, 1))
    first, *others = (scene.book(half, duration=hours(6), now=now) for now in times)
    # The third was borrowed, and so may stand on the GPU that speech is guaranteed; now it is inside.
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    for gpu in Gpu.objects.all():
        settle(scene.pool, gpu)
    mine = speech(scene, MigAsk(profile="7g.80gb"), duration=hours(1))
    assert (mine.state_reason, mine.period.lower) == ("reclaiming", SOON)
    (victim,) = (row for row in map(now_is, others) if row.recall_at)
    assert victim == others[-1]
    (told,) = OutboxMessage.objects.filter(kind="evicted", reservation=victim)
    assert told.data["inside_gpu"] == "0.5"
    assert "lie within what vision is guaranteed" in noticewords.said(told).sentence
    assert explainwords.sentence(explanations.explain(user=scene.lena, row=victim, now=NOON)).startswith(
        "0.5 GPU of what"
    )
    lanes.due(now=SOON)
    lanes.due(now=SOON)
    rest = rest_of(victim)
    assert rest.state in HOLDING
    (place,) = Allocation.objects.filter(reservation=rest)
    assert place.gpu_id == Allocation.objects.get(reservation=others[0]).gpu_id


def keeping(scene: Scene) -> list[Reservation]:
    """Two GPUs more, of which audio keeps one; vision borrows three."""
    add_node(scene.pool, "dgx-02", mig_gpus=0, whole_gpus=2)
    audio = Team.objects.create(name="audio")
    its = {"guaranteed_milli": 1000, "cap_milli": 4000, "lend_milli": 0, "unit": "gpu"}
    QuotaLine.objects.create(team=audio, pool=scene.pool, **its)
    return [scene.book(WHOLE, duration=hours(4)) for _ in range(3)]


def test_who_lends_waits_for_a_recall_and_takes_nothing_of_what_another_keeps(scene: Scene) -> None:
    victims = keeping(scene)
    mine = speech(scene)
    assert (mine.state_reason, mine.period.lower) == ("reclaiming", SOON)
    assert [bool(now_is(row).recall_at) for row in victims].count(True) == 1


def test_where_nobody_can_be_taken_back_what_is_guaranteed_is_given_all_the_same(scene: Scene) -> None:
    keeping(scene)
    Reservation.objects.update(state="ending")
    mine = speech(scene)
    assert (mine.state, mine.period.lower) == ("starting", NOON)
