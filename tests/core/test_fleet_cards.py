"""Cards of a pool in columns: their order, their numbers, and what a changed one changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.core import mig
from pool.core.fleet_cards import SHARINGS, USES, Card, NodeCard, inventory, with_cards
from pool.core.placement import Use
from pool.core.shapes import Sharing

A, B = NodeCard(20, "node-a", "rack-1"), NodeCard(10, "node-b", "rack-0")
H100 = mig.models()["H100-80GB"].profiles


def card(number: int, node: NodeCard = A, index: int = 0, **more: object) -> Card:
    plain = Card(number, f"GPU-{number}", node, index, "H100-80GB", 81_559, Use.MIG, 8, H100, domain="d")
    return replace(plain, **more)  # type: ignore[arg-type]


def test_places_are_in_the_order_of_node_and_index() -> None:
    made = inventory([card(1, B), card(2, A, 1), card(3, A, 0)])
    assert made.id.tolist() == [3, 2, 1]
    assert (made.place(1), made.place(9)) == (2, None)
    assert made.nodes == (A, B)
    assert made.node.tolist() == [0, 0, 1]
    assert (made.blocks, made.block.tolist()) == (("rack-0", "rack-1"), [1, 1, 0])


def test_each_card_has_its_columns() -> None:
    shared = card(2, A, 1, use=Use.SHARE, sharing=Sharing.HAMI, memory_mib=None, grid=4, profiles=(), why="x")
    made = inventory([card(1), shared])
    assert [USES[number] for number in made.use] == [Use.MIG, Use.SHARE]
    assert made.sharing.tolist() == [-1, SHARINGS.index(Sharing.HAMI)]
    assert (made.memory.tolist(), made.full.tolist()) == ([81_559, 0], [255, 15])
    assert made.ready.tolist() == [True, False]
    assert [made.geometries[number] for number in made.geometry] == [(8, H100), (4, ())]


def test_alike_profiles_are_one_geometry_even_if_they_were_read_apart() -> None:
    made = inventory([card(1), card(2, A, 1, profiles=tuple([*H100]))])
    assert made.geometry.tolist() == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"why": "frozen"},
        {"use": Use.WHOLE},
        {"memory_mib": None},
        {"profiles": ()},
        {"model": "A100-40GB"},
        {"domain": "c/1"},
        {"index": 9},
        {"node": replace(A, block="rack-9", cpu_milli=4)},
        {"node": replace(A, name="zeta")},
        {"grid": 4},
    ],
)
def test_a_changed_card_changes_what_a_fresh_reading_would(change: dict[str, object]) -> None:
    old = inventory([card(1), card(2, B), card(3, B, 1)])
    new = card(1, **change)
    told, fresh = with_cards(old, [new, card(2, B)]), inventory([new, card(2, B), card(3, B, 1)])
    assert told.cards == fresh.cards
    assert told.nodes == fresh.nodes
    for name in ("id", "node", "model", "domain", "block", "memory", "grid", "full", "use", "ready"):
        assert getattr(told, name).tolist() == getattr(fresh, name).tolist(), name
    assert [told.geometries[n] for n in told.geometry] == [fresh.geometries[n] for n in fresh.geometry]
    assert old.cards[old.places[1]] == card(1)


def test_cards_that_say_the_same_change_nothing() -> None:
    old = inventory([card(1), card(2, B)])
    assert with_cards(old, [card(2, B)]) is old
    assert with_cards(old, [], gone=[77]) is old


def test_gpus_come_and_go() -> None:
    old = inventory([card(1), card(2, B)])
    new = with_cards(old, [card(3, A, 1)], gone=[2])
    assert (new.id.tolist(), new.nodes) == ([1, 3], (A,))
