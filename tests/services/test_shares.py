"""Shares through the services: booked, written, commanded, extended, started one beside another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pool.core import wire
from pool.core.errors import Code, Invalid
from pool.core.shapes import Class, ShareAsk, Sharing
from pool.core.shares import shareable_mib
from pool.core.states import Reason
from pool.models import Allocation, Blocker, Command, Event, Gpu, Node, Pool, Reservation, Team, User
from pool.models.reservations import SHARED
from pool.services import broker, commands, lanes, reservations
from tests.scene import NOON, SHARE, Scene, add_shares, hours, make_scene, refused, seen, settle

pytestmark = pytest.mark.django_db

YIELDING = ShareAsk(memory_mib=8192, guaranteed=0, limit=100)


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_shares(made.pool)
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[wire.Command]:
    found: list[wire.Command] = []
    monkeypatch.setattr(broker, "nudge", lambda messages: found.extend(messages))
    return found


def named(person: User, name: str) -> None:
    person.posix_name = name
    person.save()


def layout() -> wire.Layout:
    return msgspec.convert(Gpu.objects.get().wanted, wire.Layout)


def of(booked: Reservation) -> Allocation:
    return booked.allocations.get(holds=True)


# --- What is written ----------------------------------------------------------------------


def test_a_share_is_written_with_its_ledgers_and_the_common_tenancy(scene: Scene) -> None:
    named(scene.lena, "lena")
    row = of(scene.book(SHARE))
    assert (row.kind, row.tenancy, row.profile, row.profile_id) == ("share", SHARED, "", None)
    assert (row.span.lower, row.span.upper) == (0, 8)
    assert (row.share_memory_mib, row.share_compute_pct, row.share_limit_pct) == (8192, 10, 10)
    assert (row.mps_user, row.adopted) == ("lena", False)
    gpu = Gpu.objects.get()
    assert row.charge_milli == -(-1000 * 8192 // shareable_mib(gpu.memory_mib or 0))
    (event,) = Event.objects.filter(verb="reservation.booked")
    (told,) = event.after["allocations"]  # type: ignore[index]
    assert (told["memory_mib"], told["compute"]) == (8192, {"guaranteed": 10, "limit": 10})


def test_a_percentage_is_of_the_gpu_that_it_gets(scene: Scene) -> None:
    row = of(scene.book(ShareAsk(memory_pct=50, guaranteed=10, limit=10)))
    assert row.share_memory_mib == shareable_mib(Gpu.objects.get().memory_mib or 0) // 2


def test_only_batch_work_may_take_more_than_its_guarantee(scene: Scene) -> None:
    with pytest.raises(Invalid) as caught:
        scene.book(YIELDING)
    assert caught.value.errors[0].pointer == "/ask/compute/limit"
    assert of(scene.book(YIELDING, klass=Class.BATCH)).share_limit_pct == 100


@pytest.mark.parametrize(
    ("klass", "said", "restartable"),
    [
        (Class.BATCH, None, True),
        (Class.INTERACTIVE, None, False),
        (Class.BATCH, False, False),
        (Class.ONLINE, True, True),
    ],
)
def test_batch_work_may_be_placed_anew_unless_it_says_otherwise(
    scene: Scene, klass: Class, said: bool | None, restartable: bool
) -> None:
    assert scene.book(SHARE, klass=klass, restartable=said).restartable is restartable


# --- Whose MPS server -----------------------------------------------------------------------


def test_the_server_is_the_owners_else_the_teams_else_nobody_elses(scene: Scene) -> None:
    assert of(scene.book(SHARE)).mps_user == f"user:{scene.lena.pk}"
    Reservation.objects.update(state="ended")
    Allocation.objects.update(holds=False)
    Team.objects.filter(name="vision").update(posix_name="svc-vision")
    assert of(scene.book(SHARE)).mps_user == "svc-vision"


def test_another_account_gets_another_gpu_or_hears_why(scene: Scene) -> None:
    scene.book(SHARE)
    told = refused(Code.NO_CAPACITY, lambda: scene.book(SHARE, actor=scene.sam, team="speech"))
    assert (told["counts"], told["first_time"]) == ({"other_user": 1}, (NOON + hours(1)).isoformat())
    add_shares(scene.pool, "dgx-03")
    first, second = Gpu.objects.order_by("pk")
    assert of(scene.book(SHARE, actor=scene.sam, team="speech")).gpu_id == second.pk
    assert of(scene.book(SHARE)).gpu_id == first.pk


def test_a_pool_may_let_one_server_serve_several(scene: Scene) -> None:
    Pool.objects.update(mps_multi_user=True)
    for actor, team in ((scene.lena, "vision"), (scene.sam, "speech")):
        assert of(scene.book(SHARE, actor=actor, team=team)).mps_user is None
    assert layout().multi_user
    assert len(layout().held) == 2


def test_other_kinds_know_no_such_rule(scene: Scene) -> None:
    Gpu.objects.update(sharing="hami")
    for actor, team in ((scene.lena, "vision"), (scene.sam, "speech")):
        assert of(scene.book(SHARE, actor=actor, team=team)).mps_user is None


def test_a_pool_bounds_the_shares_of_a_gpu(scene: Scene) -> None:
    Pool.objects.update(most_shares=2)
    scene.book(SHARE)
    scene.book(SHARE)
    assert refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))["counts"] == {"shares_full": 1}


# --- What the node is told ---------------------------------------------------------------------


def test_the_layout_says_what_each_share_has_and_whose_it_is(scene: Scene) -> None:
    named(scene.lena, "lena")
    Team.objects.filter(name="vision").update(posix_name="svc-vision")
    booked = scene.book(SHARE)
    wanted = layout()
    assert (wanted.mig, wanted.sharing, wanted.multi_user, wanted.reset) == (False, "mps", False, 0)
    (held,) = wanted.held
    assert held.share == wire.Share(memory_mib=8192, compute_pct=10, limit_pct=10)
    assert (held.profile, held.start, held.size) == (None, 0, 8)
    assert (held.reservation, held.team, held.users) == (str(booked.pk), "vision", ("lena", "svc-vision"))
    assert not held.adopt


def test_batch_work_yields_to_the_others_on_the_gpu(scene: Scene) -> None:
    scene.book(YIELDING, klass=Class.BATCH)
    (held,) = layout().held
    assert held.share == wire.Share(memory_mib=8192, compute_pct=0, limit_pct=100, batch=True)


@pytest.mark.parametrize(("access", "prohibited"), [("advisory", False), ("cdi", True), ("unix", True)])
def test_what_nobody_holds_is_closed_where_the_node_keeps_others_off(
    scene: Scene, access: str, prohibited: bool
) -> None:
    Node.objects.update(access=access)
    Gpu.objects.update(reset=3)
    scene.book(SHARE)
    assert (layout().access, layout().prohibited, layout().reset) == (access, prohibited, 3)


def test_what_was_foreign_use_before_is_told_as_such(scene: Scene) -> None:
    scene.book(SHARE)
    Allocation.objects.update(adopted=True)
    (gpu,) = Gpu.objects.select_related("node")
    assert [held.adopt for held in commands.layouts([gpu], NOON)[gpu.pk].held] == [True]


def test_an_agent_of_the_version_before_is_told_nothing_of_shares(
    scene: Scene, sent: list[wire.Command], django_capture_on_commit_callbacks: Any
) -> None:
    Node.objects.update(wire=1)
    told = refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))
    assert told["counts"] == {"update_needed": 1}
    (gpu,) = Gpu.objects.select_related("node")
    with django_capture_on_commit_callbacks(execute=True):
        assert commands.reissue([gpu], NOON) == []
        Command.objects.create(
            gpu=gpu,
            node=gpu.node,
            generation=9,
            issued_at=NOON,
            layout=commands.builtins(wire.Layout(mig=False)),
        )
        commands.nudge_open([gpu.pk])
    assert sent == []


def test_slices_are_told_to_it_in_its_own_version(
    scene: Scene, sent: list[wire.Command], django_capture_on_commit_callbacks: Any
) -> None:
    Gpu.objects.update(use="mig", sharing="")
    Node.objects.update(wire=1)
    (gpu,) = Gpu.objects.select_related("node")
    with django_capture_on_commit_callbacks(execute=True):
        commands.reissue([gpu], NOON)
    assert [one.wire for one in sent] == [1]


# --- More time --------------------------------------------------------------------------------


def extend(scene: Scene, row: Reservation, by: float = 2) -> Reservation:
    return reservations.extend(actor=scene.lena, reservation_id=row.pk, duration=hours(by), now=NOON)


def test_a_share_is_extended_beside_others(scene: Scene) -> None:
    first = scene.book(SHARE)
    scene.book(ShareAsk(memory_pct=80, guaranteed=90, limit=90), start=NOON + hours(1))
    assert extend(scene, first).period.upper == NOON + hours(3)


def test_it_is_refused_with_the_end_that_its_ledgers_allow(scene: Scene) -> None:
    first = scene.book(SHARE)
    scene.book(ShareAsk(memory_pct=10, guaranteed=50, limit=50), start=NOON + hours(1), duration=hours(4))
    scene.book(ShareAsk(memory_pct=10, guaranteed=45, limit=45), start=NOON + hours(2))
    told = refused(Code.NO_CAPACITY, lambda: extend(scene, first))
    assert told["counts"] == {"compute_full": 1}
    assert told["latest_end"] == (NOON + hours(2)).isoformat()


# --- One beside another -------------------------------------------------------------------------


def settled(scene: Scene, **report: Any) -> Gpu:
    gpu = Gpu.objects.select_related("node__pool").get()
    return settle(scene.pool, gpu, seen(gpu, **report) if report else None)


def test_shares_of_a_gpu_are_active_together(scene: Scene) -> None:
    rows = [scene.book(SHARE), scene.book(SHARE)]
    settled(scene)
    assert {Reservation.objects.get(pk=row.pk).state for row in rows} == {"active"}


def test_one_that_is_ending_does_not_hold_up_what_fits_beside_it(scene: Scene) -> None:
    first = scene.book(SHARE)
    settled(scene)
    reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    second = scene.book(ShareAsk(memory_pct=50, guaranteed=50, limit=50))
    assert second.state_reason == Reason.WAITING_FOR_NODE
    assert of(second).wanted_at == NOON


def test_what_needs_the_memory_of_one_that_is_still_there_waits_for_it(scene: Scene) -> None:
    scene.book(ShareAsk(memory_pct=60, guaranteed=10, limit=10), duration=hours(1))
    later = scene.book(ShareAsk(memory_pct=50, guaranteed=10, limit=10), start=NOON + hours(1))
    settled(scene)
    lanes.due(now=NOON + hours(1))
    later.refresh_from_db()
    assert (later.state, later.state_reason) == ("starting", Reason.WAITING_FOR_CLEANUP)
    assert of(later).wanted_at is None
    gpu = Gpu.objects.select_related("node__pool").get()
    settle(scene.pool, gpu, seen(gpu, held=()), NOON + hours(1))
    later.refresh_from_db()
    assert of(later).wanted_at == NOON + hours(1)


def test_the_same_owners_next_share_takes_over_the_part_of_the_one_before(scene: Scene) -> None:
    ask = ShareAsk(memory_pct=60, guaranteed=60, limit=60)
    scene.book(ask)
    after = scene.book(ask, start=NOON + hours(1))
    settled(scene)
    lanes.due(now=NOON + hours(1))
    after.refresh_from_db()
    assert (after.state, after.state_reason) == ("starting", Reason.WAITING_FOR_NODE)
    assert [held.allocation for held in layout().held] == [str(of(after).pk)]


def test_one_that_was_given_back_early_is_waited_for_also_by_its_owner(scene: Scene) -> None:
    ask = ShareAsk(memory_pct=60, guaranteed=60, limit=60)
    first = scene.book(ask)
    settled(scene)
    after = scene.book(ask, start=NOON + hours(2))
    lanes.due(now=NOON + hours(1))
    first.refresh_from_db()
    assert first.state == "ending"
    lanes.due(now=NOON + hours(2))
    after.refresh_from_db()
    assert (after.state, after.state_reason) == ("starting", Reason.WAITING_FOR_CLEANUP)


def test_two_that_start_together_wait_together_for_the_part_of_one_that_runs_on(scene: Scene) -> None:
    scene.book(ShareAsk(memory_pct=40, guaranteed=10, limit=10))
    half = ShareAsk(memory_pct=50, guaranteed=10, limit=10)
    rows = [scene.book(half, start=NOON + hours(1)) for _ in range(2)]
    settled(scene)
    lanes.due(now=NOON + hours(1))
    assert [of(row).wanted_at for row in rows] == [None, None]


@pytest.mark.parametrize("why", ["ending", "foreign", "nobody knows"])
def test_one_that_runs_on_after_its_end_keeps_only_its_own_part(scene: Scene, why: str) -> None:
    first = scene.book(ShareAsk(memory_pct=60, guaranteed=10, limit=10))
    settled(scene)
    if why != "nobody knows":
        reservations.release(actor=scene.lena, reservation_id=first.pk, now=NOON)
    kind = "foreign" if why == "foreign" else "overrun"
    Blocker.objects.create(gpu=Gpu.objects.get(), span=(0, 8), since=NOON, kind=kind)
    if why == "ending":
        assert of(scene.book(ShareAsk(memory_pct=40, guaranteed=10, limit=10))).wanted_at == NOON
        assert refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))["counts"] == {"memory_full": 1}
    else:
        assert refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))["counts"] == {"blocked": 1}


def test_time_slicing_is_given_only_to_those_who_accept_it(scene: Scene) -> None:
    Gpu.objects.update(sharing=Sharing.TIMESLICE)
    assert refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))["counts"] == {"not_enforced": 1}
    taken = ShareAsk(memory_mib=1, guaranteed=1, limit=1, accept_not_enforced=True)
    assert scene.book(taken).ask["accept_not_enforced"] is True


@pytest.mark.parametrize("excluded", [False, True])
def test_a_gpu_that_something_else_gives_out_is_not_given_unless_it_was_taken_from_that(
    scene: Scene, excluded: bool
) -> None:
    Node.objects.update(managed_by=["device-plugin"])
    Gpu.objects.update(excluded=excluded)
    if excluded:
        assert scene.book(SHARE).state == "starting"
    else:
        assert refused(Code.NO_CAPACITY, lambda: scene.book(SHARE))["counts"] == {"managed_elsewhere": 1}
