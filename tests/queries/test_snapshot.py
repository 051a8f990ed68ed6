"""One reading of a pool: what is free, what is in the way, what the team may and does use."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.mig import Media
from pool.core.period import Period
from pool.core.placement import GpuView, Portion
from pool.core.shapes import MigAsk
from pool.models import Blocker, Gpu, Node, Pool, Reservation
from pool.queries import clock, snapshot
from pool.queries.snapshot import Snapshot
from tests.scene import H100, HALF, NOON, SHARE, WHOLE, Scene, add_node, add_shares, hours, make_scene, offers

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=2000, guaranteed=1000)
    add_node(made.pool, mig_gpus=1, whole_gpus=1)
    return made


def take(scene: Scene, start: float = 0, length: float = 1, **more: object) -> Snapshot:
    period = Period(NOON + hours(start), NOON + hours(start + length))
    return snapshot.take(scene.pool.pk, period, team_id=scene.vision.pk, now=NOON, **more)  # type: ignore[arg-type]


def test_it_says_at_which_change_number_it_was_taken(scene: Scene) -> None:
    before = take(scene).change
    scene.book()
    assert take(scene).change == snapshot.change_of(scene.pool.pk) == before + 1


def test_it_shows_each_gpu_as_it_was_reported(scene: Scene) -> None:
    mig, whole = take(scene).gpus
    assert (mig.node, mig.index, mig.model, mig.use, mig.grid, mig.usable) == (
        "dgx-01",
        0,
        H100,
        "mig",
        8,
        True,
    )
    assert "1g.10gb" in {p.name for p in mig.profiles}
    assert (whole.use, whole.profiles) == ("whole", ())


def test_only_what_overlaps_the_period_is_busy(scene: Scene) -> None:
    scene.book(MigAsk(profile="1g.10gb+me"), start=NOON + hours(1))
    assert [gpu.busy for gpu in take(scene, 0).gpus] == [(), ()]
    assert [gpu.busy for gpu in take(scene, 2).gpus] == [(), ()]
    (busy,) = take(scene, 1.5).gpus[0].busy
    assert (busy.size, busy.media, busy.period.start) == (1, Media.EXT, NOON + hours(1))
    assert busy.profile_id is not None


def test_a_whole_gpu_takes_part_in_no_media_rule(scene: Scene) -> None:
    scene.book(WHOLE)
    (busy,) = take(scene).gpus[1].busy
    assert (busy.start, busy.size, busy.media, busy.profile_id) == (0, 8, None, None)


@pytest.mark.parametrize(("profile", "media"), [("1g.10gb", Media.DEFAULT), ("1g.10gb+me", Media.EXT)])
def test_the_media_share_is_read_back_from_the_columns(scene: Scene, profile: str, media: Media) -> None:
    scene.book(MigAsk(profile=profile))
    assert take(scene).gpus[0].busy[0].media is media


def test_a_blocker_is_masked_from_now_until_it_is_cleared(scene: Scene) -> None:
    Blocker.objects.create(gpu=Gpu.objects.get(index=0), span=(2, 4), since=NOON - hours(1), kind="foreign")
    (busy,) = take(scene, 1000).gpus[0].busy
    assert (busy.start, busy.size, busy.period) == (2, 2, Period(NOON, None))


def test_what_is_over_but_still_there_is_busy_only_where_clean_is_wanted(scene: Scene) -> None:
    booked = scene.book(HALF, duration=hours(1))
    Reservation.objects.filter(pk=booked.pk).update(state="ending")
    later = snapshot.take(
        scene.pool.pk,
        Period(NOON + hours(1), NOON + hours(2)),
        team_id=scene.vision.pk,
        now=NOON + hours(1),
    )
    assert later.gpus[0].busy == ()
    (busy,) = later.clean_gpus[0].busy
    assert (busy.size, busy.period) == (4, Period(NOON + hours(1), NOON + hours(2)))
    assert len(later.standing.uses) == 0


def test_what_is_still_booked_before_the_period_is_in_nobodys_way(scene: Scene) -> None:
    scene.book(HALF)
    later = take(scene, 1)
    assert later.clean_gpus is later.gpus


def test_a_reservation_can_be_left_out(scene: Scene) -> None:
    booked = scene.book(HALF)
    assert take(scene).gpus[0].busy
    alone = take(scene, without=booked.pk)
    assert (alone.gpus[0].busy, len(alone.standing.uses)) == ((), 0)


def test_narrowed_to_some_gpus_where_the_teams_stand_stays_whole(scene: Scene) -> None:
    scene.book(WHOLE)
    scene.book(HALF, actor=scene.sam, team="speech")
    mig = Gpu.objects.get(index=0)
    some = take(scene, gpu_ids={mig.pk})
    assert [gpu.id for gpu in some.gpus] == [mig.pk]
    assert sorted(some.standing.uses.milli.tolist()) == [500, 1000]
    assert len(some.whole.id) == 2


def test_another_pool_is_not_read(scene: Scene) -> None:
    add_node(Pool.objects.create(name="other"), "elsewhere")
    assert {gpu.node for gpu in take(scene).gpus} == {"dgx-01"}


def test_silence_makes_a_gpu_unusable_by_the_portals_own_clock(scene: Scene) -> None:
    Node.objects.update(received_at=clock.real_now() - timedelta(seconds=44))
    assert take(scene).gpus[0].usable
    Node.objects.update(received_at=clock.real_now() - timedelta(seconds=46))
    assert take(scene).gpus[0].why == "unknown"


def test_before_any_report_a_gpu_has_no_profiles_and_without_offers_the_catalogues() -> None:
    assert snapshot.profiles_of(H100, "null", 8) == ()
    assert "1g.10gb" in {p.name for p in snapshot.profiles_of(H100, "[]", 8)}


def test_what_the_driver_reported_wins_over_the_catalogue() -> None:
    told = [{**one, "memory_mib": 1234} for one in offers(H100)]
    assert {p.memory_mib for p in snapshot.profiles_of(H100, json.dumps(told), 8)} == {1234}


def test_the_number_of_statements_is_fixed(scene: Scene) -> None:
    take(scene)  # what the pool is usually asked for, and its lines, are looked for now and then only
    with CaptureQueriesContext(connection) as few:
        take(scene)
    add_node(scene.pool, "more", mig_gpus=5)
    for _ in range(10):
        scene.book()
    with CaptureQueriesContext(connection) as many:
        take(scene)
    assert len(few) == len(many) == 4


# --- Shares, faults and other managers ------------------------------------------------------


def shares(scene: Scene, **of_pool: object) -> GpuView:
    Pool.objects.update(**of_pool)
    return next(gpu for gpu in take(scene).gpus if gpu.use == "share")


def test_a_share_is_busy_with_its_portion_and_takes_part_in_no_media_rule(scene: Scene) -> None:
    add_shares(scene.pool)
    scene.book(SHARE)
    (busy,) = shares(scene).busy
    assert (busy.start, busy.size, busy.media, busy.profile_id) == (0, 8, None, None)
    assert busy.portion == Portion(8192, 10, 10, f"user:{scene.lena.pk}")


@pytest.mark.parametrize(("sharing", "several", "one_user"), [("mps", False, True), ("mps", True, False)])
def test_a_gpu_for_shares_shows_what_its_pool_allows(
    scene: Scene, sharing: str, several: bool, one_user: bool
) -> None:
    add_shares(scene.pool)
    view = shares(scene, most_shares=7, mps_multi_user=several)
    assert (view.sharing, view.most_shares, view.one_user) == (sharing, 7, one_user)
    assert view.ledgers.tenants == 7


def test_only_mps_belongs_to_one_account(scene: Scene) -> None:
    add_shares(scene.pool, sharing=Gpu.Sharing.HAMI)
    assert not shares(scene).one_user


@pytest.mark.parametrize(("spoken", "why"), [(0, None), (1, "update_needed"), (2, None)])
def test_an_agent_that_knows_no_shares_gets_none(scene: Scene, spoken: int, why: str | None) -> None:
    add_shares(scene.pool)
    Node.objects.update(wire=spoken)
    assert shares(scene).why == why
    assert take(scene).gpus[0].usable


def test_a_gpu_with_a_fault_is_not_healthy(scene: Scene) -> None:
    Blocker.objects.create(gpu=Gpu.objects.get(index=0), span=(0, 8), since=NOON, kind="health")
    assert [gpu.why for gpu in take(scene).gpus] == ["unhealthy", None]


@pytest.mark.parametrize(("excluded", "why"), [(False, "managed_elsewhere"), (True, None)])
def test_what_another_manager_gives_out_is_not_ours(scene: Scene, excluded: bool, why: str | None) -> None:
    Node.objects.update(managed_by=["slurmd"])
    Gpu.objects.filter(index=0).update(excluded=excluded)
    assert take(scene).gpus[0].why == why
