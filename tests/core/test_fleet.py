"""A fleet gives back what it was made of, and an updated one is what a fresh one would be."""

from __future__ import annotations

from dataclasses import fields, replace
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.fleet import ALWAYS, NEVER, NOBODY, ROW, Card, Fleet, NodeCard, fleet, halves, of_views
from pool.core.fleet_cards import Inventory
from pool.core.fleet_views import card_of
from pool.core.period import Period
from pool.core.placement import GpuView, Use
from tests.core.fleets import another, as_known, periods, pools, rows_of, same, views
from tests.core.worlds import DAWN, at, codes, gpu, profile, span, taken, wall

ONE, OTHER = UUID(int=2**127 + 5), UUID(int=7)


def card(number: int, node: NodeCard | None = None) -> Card:
    return Card(
        number, f"GPU-{number}", node or NodeCard(1, "node-a"), number, "H100-80GB", 81559, Use.WHOLE, 8, ()
    )


def row(gpu_id: int, start: int, end: int, reservation: UUID = ONE) -> np.ndarray:
    one = np.zeros(1, dtype=ROW)
    one["gpu"], one["start"], one["end"], one["mask"], one["profile"] = gpu_id, start, end, 255, -1
    one["reservation"] = halves(reservation)
    return one


def columns(of: Inventory) -> dict[str, object]:
    named = {f.name: getattr(of, f.name) for f in fields(Inventory)}
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in named.items()}


@given(pools)
def test_every_gpu_is_as_its_view_was(gpus: list[GpuView]) -> None:
    made = of_views(gpus)
    assert all(same(made.view(one.id, DAWN), as_known(one)) for one in gpus)
    assert [made.cards[made.places[one.id]].id for one in gpus] == [one.id for one in gpus]


@given(pools, periods)
def test_over_a_period_a_gpu_shows_only_what_is_there_then(gpus: list[GpuView], period: Period) -> None:
    made = of_views(gpus)
    for one in gpus:
        there = tuple(b for b in one.busy if b.period.overlaps(period))
        assert same(made.view(one.id, DAWN, period), as_known(replace(one, busy=there)))


@given(pools, st.lists(codes, min_size=1, max_size=6), codes)
def test_an_updated_fleet_is_what_a_fresh_one_would_be(
    gpus: list[GpuView], turns: list[int], new: int
) -> None:
    made = of_views(gpus)
    now = list(gpus)
    for turn in turns:
        n = turn % len(now)
        now[n] = another(now[n], turn)
        made = _with(made, [now[n]])
    now.append(replace(views([new], [], [new])[0], id=100))
    made = _with(made, [now[-1]])
    gone = now.pop(0)
    made = made.updated([], np.zeros(0, dtype=ROW), [gone.id, 999])
    fresh = of_views(now)
    assert {k: v for k, v in columns(made).items() if k not in ("geometries", "geometry")} == {
        k: v for k, v in columns(fresh).items() if k not in ("geometries", "geometry")
    }
    assert [made.geometries[g] for g in made.geometry] == [fresh.geometries[g] for g in fresh.geometry]
    assert [r[1:] for r in _readable(made)] == [r[1:] for r in _readable(fresh)]
    assert made.on.at.tolist() == sorted(made.on.at.tolist())
    assert len(made.on) == len(rows_of(fresh))


def _with(made: Fleet, new: list[GpuView]) -> Fleet:
    """The numbers of accounts are another fleet's own, so they are not looked at."""
    alone = of_views(new)
    return made.updated([card_of(one) for one in new], alone.rows())


def _readable(of: Fleet) -> list[tuple[object, ...]]:
    names = [name for name in ROW.names or () if name not in ("account", "reservation")]
    return sorted((0, *(row[name].item() for name in names)) for row in of.rows())


def test_what_was_read_before_an_update_stays_as_it_was() -> None:
    old = fleet([card(1), card(2)], np.concatenate([row(1, 0, 10), row(2, 0, 10)]))
    window = old.window(span(0, 1), DAWN)
    new = old
    for turn in range(5000):
        new = new.updated([card(1)], row(1, turn, turn + 1))
    assert old.on.field("end", slice(None)).tolist() == [10, 10]
    assert (len(new.on), new.rows()["start"].tolist()) == (2, [4999, 0])
    assert len(window.rows) == 0


def test_a_fleet_without_gpus_has_no_room() -> None:
    none = fleet([], np.zeros(0, dtype=ROW))
    assert none.window(span(0, 1), DAWN).free.tolist() == []
    assert none.updated([card(1)], row(1, 0, 5)).rows()["gpu"].tolist() == [1]
    assert none.place(1) is None
    with pytest.raises(KeyError):
        none.view(1, DAWN)


def test_rows_of_other_pools_gpus_are_left_out() -> None:
    assert len(fleet([card(1)], row(2, 0, 1)).on) == 0


def test_a_reservation_can_be_left_out() -> None:
    made = fleet([card(1), card(2)], np.concatenate([row(1, 0, NEVER), row(2, 0, NEVER, OTHER)]))
    window = made.window(span(0, 1), DAWN, without=OTHER)
    assert window.empty.tolist() == [False, True]
    assert made.view(2, DAWN, span(0, 1), without=OTHER).busy == ()
    assert made.view(1, DAWN, span(0, 1), without=OTHER).busy != ()


def test_what_is_over_but_still_there_is_in_the_way_only_where_clean_is_wanted() -> None:
    made = of_views([gpu(busy=[taken(profile("H100-80GB", "3g.40gb"), 4, span(0, 2))])])
    later, now = span(2, 3), at(2)
    assert made.window(later, now).empty.all()
    clean = made.window(later, now, clean=True)
    assert (clean.free.tolist(), clean.rows["start"].tolist()) == ([0b1111], [clean.start])
    assert made.view(0, now, later).busy == ()
    (busy,) = made.view(0, now, later, clean=True).busy
    assert (busy.start, busy.size, busy.period) == (4, 4, later)
    # It is not over yet: it will have gone by then.
    assert made.window(later, at(1), clean=True).empty.all()


def test_a_blocker_is_in_the_way_from_now_on() -> None:
    always = row(1, ALWAYS, NEVER)
    always["blocker"] = True
    made = fleet([card(1)], always)
    assert made.window(span(50, None), at(1)).taken.tolist() == [255]
    assert made.view(1, at(1)).busy == (wall(0, 8, span(1, None)),)


def test_a_silent_nodes_gpus_are_unknown() -> None:
    made = fleet([card(1), card(2, NodeCard(2, "node-b"))], np.zeros(0, dtype=ROW), stale=[2, 9])
    assert made.usable.tolist() == [True, False]
    assert [made.view(pk, DAWN).why for pk in (1, 2)] == [None, "unknown"]
    back = made.now(4, (), 3, True, (2, 4), {})
    assert (back.usable.all(), back.change, back.most_shares, back.block_sizes) == (True, 4, 3, (2, 4))
    held = made.updated([replace(card(2, NodeCard(2, "node-b")), why="frozen")], np.zeros(0, dtype=ROW))
    assert (held.usable.tolist(), held.view(2, DAWN).why) == ([True, False], "frozen")


def test_an_account_that_has_nothing_here_has_a_number_of_its_own() -> None:
    made = of_views(views([1], [], [3]))
    known = set(made.accounts.values())
    assert made.account_number("user:77") == NOBODY
    assert {made.account_number(name) for name in known} == set(made.accounts)


def test_rows_of_some_gpus_come_in_the_order_asked() -> None:
    made = fleet(
        [card(n) for n in (1, 2, 3)], np.concatenate([row(3, 5, 6), row(1, 0, 1), row(3, 2, 3), row(2, 0, 1)])
    )
    assert made.rows(np.array([2, 0]))["start"].tolist() == [2, 5, 0]
    assert made.rows(np.array([], dtype=np.int64)).tolist() == []
