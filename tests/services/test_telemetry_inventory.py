"""services.telemetry_inventory: GPUs that come, change, go or are blocked, and values that make no sense."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk
from pool.models import Blocker, Command, Event, Gpu, GpuState, Node, Pool
from pool.queries import clock
from pool.services import health, inventory, reservations
from tests.cast import Cast, SimNode, enrol_node


def book(cast: Cast, profile: str = "1g.10gb") -> Any:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile=profile),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def blockers() -> list[tuple[int, int, str]]:
    rows = Blocker.objects.order_by("span", "kind")
    return [(row.span.lower, row.span.upper, row.kind) for row in rows]


# --- GPUs -----------------------------------------------------------------------


def test_a_new_gpu_is_observed_and_named_after_the_catalogue(cast: Cast) -> None:
    node = enrol_node(cast.main, model="RTX-PRO-6000-96GB", managed=False)
    (gpu,) = node.rows()
    assert (gpu.model, gpu.grid, gpu.managed, gpu.mig_capable) == ("RTX-PRO-6000-96GB", 12, False, True)
    assert gpu.profiles[0]["name"].startswith("MIG 1g.")
    event = Event.objects.get(verb="gpu.found")
    assert (event.actor_label, event.gpu_id, event.node_id) == ("node:node-1", gpu.pk, node.row.pk)


def test_a_gpu_that_is_in_no_catalogue_keeps_the_name_of_its_driver(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    strange = node.gpus[0].report(
        uuid="GPU-strange", index=5, name="NVIDIA X9000", pci_device_id=1, grid=4, offers=()
    )
    node.send(node.report(gpus=(node.gpus[0].report(), strange)))
    gpu = Gpu.objects.get(uuid="GPU-strange")
    assert (gpu.model, gpu.grid, gpu.profiles) == ("X9000", 4, [])


def test_a_gpu_is_found_under_the_pools_lock(cast: Cast) -> None:
    change = Pool.objects.get().change
    enrol_node(cast.main, managed=False)
    assert Pool.objects.get().change == change + 1


def test_what_the_driver_does_not_tell_any_more_stays_as_it_was_known(node: SimNode) -> None:
    before = node.rows()[0]
    bare = node.gpus[0].report(memory_total_mib=None, mig_capable=None, grid=None, offers=())
    node.send(node.report(gpus=(bare,)))
    after = node.rows()[0]
    assert (after.memory_mib, after.mig_capable, after.profiles) == (
        before.memory_mib,
        before.mig_capable,
        before.profiles,
    )


def test_new_offers_replace_the_old_ones(node: SimNode) -> None:
    fewer = node.gpus[0].offers()[:2]
    node.send(node.report(gpus=(node.gpus[0].report(offers=fewer),)))
    assert len(node.rows()[0].profiles) == 2


def test_a_grid_that_changes_under_a_booking_is_not_believed(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.send(node.report(gpus=(node.gpus[0].report(grid=4),)))
    assert node.rows()[0].grid == 8
    assert Node.objects.get().dropped_values == 1


def test_a_gpu_that_is_not_reported_any_more_stays_and_is_unknown(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2)
    node.send(node.report(gpus=(node.gpus[0].report(),)))
    gone = node.rows()[1]
    assert gone.managed
    assert gone.state.instances is None
    assert gone.state.readings == {}
    assert blockers() == [(0, 8, "unknown")]
    node.send()
    assert blockers() == []


def test_a_node_that_reports_no_gpu_at_all_frees_nothing(cast: Cast, node: SimNode) -> None:
    node.send(node.report(gpus=()))
    with pytest.raises(Refusal) as refused:
        book(cast)
    assert refused.value.code == Code.NO_CAPACITY


def test_a_gpu_of_another_node_is_not_taken(cast: Cast, node: SimNode) -> None:
    other = enrol_node(cast.main, "node-2", managed=False)
    mine = node.gpus[0]
    other.send(other.report(gpus=(other.gpus[0].report(), mine.report(index=1))))
    assert Gpu.objects.get(uuid=mine.uuid).node_id == node.row.pk
    assert Node.objects.get(name="node-2").dropped_values == 1
    assert Node.objects.get(name="node-1").dropped_values == 0


def test_a_card_that_was_retired_may_move_to_another_node(cast: Cast, node: SimNode) -> None:
    card = node.gpus[0]
    other = enrol_node(cast.main, "node-2", managed=False)
    inventory.retire(actor=cast.otto, target="gpu", id=card.uuid, now=clock.now())
    node.send(node.report(gpus=()))
    card.index = 1
    other.gpus.append(card)
    other.send()
    row = Gpu.objects.get(uuid=card.uuid)
    assert (row.node.name, row.retired_at, row.managed, row.index) == ("node-2", None, False, 1)


def test_a_retired_gpu_that_reports_stays_retired(cast: Cast, node: SimNode) -> None:
    inventory.retire(actor=cast.otto, target="gpu", id=node.gpus[0].uuid, now=clock.now())
    assert node.send().manage == ()
    assert node.rows()[0].retired_at is not None


def test_a_lost_gpu_is_no_longer_placed_on_and_comes_back(cast: Cast, node: SimNode) -> None:
    node.gpus[0].lost = True
    node.send()
    with pytest.raises(Refusal) as refused:
        book(cast)
    assert refused.value.data["counts"] == {"lost": 1}
    node.gpus[0].lost = False
    for _ in range(5):
        node.send()
    health.give_back(actor=cast.otto, gpu=node.gpus[0].uuid, now=clock.now())
    assert book(cast).state == "starting"


# --- Nonsense -------------------------------------------------------------------


def test_a_nonsense_value_is_dropped_alone_and_counted(node: SimNode) -> None:
    bad = node.gpus[0].report(
        power_w=wire.Window(min=-5, mean="warm", max=True, last=100),
        temperature_c=wire.Window(min=1, mean=2, max=3, last=1e9),
        memory_used_mib=wire.Window(min=0, mean=10, max=20, last=10**30),
    )
    node.send(node.report(gpus=(bad,)))
    readings = GpuState.objects.get().readings
    assert readings["power_w"] == {"min": None, "mean": None, "max": None, "last": 100, "source": "nvml"}
    assert readings["temperature_c"]["last"] is None
    assert readings["memory_used_mib"]["max"] == 20
    assert Node.objects.get().dropped_values == 5


def test_a_report_full_of_nonsense_is_still_a_report(node: SimNode) -> None:
    odd = wire.GpuReport(
        uuid=node.gpus[0].uuid,
        index=-3,
        name="\0" * 300,
        pci_bus_id="x" * 500,
        memory_total_mib="much",
        grid=10**9,
        generation=-1,
        held=("'; drop table", "x" * 99),
        fabric_clique=2**70,
        offers=(
            wire.Offer(
                profile_id=2**80,
                name="no\0name",
                compute_slices=1e400,
                size=-1,
                memory_mib=None,
                sm={"a": "\0"},
                max_instances=[],
                starts=(2**90,),
            ),
        ),
        instances=(node.gpus[0].instance(19, -1, 1, "1g.10gb"), node.gpus[0].instance(19, 7, 9, None)),
        trouble=wire.Trouble(generation=2**80, code="x" * 500, detail="\0"),
    )
    node.send(node.report(gpus=(odd, odd), driver="\0", agent="a" * 99))
    assert Node.objects.get().seq == node.seq
    assert Node.objects.get().dropped_values > 5
    assert blockers() == [(0, 8, "unknown")]


def test_a_generation_beyond_reason_does_not_force_observe(node: SimNode) -> None:
    node.send(node.report(gpus=(node.gpus[0].report(generation=2**60),)))
    assert node.rows()[0].managed


# --- Blockers --------------------------------------------------------------------


def test_an_instance_that_the_agent_did_not_make_blocks_its_span_until_it_is_gone(
    cast: Cast, node: SimNode
) -> None:
    card = node.gpus[0]
    card.instances.append(card.instance(9, 0, 4, "3g.40gb", owned=False))
    node.send()
    assert blockers() == [(0, 4, "foreign")]
    assert Blocker.objects.get().detail == "3g.40gb"
    with pytest.raises(Refusal) as refused:
        book(cast, "7g.80gb")
    assert refused.value.code == Code.NO_CAPACITY
    assert book(cast, "3g.40gb").allocations.get().span.lower == 4
    card.instances.clear()
    node.send()
    assert blockers() == []


def test_a_blocker_that_stays_is_one_row_and_no_further_change(node: SimNode) -> None:
    card = node.gpus[0]
    card.instances.append(card.instance(9, 0, 4, "3g.40gb", owned=False))
    node.send()
    row, change = Blocker.objects.values().get(), Pool.objects.get().change
    node.send()
    assert (Blocker.objects.values().get(), Pool.objects.get().change) == (row, change)


def test_a_slice_that_its_process_does_not_give_up_is_an_overrun(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    reservations.release(actor=cast.lena, reservation_id=booked.pk, now=clock.now())
    user = wire.Process(pid=4711, user="milo", name="python")
    card = node.gpus[0]
    card.instances = [
        card.instance(19, i.start, 1, i.profile, allocation=i.allocation, processes=(user,))
        for i in card.instances
    ]
    card.trouble = wire.Trouble(generation=3, code="in_use", nvml=19, holders=(user,))
    node.send()
    span = booked.allocations.get().span
    assert blockers() == [(span.lower, span.upper, "overrun")]
    assert Blocker.objects.get().detail == "python 4711 of milo"
    booked.refresh_from_db()
    assert booked.state == "ending"
    node.follow()
    assert blockers() == []
    booked.refresh_from_db()
    assert booked.state == "ended"


def test_instances_that_could_not_be_read_clear_no_blocker(node: SimNode) -> None:
    card = node.gpus[0]
    card.instances.append(card.instance(9, 0, 4, "3g.40gb", owned=False))
    node.send()
    node.send(node.report(gpus=(card.report(instances=None),)))
    assert blockers() == [(0, 4, "foreign")]


# --- After a restore of the database ------------------------------------------------


def test_an_agent_that_knows_more_than_we_do_is_only_observed_and_nothing_is_wiped(
    cast: Cast, node: SimNode
) -> None:
    booked = book(cast)
    node.follow()
    # The database of an hour ago: the booking and its command are not in it.
    booked.allocations.update(holds=False)
    Gpu.objects.update(generation=1, wanted={"mig": True, "held": []})
    Command.objects.filter(generation=2).delete()
    answer = node.send(received=clock.real_now() + timedelta(seconds=2))
    row = node.rows()[0]
    assert (row.managed, row.generation, row.wanted) == (False, 2, None)
    assert (answer.commands, answer.manage) == ((), ())
    event = Event.objects.get(verb="gpu.observe_forced")
    assert event.before == {"managed": True, "generation": 1}
    assert len(node.gpus[0].instances) == 1


def test_a_number_that_was_given_twice_with_a_booking_that_was_forgotten_forces_observe(
    cast: Cast, node: SimNode
) -> None:
    forgotten = book(cast)
    node.follow()
    held = node.gpus[0].held
    Gpu.objects.update(generation=1, wanted={"mig": True, "held": []})
    Command.objects.filter(generation=2).delete()
    forgotten.allocations.all().delete()
    book(cast)  # generation 2 once more
    node.send()
    assert (node.rows()[0].managed, node.rows()[0].generation) == (False, 2)
    assert (node.gpus[0].held, len(node.gpus[0].instances)) == (held, 1)
    # Managed anew, it gets what is wanted now.
    inventory.set_managed(actor=cast.otto, gpus=[node.gpus[0].uuid], managed=True, now=clock.now())
    node.send()
    assert node.rows()[0].managed
    node.follow()
    assert node.gpus[0].held == tuple(one["allocation"] for one in node.rows()[0].wanted["held"])


def test_a_newer_number_that_the_agent_could_not_do_forces_observe_too(cast: Cast, node: SimNode) -> None:
    node.gpus[0].trouble = wire.Trouble(generation=9, code="in_use")
    node.send()
    assert (node.rows()[0].managed, node.rows()[0].generation) == (False, 9)


def test_trouble_beyond_reason_forces_nothing(cast: Cast, node: SimNode) -> None:
    node.gpus[0].trouble = wire.Trouble(generation=2**62, code="in_use")
    node.send()
    assert node.rows()[0].managed


def test_after_a_restore_managing_again_commands_a_newer_generation(cast: Cast, node: SimNode) -> None:
    node.gpus[0].generation = 9
    node.send()
    inventory.set_managed(actor=cast.otto, gpus=[node.gpus[0].uuid], managed=True, now=clock.now())
    (command,) = node.carve()
    assert command.generation == 10


def test_a_node_that_is_new_here_may_bring_generations_of_an_earlier_portal(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    card = node.gpus[0]
    card.uuid, card.generation = "GPU-from-elsewhere", 7
    node.send()
    assert Gpu.objects.get(uuid=card.uuid).generation == 7
    assert not Event.objects.filter(verb="gpu.observe_forced").exists()
