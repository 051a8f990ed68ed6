"""queries.inventory: what is offered and how much there is; unknown is never free."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.shapes import GpuAsk, MigAsk, ShareAsk
from pool.models import Blocker, Gpu, Node, Pool, Reservation
from pool.queries import clock, inventory
from pool.services import inventory as services
from pool.services import reservations
from tests.cast import Cast, SimNode, enrol_node, make_person


def book(cast: Cast, ask: Any = None, **more: Any) -> Reservation:
    values: dict[str, Any] = {"duration": timedelta(hours=1), "now": clock.now()}
    return reservations.book(
        actor=cast.lena, team="vision", pool="main", ask=ask or MigAsk(profile="3g.40gb"), **values | more
    )


def only(pool: Pool) -> inventory.CapacityRow:
    (row,) = inventory.capacity(pool)
    return row


def shown(node: SimNode) -> Gpu:
    return inventory.gpus_visible_to(make_person("viewer")).get(uuid=node.gpus[0].uuid)


# --- Capacity ------------------------------------------------------------------


def test_a_pool_without_any_report_has_nothing(cast: Cast) -> None:
    Node.objects.create(pool=cast.main, name="silent", machine_id="machine-silent")
    assert inventory.capacity(cast.main) == []
    assert inventory.profiles(cast.main) == []


def test_capacity_is_one_statement(cast: Cast, node: SimNode) -> None:
    with CaptureQueriesContext(connection) as queries:
        inventory.capacity(cast.main)
    assert len(queries) == 1


def test_what_is_held_now_comes_from_spans(cast: Cast) -> None:
    enrol_node(cast.main, count=2)
    book(cast)
    book(cast, MigAsk(profile="1g.10gb"))
    book(cast, start=clock.now() + timedelta(days=1))
    row = only(cast.main)
    assert (row.model, row.use, row.total_gpus, row.usable) == ("H100-80GB", "mig", 2, 2)
    assert row.held_milli_now == 500 + 125


def shared(cast: Cast) -> SimNode:
    node = enrol_node(cast.main)
    node.send(node.report(sharing=("mps",)))
    services.set_use(actor=None, gpus=[node.gpus[0].uuid], use="share", sharing="mps", now=clock.now())
    node.follow()
    return node


def test_what_shares_hold_is_the_fuller_of_their_two_ledgers(cast: Cast) -> None:
    shared(cast)
    book(cast, ShareAsk(memory_mib=8192, guaranteed=30, limit=30))
    assert only(cast.main).held_milli_now == 300
    book(cast, ShareAsk(memory_mib=32768, guaranteed=10, limit=10))
    row = only(cast.main)
    assert row.held_milli_now == -(-1000 * (8192 + 32768) // (81559 - 1024))
    assert row.usable_blocked_milli == 0


def test_what_is_in_the_way_of_shares_takes_what_they_leave(cast: Cast) -> None:
    shared(cast)
    row = book(cast, ShareAsk(memory_mib=8192, guaranteed=30, limit=30))
    Blocker.objects.create(gpu=row.allocations.get().gpu, span=(0, 8), since=clock.now(), kind="overrun")
    assert only(cast.main).usable_blocked_milli == 700


def test_models_and_uses_are_told_apart(cast: Cast) -> None:
    enrol_node(cast.main, "a", count=2)
    enrol_node(cast.main, "b", "A100-40GB")
    enrol_node(cast.main, "c", use="whole")
    book(cast, GpuAsk(models=("H100-80GB",)))
    rows = [(r.model, r.use, r.total_gpus, r.held_milli_now) for r in inventory.capacity(cast.main)]
    assert rows == [("A100-40GB", "mig", 1, 0), ("H100-80GB", "mig", 2, 0), ("H100-80GB", "whole", 1, 1000)]


def test_another_pool_does_not_count(cast: Cast) -> None:
    enrol_node(Pool.objects.create(name="lab"))
    assert inventory.capacity(cast.main) == []


@pytest.mark.parametrize("why", ["unknown", "silent", "missing", "lost", "observe", "frozen", "retired"])
def test_a_gpu_counts_once_under_what_is_against_it(cast: Cast, node: SimNode, why: str) -> None:
    now = clock.now()
    if why == "unknown":
        Node.objects.update(unknown_since=now)
    elif why == "silent":
        Node.objects.update(received_at=clock.real_now() - timedelta(seconds=46))
    elif why == "missing":
        node.send(node.report(gpus=()))
    elif why == "lost":
        node.gpus[0].lost = True
        node.send()
    elif why == "observe":
        services.set_managed(actor=None, gpus=[node.gpus[0].uuid], managed=False, now=now)
    elif why == "frozen":
        services.freeze(actor=None, target="pool", id="main", frozen=True, now=now)
    else:
        services.retire(actor=None, target="gpu", id=node.gpus[0].uuid, now=now)
    row = only(cast.main)
    status = {"silent": "unknown", "missing": "unknown"}.get(why, why)
    counts = {
        "unknown": row.unknown,
        "lost": row.lost,
        "observe": row.observed,
        "frozen": row.frozen,
        "retired": row.retired,
    }
    assert counts == {name: int(name == status) for name in counts}
    assert (row.usable, row.total_gpus) == (0, 0 if why == "retired" else 1)
    assert inventory.why_unusable(shown(node)) == status


def test_a_gpu_that_nothing_is_against_is_usable(cast: Cast, node: SimNode) -> None:
    assert only(cast.main).usable == 1
    assert inventory.why_unusable(shown(node)) is None


# --- Profiles --------------------------------------------------------------------


def test_profiles_say_how_many_of_each_the_pool_could_hold(cast: Cast) -> None:
    enrol_node(cast.main, count=2)
    rows = {row.name: row for row in inventory.profiles(cast.main)}
    assert rows["1g.10gb"].capacity == 14
    assert rows["1g.10gb+me"].capacity == 2
    assert rows["3g.40gb"].capacity == 4
    assert (rows["7g.80gb"].size, rows["7g.80gb"].grid, rows["7g.80gb"].capacity) == (8, 8, 2)


def test_one_name_on_two_models_is_two_rows(cast: Cast) -> None:
    enrol_node(cast.main, "a", "A100-80GB")
    enrol_node(cast.main, "b", "H100-80GB")
    rows = [(r.model, r.capacity) for r in inventory.profiles(cast.main) if r.name == "1g.10gb"]
    assert rows == [("A100-80GB", 7), ("H100-80GB", 7)]


def test_what_no_source_and_no_driver_tells_stays_unknown(cast: Cast) -> None:
    enrol_node(cast.main, model="B300-269GB")
    rows = inventory.profiles(cast.main)
    assert rows
    assert any(row.memory_mib is None for row in rows)
    assert not any(row.memory_mib == 0 or row.sm == 0 for row in rows)


def test_where_drivers_differ_the_smaller_figure_is_promised(cast: Cast) -> None:
    one, other = enrol_node(cast.main, "a"), enrol_node(cast.main, "b")
    offers = tuple(
        type(o)(**{name: getattr(o, name) for name in o.__struct_fields__} | {"memory_mib": 9_000})
        for o in other.gpus[0].offers()
        if o.profile_id == 19
    )
    other.send(other.report(gpus=(other.gpus[0].report(offers=offers),)))
    one.send()
    row = next(row for row in inventory.profiles(cast.main) if row.name == "1g.10gb")
    assert (row.memory_mib, row.capacity) == (9_000, 14)


def test_whole_observed_and_retired_gpus_offer_no_slices(cast: Cast) -> None:
    enrol_node(cast.main, "a", use="whole")
    enrol_node(cast.main, "b", managed=False)
    retired = enrol_node(cast.main, "c")
    services.retire(actor=None, target="gpu", id=retired.gpus[0].uuid, now=clock.now())
    assert inventory.profiles(cast.main) == []


def test_all_pools_together_are_offered_without_a_pool(cast: Cast) -> None:
    enrol_node(cast.main, "a")
    enrol_node(Pool.objects.create(name="lab"), "b")
    assert {row.capacity for row in inventory.profiles(None) if row.name == "7g.80gb"} == {2}


# --- Nodes -----------------------------------------------------------------------------


def test_a_node_is_unknown_after_three_reports_even_if_no_lane_runs(node: SimNode) -> None:
    row = Node.objects.get()
    assert not inventory.node_unknown(row)
    row.received_at = clock.real_now() - timedelta(seconds=46)
    assert inventory.node_unknown(row)


def test_an_agent_of_an_unspoken_version_needs_an_update(node: SimNode) -> None:
    row = Node.objects.get()
    assert not inventory.update_needed(row)
    row.wire = 99
    assert inventory.update_needed(row)


# --- Why nothing is placed there --------------------------------------------------


def test_what_somebody_else_gives_out_is_counted_as_observed(cast: Cast, node: SimNode) -> None:
    node.send(node.report(managed_by=("slurmd",)))
    assert inventory.why_unusable(shown(node)) == "managed_elsewhere"
    row = only(cast.main)
    assert (row.usable, row.observed) == (0, 1)
    Gpu.objects.update(excluded=True)
    assert only(cast.main).usable == 1


def test_a_share_gpu_of_an_agent_that_knows_none_needs_an_update(cast: Cast) -> None:
    node = shared(cast)
    assert inventory.why_unusable(shown(node)) is None
    Node.objects.update(wire=1)
    assert inventory.why_unusable(Gpu.objects.select_related("node__pool", "state").get()) == "update_needed"


def test_a_gpu_with_a_fault_is_unhealthy(cast: Cast, node: SimNode) -> None:
    Blocker.objects.create(gpu=node.rows()[0], span=(0, 8), since=clock.now(), kind="health")
    assert inventory.why_unusable(shown(node)) == "unhealthy"


@pytest.mark.parametrize(
    ("spans", "why"), [([(0, 8)], "blocked"), ([(0, 4), (4, 8)], "blocked"), ([(0, 4)], None)]
)
def test_a_gpu_that_foreign_use_fills_is_blocked(
    node: SimNode, spans: list[tuple[int, int]], why: str | None
) -> None:
    for span in spans:
        Blocker.objects.create(gpu=node.rows()[0], span=span, since=clock.now(), kind="foreign")
    assert inventory.why_unusable(shown(node)) == why


def test_what_is_known_of_an_observed_gpu_on_a_silent_node_is_not_of_now(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    assert inventory.is_heard(shown(node))
    Node.objects.update(received_at=clock.real_now() - timedelta(hours=1))
    row = Gpu.objects.select_related("node__pool", "state").get()
    assert (inventory.why_unusable(row), inventory.is_heard(row)) == ("observe", False)
