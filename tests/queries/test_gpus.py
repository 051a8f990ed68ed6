"""queries.gpus: a GPU along its slices, and to whom it says who holds them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import Gpu, Node, Reservation
from pool.queries import clock, gpus, inventory
from pool.services import lanes, reservations
from tests.cast import Cast, SimNode, enrol_node


def book(cast: Cast, **more: Any) -> Reservation:
    values: dict[str, Any] = {
        "ask": MigAsk(profile="2g.20gb"),
        "duration": timedelta(hours=1),
        "now": clock.now(),
    }
    return reservations.book(actor=cast.lena, team="vision", pool="main", title="training", **values | more)


def row(cast: Cast, node: SimNode) -> Gpu:
    return inventory.gpus_visible_to(cast.sam).get(uuid=node.gpus[0].uuid)


def test_wanted_runs_ahead_of_observed_until_the_report(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    span = booked.allocations.get().span
    grid = gpus.gpu_grid(row(cast, node), cast.lena)
    assert (grid.grid, grid.use, grid.mig, grid.observed, grid.blockers) == (8, "mig", True, (), ())
    (cell,) = grid.wanted or ()
    assert (cell.start, cell.size, cell.profile, cell.kind) == (span.lower, 2, "2g.20gb", "mig")
    node.follow()
    (seen,) = gpus.gpu_grid(row(cast, node), cast.lena).observed or ()
    assert (seen.start, seen.size, seen.mig_uuid) == (span.lower, 2, node.gpus[0].instances[0].mig_uuid)


def test_who_holds_a_slice_is_told_to_the_team_and_not_to_strangers(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    node.follow()
    for viewer, known in ((cast.lena, True), (cast.otto, True), (cast.sam, False), (None, False)):
        grid = gpus.gpu_grid(row(cast, node), viewer)
        for cell in (*(grid.wanted or ()), *(grid.observed or ())):
            assert cell.busy
            told = (cell.reservation_id, cell.title, cell.team)
            assert told == ((booked.pk, "training", "vision") if known else (None, "", ""))


def test_a_token_for_one_team_is_told_of_that_teams_holdings_alone(cast: Cast, node: SimNode) -> None:
    booked = book(cast)
    for only, known in ((cast.vision, booked.pk), (cast.speech, None)):
        (cell,) = gpus.gpu_grid(row(cast, node), cast.otto, only=only).wanted or ()
        assert (cell.reservation_id, cell.busy) == (known, True)


def test_whose_processes_are_in_the_way_is_told_to_those_who_see_all(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    node.gpus[0].processes = (wire.Process(pid=7, name="python", user="eve"),)
    node.send()
    for viewer, only, told in (
        (cast.otto, None, "python 7 of eve"),
        (cast.otto, cast.speech, ""),
        (cast.sam, None, ""),
        (None, None, ""),
    ):
        (cell,) = gpus.gpu_grid(row(cast, node), viewer, only=only).blockers
        assert (cell.kind, cell.detail) == ("foreign", told)


def test_a_whole_gpu_is_one_cell(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    book(cast, ask=GpuAsk(models=("H100-80GB",)))
    (cell,) = gpus.gpu_grid(row(cast, node), cast.lena).wanted or ()
    assert (cell.kind, cell.start, cell.size) == ("gpu", 0, 8)


def test_what_is_not_known_is_none_and_not_empty(cast: Cast, node: SimNode) -> None:
    node.send(node.report(gpus=(node.gpus[0].report(instances=None),)))
    assert gpus.gpu_grid(row(cast, node)).observed is None
    node.gpus[0].lost = True
    node.send()
    assert gpus.gpu_grid(row(cast, node)).observed is None
    other = enrol_node(cast.main, "node-2", managed=False)
    assert gpus.gpu_grid(row(cast, other)).wanted is None


def test_foreign_instances_are_shown_as_such_and_block(cast: Cast, node: SimNode) -> None:
    card = node.gpus[0]
    card.instances.append(card.instance(9, 4, 4, "3g.40gb", owned=False))
    node.send()
    grid = gpus.gpu_grid(row(cast, node))
    assert [(c.start, c.size, c.owned, c.busy) for c in grid.observed or ()] == [(4, 4, False, False)]
    assert [(c.start, c.size, c.kind, c.detail) for c in grid.blockers] == [(4, 4, "foreign", "3g.40gb")]


def test_holdings_are_now_and_later_by_time_and_nameless_for_strangers(cast: Cast, node: SimNode) -> None:
    later = book(cast, start=clock.now() + timedelta(days=2))
    now = book(cast)
    over = book(cast)
    reservations.release(actor=cast.lena, reservation_id=over.pk, now=clock.now())
    node.follow()
    found = gpus.holdings(row(cast, node), cast.lena)
    assert [one.reservation_id for one in found] == [now.pk, later.pk]
    assert [(one.team, one.title, one.size) for one in found] == [("vision", "training", 2)] * 2
    masked = gpus.holdings(row(cast, node), cast.sam)
    assert [(one.reservation_id, one.team, one.title) for one in masked] == [(None, "", "")] * 2
    assert [one.start for one in masked] == [one.start for one in found]


# --- Preview ------------------------------------------------------------------------


def test_a_preview_says_what_would_be_made_and_destroyed_and_what_stays(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    card = node.gpus[0]
    card.mig = True
    card.instances = [
        card.instance(19, 0, 1, "1g.10gb"),
        card.instance(9, 4, 4, "3g.40gb", owned=False),
    ]
    node.send()
    Gpu.objects.update(use="mig")
    preview = gpus.preview_manage(row(cast, node))
    assert (preview.against, preview.mode_change, preview.would_create) == (None, False, ())
    assert [(c.start, c.size) for c in preview.would_destroy] == [(0, 1)]
    assert [(c.start, c.size) for c in preview.foreign] == [(4, 4)]


def test_a_preview_tells_a_change_of_mode(cast: Cast) -> None:
    node = enrol_node(cast.main, managed=False)
    assert gpus.preview_manage(row(cast, node)).mode_change is False
    Gpu.objects.update(use="mig")
    assert gpus.preview_manage(row(cast, node)).mode_change is True


@pytest.mark.parametrize(
    ("change", "why"),
    [({"retired_at": clock.real_now()}, "retired"), ({"mig_capable": False}, "not_mig_capable"), ({}, None)],
)
def test_a_preview_says_why_it_would_be_refused(
    cast: Cast, node: SimNode, change: dict[str, Any], why: str | None
) -> None:
    Gpu.objects.update(**change)
    assert gpus.preview_manage(row(cast, node)).against == why


def test_a_gpu_that_was_never_reported_cannot_be_managed(cast: Cast, node: SimNode) -> None:
    gpu = Gpu.objects.create(node=node.row, index=9, uuid="GPU-9", name="x", model="x")
    assert gpus.against_managing(gpu, "whole") == "not_reported"


def test_an_instance_made_for_what_was_given_up_is_busy_and_nobodys(cast: Cast, node: SimNode) -> None:
    book(cast)
    node.carve()
    Node.objects.update(received_at=clock.real_now() - timedelta(minutes=5))
    enrol_node(cast.main, "node-2")
    lanes.due(now=clock.now())
    node.send()
    grid = gpus.gpu_grid(row(cast, node), cast.lena)
    (cell,) = grid.observed or ()
    assert (grid.wanted, cell.busy, cell.reservation_id, cell.title) == ((), True, None, "")
