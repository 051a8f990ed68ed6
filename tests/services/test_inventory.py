"""services.inventory: who may manage, use, freeze and retire, and what bookings forbid."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Invalid, Refusal
from pool.core.shapes import MigAsk
from pool.models import Allocation, Command, Event, Gpu, Node, Pool, Reservation
from pool.queries import clock, fleets
from pool.services import broker, inventory, reservations, tokens
from tests.cast import Cast, SimNode, enrol_node


def book(cast: Cast, **more: Any) -> Reservation:
    values: dict[str, Any] = {
        "actor": cast.lena,
        "team": "vision",
        "ask": MigAsk(profile="1g.10gb"),
        "duration": timedelta(hours=1),
        "now": clock.now(),
    }
    return reservations.book(pool="main", **values | more)


def refused(code: Code, use_case: Any, **values: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        use_case(now=clock.now(), **values)
    assert caught.value.code == code
    return caught.value


# --- Pools ------------------------------------------------------------------------


def test_an_operator_makes_a_pool(cast: Cast) -> None:
    made = inventory.make_pool(
        actor=cast.otto, name="lab", title="Lab", zone="Asia/Shanghai", now=clock.now()
    )
    assert (made.name, made.zone, made.change) == ("lab", "Asia/Shanghai", 0)
    event = Event.objects.get(verb="pool.made")
    assert (event.actor, event.pool_id) == (cast.otto, made.pk)


def test_a_pool_needs_a_right_a_free_name_and_a_zone(cast: Cast) -> None:
    refused(Code.FORBIDDEN, inventory.make_pool, actor=cast.lena, name="lab")
    refused(Code.TAKEN, inventory.make_pool, actor=cast.otto, name="main")
    refused(Code.INVALID, inventory.make_pool, actor=cast.otto, name="Lab!")
    refused(Code.INVALID, inventory.make_pool, actor=cast.otto, name="lab", zone="Mars/Base")
    assert Pool.objects.count() == 1


# --- Manage -----------------------------------------------------------------------


def test_managing_commands_the_gpu_at_once(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    uuid = node.gpus[0].uuid
    change = Pool.objects.get().change
    inventory.set_use(actor=cast.otto, gpus=[uuid], use="mig", now=clock.now())
    (row,) = inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, now=clock.now())
    assert (row.managed, row.generation) == (True, 1)
    assert (row.wanted["mig"], row.wanted["held"]) == (True, [])
    assert Pool.objects.get().change == change + 2
    event = Event.objects.get(verb="gpu.managed")
    assert (event.actor, event.gpu_id, event.node_id) == (cast.otto, row.pk, node.row.pk)


def test_managing_twice_changes_nothing(cast: Cast, node: SimNode) -> None:
    inventory.set_managed(actor=cast.otto, gpus=[node.gpus[0].uuid], managed=True, now=clock.now())
    assert Command.objects.count() == 1


@pytest.mark.parametrize("who", ["lena", "milo", "ada", "sam"])
def test_only_operators_and_admins_manage(cast: Cast, who: str) -> None:
    node = enrol_node(cast.main, managed=False)
    uuids = [node.gpus[0].uuid]
    refused(Code.FORBIDDEN, inventory.set_managed, actor=getattr(cast, who), gpus=uuids, managed=True)
    refused(Code.FORBIDDEN, inventory.set_use, actor=getattr(cast, who), gpus=uuids, use="mig")
    refused(
        Code.FORBIDDEN, inventory.freeze, actor=getattr(cast, who), target="node", id="node-1", frozen=True
    )
    refused(Code.FORBIDDEN, inventory.retire, actor=getattr(cast, who), target="gpu", id=uuids[0])
    assert not Gpu.objects.get().managed


def test_a_gpu_that_is_not_there_is_not_found_and_the_others_stay(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    uuids = [node.gpus[0].uuid, "GPU-none"]
    refused(Code.NOT_FOUND, inventory.set_managed, actor=cast.otto, gpus=uuids, managed=True)
    assert not Gpu.objects.get().managed


def test_a_gpu_that_cannot_do_mig_is_not_managed_for_slices(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    Gpu.objects.update(mig_capable=False)
    uuid = node.gpus[0].uuid
    error = refused(Code.INVALID, inventory.set_use, actor=cast.otto, gpus=[uuid], use="mig")
    assert isinstance(error, Invalid)
    assert error.errors[0].code == "not_mig_capable"
    inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, now=clock.now())
    assert Gpu.objects.get().use == "whole"


def test_a_lost_gpu_is_not_managed(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    node.gpus[0].lost = True
    node.send()
    refused(Code.INVALID, inventory.set_managed, actor=cast.otto, gpus=[node.gpus[0].uuid], managed=True)


def test_a_gpu_with_bookings_stays_managed_and_they_are_named(cast: Cast, node: SimNode) -> None:
    now, later = book(cast), book(cast, start=clock.now() + timedelta(days=2))
    uuids = [node.gpus[0].uuid]
    error = refused(Code.WRONG_STATE, inventory.set_managed, actor=cast.otto, gpus=uuids, managed=False)
    assert error.data["count"] == 2
    assert set(error.data["reservations"]) == {str(now.pk), str(later.pk)}
    assert Gpu.objects.get().managed


def test_letting_go_leaves_the_gpu_as_it_is(cast: Cast, node: SimNode) -> None:
    inventory.set_managed(actor=cast.otto, gpus=[node.gpus[0].uuid], managed=False, now=clock.now())
    row = Gpu.objects.get()
    assert (row.managed, row.wanted, row.generation) == (False, None, 1)
    assert node.send().commands == ()
    assert not Command.objects.filter(state="open").exists()


# --- What somebody else gives out ----------------------------------------------------


def elsewhere(node: SimNode) -> str:
    """A GPU that is not managed by us, on a node that slurmd gives out."""
    node.send(node.report(managed_by=("slurmd",)))
    return node.gpus[0].uuid


def test_what_somebody_else_gives_out_is_not_managed(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    uuid = elsewhere(node)
    with pytest.raises(Refusal) as refused:
        inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, now=clock.now())
    assert refused.value.code == Code.INVALID
    (error,) = refused.value.data["errors"]
    assert (error["code"], error["managers"]) == ("managed_elsewhere", ["slurmd"])
    assert not Gpu.objects.get().managed


def test_an_operator_states_that_it_was_excluded_there(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    uuid = elsewhere(node)
    inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, excluded=True, now=clock.now())
    row = Gpu.objects.get()
    assert (row.managed, row.excluded) == (True, True)
    assert list(Event.objects.filter(gpu_id=row.pk).order_by("pk").values_list("verb", flat=True))[-2:] == [
        "gpu.excluded",
        "gpu.managed",
    ]
    assert node.send(node.report(managed_by=("slurmd",))).manage == (uuid,)


def test_giving_it_back_to_the_other_is_refused_while_it_is_booked(cast: Cast, node: SimNode) -> None:
    uuid = elsewhere(node)
    inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, excluded=True, now=clock.now())
    book(cast)
    with pytest.raises(Refusal) as refused:
        inventory.set_managed(actor=cast.otto, gpus=[uuid], managed=True, excluded=False, now=clock.now())
    assert refused.value.code == Code.WRONG_STATE


# --- Shares ----------------------------------------------------------------------------


def test_a_gpu_is_given_in_shares_as_its_node_can_keep_them_apart(cast: Cast, node: SimNode) -> None:
    node.send(node.report(sharing=("mps",)))
    uuid = node.gpus[0].uuid
    (row,) = inventory.set_use(actor=cast.otto, gpus=[uuid], use="share", sharing="mps", now=clock.now())
    assert (row.use, row.sharing, row.wanted["mig"], row.wanted["sharing"]) == ("share", "mps", False, "mps")
    (row,) = inventory.set_use(actor=cast.otto, gpus=[uuid], use="whole", now=clock.now())
    assert (row.use, row.sharing, row.wanted["sharing"]) == ("whole", "", None)


@pytest.mark.parametrize(
    ("use", "sharing", "pointer", "why"),
    [
        ("share", "", "/sharing", "not_a_choice"),
        ("share", "magic", "/sharing", "not_a_choice"),
        ("mig", "mps", "/sharing", "not_together"),
        ("share", "hami", "/gpus", "not_offered"),
        ("lent", "", "/use", "not_a_choice"),
    ],
)
def test_a_use_that_makes_no_sense_is_refused(
    cast: Cast, node: SimNode, use: str, sharing: str, pointer: str, why: str
) -> None:
    node.send(node.report(sharing=("mps",)))
    with pytest.raises(Refusal) as refused:
        inventory.set_use(
            actor=cast.otto, gpus=[node.gpus[0].uuid], use=use, sharing=sharing, now=clock.now()
        )
    (error,) = refused.value.data["errors"]
    assert (error["pointer"], error["code"]) == (pointer, why)


def test_an_agent_that_knows_no_shares_gives_none(cast: Cast, node: SimNode) -> None:
    node.send(node.report(sharing=("mps",)))
    node.send(node.report(wire=1))
    with pytest.raises(Refusal) as refused:
        inventory.set_use(
            actor=cast.otto, gpus=[node.gpus[0].uuid], use="share", sharing="mps", now=clock.now()
        )
    assert refused.value.data["errors"][0]["code"] == "update_needed"


# --- Access ----------------------------------------------------------------------------


def test_how_holders_get_their_slice_is_chosen_from_what_the_node_offers(cast: Cast, node: SimNode) -> None:
    node.send(node.report(access=("advisory", "cdi")))
    row = inventory.set_access(actor=cast.otto, node="node-1", access="cdi", now=clock.now())
    assert row.access == "cdi"
    assert Command.objects.get(state="open").layout["access"] == "cdi"
    event = Event.objects.get(verb="node.access_set")
    assert (event.before, event.after) == ({"access": "advisory"}, {"node": "node-1", "access": "cdi"})
    with pytest.raises(Refusal) as refused:
        inventory.set_access(actor=cast.otto, node="node-1", access="unix", now=clock.now())
    assert refused.value.data["errors"][0]["code"] == "not_a_choice"


def test_choosing_it_is_an_operators(cast: Cast, node: SimNode) -> None:
    with pytest.raises(Refusal) as refused:
        inventory.set_access(actor=cast.lena, node="node-1", access="advisory", now=clock.now())
    assert refused.value.code == Code.FORBIDDEN


# --- Use ---------------------------------------------------------------------------


def test_a_change_of_use_commands_the_mode(cast: Cast, node: SimNode) -> None:
    (row,) = inventory.set_use(actor=cast.otto, gpus=[node.gpus[0].uuid], use="whole", now=clock.now())
    assert (row.use, row.wanted["mig"], row.wanted["held"]) == ("whole", False, [])
    node.follow()
    assert not node.gpus[0].mig
    event = Event.objects.filter(verb="gpu.use_set").latest("pk")
    assert (event.before, event.after) == ({"use": "mig"}, {"gpu": row.uuid, "use": "whole"})


def test_the_use_does_not_change_under_a_booking_of_next_week(cast: Cast, node: SimNode) -> None:
    booked = book(cast, start=clock.now() + timedelta(days=7))
    uuids = [node.gpus[0].uuid]
    refused(Code.WRONG_STATE, inventory.set_use, actor=cast.otto, gpus=uuids, use="whole")
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    inventory.set_use(actor=cast.otto, gpus=uuids, use="whole", now=clock.now())


def test_an_unknown_use_is_refused(cast: Cast, node: SimNode) -> None:
    refused(Code.INVALID, inventory.set_use, actor=cast.otto, gpus=[node.gpus[0].uuid], use="nothing")


# --- Freeze --------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["gpu", "node", "pool", "everything"])
def test_a_freeze_keeps_bookings_and_is_told(cast: Cast, node: SimNode, target: Any) -> None:
    booked = book(cast)
    node.follow()
    name = {"gpu": node.gpus[0].uuid, "node": "node-1", "pool": "main", "everything": None}[target]
    change = Pool.objects.get().change
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=True, now=clock.now())
    booked.refresh_from_db()
    assert booked.state == "active"
    assert Pool.objects.get().change == change + 1
    noun = "pool" if target == "everything" else target
    assert Event.objects.filter(verb=f"{noun}.frozen", actor=cast.otto).exists()
    inventory.freeze(actor=cast.otto, target=target, id=name, frozen=False, now=clock.now())
    assert Event.objects.filter(verb=f"{noun}.thawed").exists()


def test_everything_is_every_pool(cast: Cast) -> None:
    Pool.objects.create(name="lab")
    inventory.freeze(actor=cast.otto, target="everything", frozen=True, now=clock.now())
    assert set(Pool.objects.values_list("frozen", flat=True)) == {True}
    inventory.freeze(actor=cast.otto, target="everything", frozen=False, now=clock.now())
    assert set(Pool.objects.values_list("frozen", flat=True)) == {False}


@pytest.mark.parametrize("target", ["gpu", "node", "pool"])
def test_what_is_not_there_cannot_be_frozen(cast: Cast, target: Any) -> None:
    refused(Code.NOT_FOUND, inventory.freeze, actor=cast.otto, target=target, id="none", frozen=True)


# --- Retire ----------------------------------------------------------------------------


def test_a_retired_node_loses_its_gpus_its_token_and_its_redis_user(
    cast: Cast, node: SimNode, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(broker, "acl_drop", lambda row: dropped.append(row.name))
    Node.objects.update(broker_hash="0" * 64)
    with django_capture_on_commit_callbacks(execute=True):
        inventory.retire(actor=cast.otto, target="node", id="node-1", now=clock.now())
    gpu, row = Gpu.objects.get(), Node.objects.get()
    assert gpu.retired_at is not None
    assert (gpu.managed, gpu.wanted, row.broker_hash) == (False, None, "")
    assert dropped == ["node-1"]
    assert tokens.authenticate_node("gpn_" + "0" * 12 + "_" + "0" * 48) is None


def test_a_gpu_with_bookings_is_not_retired(cast: Cast, node: SimNode) -> None:
    book(cast, start=clock.now() + timedelta(days=2))
    refused(Code.WRONG_STATE, inventory.retire, actor=cast.otto, target="gpu", id=node.gpus[0].uuid)
    refused(Code.WRONG_STATE, inventory.retire, actor=cast.otto, target="node", id="node-1")
    assert Gpu.objects.get().retired_at is None


@pytest.mark.parametrize("gone", ["node", "card"])
def test_what_was_ending_where_nobody_can_look_is_written_off_when_it_is_retired(
    cast: Cast, node: SimNode, gone: str
) -> None:
    booked = book(cast)
    node.follow()
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    if gone == "node":
        Node.objects.update(received_at=clock.real_now() - timedelta(days=1))
    else:
        node.send(node.report(gpus=()))
    inventory.retire(actor=cast.otto, target="node", id="node-1", now=clock.now())
    booked.refresh_from_db()
    assert (booked.state, booked.state_reason) == ("ended", "released")
    assert not Allocation.objects.filter(holds=True).exists()


def test_what_is_ending_on_a_node_that_is_heard_is_seen_clean_before_it_retires(
    cast: Cast, node: SimNode
) -> None:
    booked = book(cast)
    node.follow()
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    refused(Code.WRONG_STATE, inventory.retire, actor=cast.otto, target="node", id="node-1")
    node.follow()
    inventory.retire(actor=cast.otto, target="node", id="node-1", now=clock.now())


def test_a_silent_node_is_not_retired_under_an_active_booking(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    Node.objects.update(received_at=clock.real_now() - timedelta(days=1))
    refused(Code.WRONG_STATE, inventory.retire, actor=cast.otto, target="node", id="node-1")
    booked.refresh_from_db()
    assert booked.state == "active"


def test_a_gpu_that_comes_back_is_only_observed(cast: Cast, node: SimNode) -> None:
    uuid = node.gpus[0].uuid
    inventory.retire(actor=cast.otto, target="gpu", id=uuid, now=clock.now())
    inventory.retire(actor=cast.otto, target="gpu", id=uuid, retired=False, now=clock.now())
    row = Gpu.objects.get()
    assert (row.retired_at, row.managed) == (None, False)


def test_an_operator_names_blocks_and_the_levels_above_them(cast: Cast, node: SimNode) -> None:
    row = Node.objects.get()
    pool = inventory.set_block_sizes(actor=cast.otto, pool=row.pool.name, sizes=(18, 36), now=clock.now())
    assert pool.block_sizes == [18, 36]
    assert (
        inventory.set_block(actor=cast.otto, node=row.name, block=" rack-1 ", now=clock.now()).block
        == "rack-1"
    )
    assert fleets.current(pool.pk).blocks == ("rack-1",)
    assert fleets.current(pool.pk).block_sizes == (18, 36)
    assert Event.objects.filter(verb__in=["node.block_set", "pool.blocks_set"]).count() == 2
    for sizes in ((0,), (18, 20), (36, 18), (18, 18)):
        with pytest.raises(Invalid):
            inventory.set_block_sizes(actor=cast.otto, pool=pool.name, sizes=sizes, now=clock.now())
    with pytest.raises(Invalid):
        inventory.set_block(actor=cast.otto, node=row.name, block="x" * 65, now=clock.now())
