"""Which reservations somebody sees, and what is shown of one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg.types.range import TimestamptzRange

from pool.core.shapes import MigAsk
from pool.models import Allocation, Gpu, Membership, Node, Outage, Reservation, Team, User
from pool.models.reservations import SHARED
from pool.queries import clock
from pool.queries import reservations as queries
from pool.services import events, lanes, reservations, waiting
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=1, whole_gpus=1)
    return made


def view(scene: Scene, user: User | None = None) -> queries.ReservationView:
    return queries.as_resource(queries.visible_to(user or scene.lena).get())


# --- Who sees what ----------------------------------------------------------------


def test_a_team_sees_its_own_and_a_stranger_nothing(scene: Scene) -> None:
    scene.book()
    assert queries.visible_to(scene.milo).count() == 1
    assert queries.visible_to(scene.sam).count() == 0
    assert queries.visible_to(AnonymousUser()).count() == 0


def test_an_operator_sees_all(scene: Scene) -> None:
    scene.book()
    scene.book(actor=scene.sam, team="speech")
    assert queries.visible_to(scene.otto).count() == 2


def test_a_role_above_sees_what_is_below_and_not_the_other_way_round(scene: Scene) -> None:
    below = Team.objects.create(name="vision-lab", parent=scene.vision)
    junior = User.objects.create(username="junior")
    Membership.objects.create(team=below, user=junior, role="member")
    scene.book()
    assert queries.visible_to(junior).count() == 0
    assert queries.visible_to(scene.lena).count() == 1


def test_what_is_shown_to_everyone_is_seen_by_everyone_who_is_signed_in(scene: Scene) -> None:
    scene.book(visibility="everyone")
    assert queries.visible_to(scene.sam).count() == 1
    assert queries.visible_to(AnonymousUser()).count() == 0


def test_an_owner_sees_it_after_leaving_the_team(scene: Scene) -> None:
    scene.book(owner="milo")
    Membership.objects.filter(user=scene.milo).delete()
    assert queries.visible_to(scene.milo).count() == 1


def test_whoever_is_locked_out_sees_nothing(scene: Scene) -> None:
    scene.book(visibility="everyone")
    scene.lena.is_active = False
    assert queries.visible_to(scene.lena).count() == 0


def test_mine_are_those_that_i_own_and_that_are_not_over(scene: Scene) -> None:
    scene.book(owner="milo")
    later = scene.book(start=NOON + hours(2))
    sooner = scene.book(start=NOON + hours(1))
    over = scene.book(start=NOON + hours(3))
    reservations.release(actor=scene.lena, reservation_id=over.pk, now=NOON)
    assert list(queries.mine(scene.lena)) == [sooner, later]


def test_its_events_are_told_oldest_first(scene: Scene) -> None:
    booked = scene.book(start=NOON + hours(1))
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    assert [event.verb for event in queries.events(booked)] == [
        "reservation.booked",
        "reservation.cancelled",
    ]


def test_a_nodes_own_words_are_for_its_team_and_not_for_everyone(scene: Scene) -> None:
    booked = scene.book(visibility="everyone")
    said = {"node": "node-1", "text": "SIGTERM to 4711 (python, milo): over", "data": {"pid": 4711}}
    events.record(
        "reservation.signal",
        actor=None,
        now=NOON,
        reservation_id=booked.pk,
        team_id=booked.team_id,
        after=said,
    )

    def told(user: User) -> object:
        return queries.events_for(queries.visible_to(user).get(pk=booked.pk))[-1].after

    assert told(scene.milo) == said
    assert told(scene.otto) == said
    assert told(scene.sam) == {"node": "node-1"}


# --- What is shown ----------------------------------------------------------------


def test_a_slice_shows_its_place_and_once_it_is_there_how_to_use_it(scene: Scene) -> None:
    scene.book(MigAsk(profile="1g.10gb"), title="training", owner="milo")
    before = view(scene)
    assert (before.title, before.team, before.pool, before.owner, before.booked_by) == (
        "training",
        "vision",
        "main",
        "milo",
        "lena",
    )
    (one,) = before.allocations
    assert (one.node, one.gpu, one.kind, one.profile, one.size, one.grid) == (
        "dgx-01",
        0,
        "mig",
        "1g.10gb",
        1,
        8,
    )
    assert (one.mig_uuid, one.env) == ("", {})
    settle(scene.pool, Gpu.objects.get(index=0))
    (one,) = view(scene).allocations
    assert one.mig_uuid.startswith("MIG-")
    assert one.env["CUDA_VISIBLE_DEVICES"] == one.mig_uuid


def test_a_whole_gpu_is_named_by_its_own_uuid(scene: Scene) -> None:
    scene.book(WHOLE)
    gpu = Gpu.objects.get(index=1)
    settle(scene.pool, gpu)
    (one,) = view(scene).allocations
    assert one.env == {
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "NVIDIA_VISIBLE_DEVICES": gpu.uuid,
        "GPUPOOL_RESERVATION": str(view(scene).id),
        "GPUPOOL_ALLOCATION": str(one.id),
    }


def test_what_is_over_gives_no_way_to_a_gpu(scene: Scene) -> None:
    booked = scene.book()
    settle(scene.pool, Gpu.objects.get(index=0))
    reservations.release(actor=scene.lena, reservation_id=booked.pk, now=NOON)
    assert view(scene).allocations[0].env == {}


def test_a_node_that_is_not_heard_from_is_named_with_the_time(scene: Scene) -> None:
    scene.book()
    assert view(scene).unknown_since == {}
    silent = clock.real_now() - timedelta(seconds=100)
    Node.objects.update(received_at=silent)
    assert view(scene).unknown_since == {"dgx-01": silent}
    Node.objects.update(unknown_since=NOON)
    assert view(scene).unknown_since == {"dgx-01": NOON}


def test_a_page_of_them_takes_a_fixed_number_of_statements(scene: Scene) -> None:
    for _ in range(3):
        scene.book()
    with CaptureQueriesContext(connection) as made:
        shown = [queries.as_resource(row) for row in queries.visible_to(scene.otto)]
    assert len(shown) == Allocation.objects.count() == 3
    assert len(made) == 2


# --- What was given up --------------------------------------------------------------


def test_what_was_given_up_is_shown_nowhere(scene: Scene) -> None:
    booked = scene.book(WHOLE)
    add_node(scene.pool, "other", mig_gpus=0, whole_gpus=1)
    Node.objects.exclude(name="other").update(unknown_since=NOON)
    lanes.due(now=NOON)
    assert Allocation.objects.count() == 2
    assert [one.node for one in view(scene).allocations] == ["other"]
    booked.refresh_from_db()
    assert [one.node for one in queries.as_new_resource(booked).allocations] == ["other"]
    assert view(scene).unknown_since == {}


# --- What hardware did to it --------------------------------------------------------


def restarted(scene: Scene) -> tuple[Reservation, Reservation]:
    """A failed booking, and the rest of it, which waits."""
    old = scene.book(WHOLE, duration=hours(3))
    Reservation.objects.filter(pk=old.pk).update(state="failed", restartable=True)
    Allocation.objects.filter(reservation=old).update(holds=False)
    again = waiting.restart(old, NOON + hours(1), now=NOON + hours(1))
    assert again is not None
    return old, again


def test_what_failed_and_the_rest_of_it_name_one_another(scene: Scene) -> None:
    old, again = restarted(scene)
    seen = {one.pk: queries.as_resource(one) for one in queries.visible_to(scene.lena)}
    assert (seen[old.pk].continues, seen[old.pk].continued_by) == (None, again.pk)
    assert (seen[again.pk].continues, seen[again.pk].continued_by) == (old.pk, None)


def test_it_tells_when_it_could_not_be_used(scene: Scene) -> None:
    booked = scene.book(WHOLE)
    gpu = Gpu.objects.get(index=1)
    for start, end in ((2, None), (0, 1)):
        period = TimestamptzRange(NOON + hours(start), None if end is None else NOON + hours(end))
        Outage.objects.create(reservation=booked, gpu=gpu, period=period, reason="gpu_lost")
    assert [(one.node, one.gpu, one.start, one.end) for one in queries.outages(booked)] == [
        ("dgx-01", 1, NOON, NOON + hours(1)),
        ("dgx-01", 1, NOON + hours(2), None),
    ]


def test_a_share_is_told_with_what_keeps_its_limits(scene: Scene) -> None:
    scene.book(WHOLE)
    gpu = Gpu.objects.get(index=1)
    settle(scene.pool, gpu)
    shared = {"kind": "share", "tenancy": SHARED, "share_memory_mib": 8192}
    Allocation.objects.update(**shared, share_compute_pct=20, share_limit_pct=40)
    Gpu.objects.filter(pk=gpu.pk).update(use="share", sharing="mps")
    (one,) = view(scene).allocations
    assert one.part is not None
    assert (one.part.sharing, one.part.multi_user) == ("mps", False)
    assert one.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert one.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
