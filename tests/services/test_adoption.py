"""services.adoption: foreign use becomes a reservation, and what was booked there goes first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.errors import Code, Invalid, Refusal
from pool.core.shapes import MigAsk
from pool.models import Allocation, Blocker, Command, Event, Gpu, QuotaLine, Reservation
from pool.queries import clock
from pool.services import adoption, inventory, reservations
from tests.cast import Cast, SimNode, enrol_node

HOUR = timedelta(hours=1)
H100 = "H100-80GB"


def adopt(cast: Cast, node: SimNode, **over: Any) -> Reservation:
    values: dict[str, Any] = {
        "actor": cast.otto,
        "gpu": node.gpus[0].uuid,
        "first": 2,
        "team": "vision",
        "owner": "milo",
        "duration": HOUR,
        "now": clock.now(),
    }
    return adoption.adopt(**values | over)


def make_foreign(node: SimNode, profile: str = "2g.20gb", start: int = 2) -> None:
    """Somebody has made an instance by hand."""
    gpu = node.gpus[0]
    known = gpu.catalogue.profile(profile)
    assert known is not None
    gpu.instances.append(gpu.instance(known.profile_id, start, known.size, profile, owned=False))
    node.send()


def book(cast: Cast, ask: Any, start: timedelta = HOUR, **over: Any) -> Reservation:
    values: dict[str, Any] = {"actor": cast.lena, "team": "vision", "pool": "main", "now": clock.now()}
    return reservations.book(ask=ask, start=clock.now() + start, duration=HOUR, **values | over)


def untouched(call: Any) -> Refusal:
    """The refusal of a call that has written nothing."""
    before = (Reservation.objects.count(), Event.objects.count(), list(Allocation.objects.values_list("gpu")))
    with pytest.raises(Refusal) as refused:
        call()
    after = (Reservation.objects.count(), Event.objects.count(), list(Allocation.objects.values_list("gpu")))
    assert after == before
    return refused.value


# --- It becomes one -----------------------------------------------------------------


def test_a_foreign_instance_becomes_a_reservation_of_its_span(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    row = adopt(cast, node, title="Milo's run")
    one = row.allocations.get()
    assert (row.state, row.owner, row.booked_by, row.team) == ("starting", cast.milo, cast.otto, cast.vision)
    assert (one.adopted, one.profile, one.span.lower, one.span.upper) == (True, "2g.20gb", 2, 4)
    assert (row.charge_milli, row.title) == (250, "Milo's run")
    event = Event.objects.get(verb="reservation.adopted")
    assert (event.actor, event.reservation_id) == (cast.otto, row.pk)


def test_the_agent_is_told_to_take_it_on_its_record(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    row = adopt(cast, node)
    (held,) = Command.objects.get(state="open").layout["held"]
    assert (held["allocation"], held["adopt"]) == (str(row.allocations.get().pk), True)
    assert (held["start"], held["size"], held["profile"]) == (2, 2, "2g.20gb")


def test_once_the_agent_has_it_it_is_active_and_nothing_is_in_the_way(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    uuid = node.gpus[0].instances[0].mig_uuid
    row = adopt(cast, node)
    node.send()
    assert Blocker.objects.get().kind == "foreign"  # not before the agent says so
    take_over(node)
    row.refresh_from_db()
    assert (row.state, row.state_reason, row.allocations.get().mig_uuid) == ("active", "applied", uuid)
    assert not Blocker.objects.exists()


def take_over(node: SimNode) -> None:
    """What an agent does about `adopt`: the instance stays, and is its own from then on."""
    gpu, layout = node.gpus[0], Command.objects.get(state="open").layout
    (held,) = layout["held"]
    changed = {"owned": True, "allocation": held["allocation"]}
    gpu.instances = [wire.Instance(**{**_fields(one), **changed}) for one in gpu.instances]
    gpu.held, gpu.generation = (held["allocation"],), Command.objects.get(state="open").generation
    node.send()


def _fields(one: wire.Instance) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_foreign_processes_on_a_whole_gpu_become_a_reservation_of_all_of_it(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    node.gpus[0].processes = (wire.Process(pid=7, name="python", user="milo"),)
    node.send()
    row = adopt(cast, node, first=0)
    one = row.allocations.get()
    assert (one.kind, one.span.lower, one.span.upper, row.charge_milli) == ("gpu", 0, 8, 1000)
    node.follow()
    row.refresh_from_db()
    assert row.state == "active"
    assert not Blocker.objects.exists()


# --- What is booked there -------------------------------------------------------------


def test_what_is_booked_there_later_is_placed_elsewhere_first(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2)
    later = book(cast, MigAsk(profile="7g.80gb"))
    first = later.allocations.get().gpu
    node.gpus.sort(key=lambda gpu: gpu.uuid != first.uuid)
    make_foreign(node)
    adopt(cast, node, duration=3 * HOUR)
    later.refresh_from_db()
    assert later.allocations.get().gpu != first
    assert later.state == "scheduled"


def test_what_fits_nowhere_else_is_named_and_nothing_is_done(cast: Cast, node: SimNode) -> None:
    later = book(cast, MigAsk(profile="7g.80gb"))
    make_foreign(node)
    refusal = untouched(lambda: adopt(cast, node, duration=3 * HOUR))
    assert refusal.code == Code.WRONG_STATE
    assert (refusal.data["count"], refusal.data["reservations"]) == (1, [str(later.pk)])
    assert later.allocations.get().holds


def test_what_is_booked_after_it_stays_where_it_is(cast: Cast, node: SimNode) -> None:
    later = book(cast, MigAsk(profile="7g.80gb"), start=2 * HOUR)
    make_foreign(node)
    adopt(cast, node, duration=HOUR)
    assert later.allocations.get().gpu == Gpu.objects.get()


def test_bookings_beside_it_are_left_alone(cast: Cast, node: SimNode) -> None:
    beside = reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="3g.40gb"),
        duration=HOUR,
        now=clock.now(),
    )
    node.follow()
    span = beside.allocations.get().span
    make_foreign(node, start=0 if span.lower else 4)
    adopt(cast, node, first=0 if span.lower else 4)
    layout = Command.objects.get(state="open").layout
    assert len(layout["held"]) == 2
    beside.refresh_from_db()
    assert beside.state == "active"


# --- Refusals ---------------------------------------------------------------------------


def test_only_operators_adopt(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    for actor in (cast.lena, cast.milo, cast.ada):
        assert untouched(lambda actor=actor: adopt(cast, node, actor=actor)).code == Code.FORBIDDEN


@pytest.mark.parametrize(
    ("over", "pointer", "why"),
    [
        ({"first": 0}, "/first", "nothing_foreign"),
        ({"owner": "sam"}, "/owner", "not_a_member"),
        ({"owner": "nobody"}, "/owner", "not_a_member"),
        ({"duration": None}, "/duration", "one_of"),
        ({"duration": timedelta(seconds=1)}, "/duration", "too_small"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cast: Cast, node: SimNode, over: dict[str, Any], pointer: str, why: str
) -> None:
    make_foreign(node)
    refusal = untouched(lambda: adopt(cast, node, **over))
    assert isinstance(refusal, Invalid)
    (error,) = refusal.data["errors"]
    assert (error["pointer"], error["code"]) == (pointer, why)


def test_what_is_not_there_is_not_found(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    assert untouched(lambda: adopt(cast, node, gpu="GPU-none")).code == Code.NOT_FOUND
    assert untouched(lambda: adopt(cast, node, team="none")).code == Code.NOT_FOUND


def test_the_teams_quota_counts(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    QuotaLine.objects.filter(team=cast.vision).update(guaranteed_milli=0, cap_milli=100)
    assert untouched(lambda: adopt(cast, node)).code == Code.QUOTA_EXCEEDED


def test_an_instance_in_which_nothing_can_compute_is_no_slice(cast: Cast, node: SimNode) -> None:
    gpu = node.gpus[0]
    gpu.instances.append(gpu.instance(14, 2, 2, "2g.20gb", owned=False, ci=None, mig_uuid=None))
    node.send()
    refusal = untouched(lambda: adopt(cast, node))
    assert refusal.data["errors"][0]["code"] == "not_a_slice"


def test_a_gpu_that_takes_no_command_is_not_adopted_on(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    inventory.freeze(actor=cast.otto, target="gpu", id=node.gpus[0].uuid, frozen=True, now=clock.now())
    assert untouched(lambda: adopt(cast, node)).code == Code.WRONG_STATE


def test_an_agent_of_the_version_before_cannot_take_it_over(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    node.send(node.report(wire=1))
    assert untouched(lambda: adopt(cast, node)).data["errors"][0]["code"] == "update_needed"


def test_it_ends_like_any_other(cast: Cast, node: SimNode) -> None:
    make_foreign(node)
    row = adopt(cast, node)
    take_over(node)
    reservations.release(actor=cast.milo, reservation_id=row.pk, now=clock.now())
    assert Command.objects.get(state="open").layout["held"] == []
    node.follow()
    row.refresh_from_db()
    assert row.state == "ended"
