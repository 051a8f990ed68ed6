"""The field of an ask says of all GPUs at once what room says of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.fleet import of_views
from pool.core.placement import candidates, shortfall
from pool.core.placement_field import field, fits, sorts_of
from pool.core.placement_room import Use, chosen, mismatch, packed, room, slots
from pool.core.shapes import MigAsk
from tests.core import worlds
from tests.core.worlds import at, gpu, profile, span

H100, RTX = "H100-80GB", "RTX-PRO-6000-96GB"


@settings(max_examples=200)
@given(data=st.data(), model=st.sampled_from([H100, RTX, "A30-24GB"]))
def test_it_counts_what_room_counts_and_names_the_same_reason(data: st.DataObject, model: str) -> None:
    gpus, ask, period = data.draw(worlds.cases(model))
    fleet = of_views(gpus)
    here = field(fleet, ask, period, period.start)
    for g in gpus:
        place = fleet.places[g.id]
        fit = chosen(g, ask)
        word = here.words[here.why[place]]
        why = mismatch(g, ask, fit) or (None if g.usable else g.why)
        if why is not None:
            assert (here.count[place], here.offered[place]) == (0, 0)
            assert word in (why, g.why, "node")
            continue
        told = room(g, fit, period)
        assert here.count[place] == told.count
        assert word == (told.why or "room")


@given(free=st.integers(0, 255), name=st.sampled_from([p.name for p in mig.models()[H100].profiles]))
def test_masks_are_packed_as_one_by_one(free: int, name: str) -> None:
    p = profile(H100, name)
    assert fits(p, 8, np.array([free])).tolist() == [packed(slots(p.size, p.starts, 8), free)]


def test_a_huge_grid_has_no_table_but_the_same_counts() -> None:
    wide = replace(profile(H100, "1g.10gb"), starts=tuple(range(40)))
    masks = np.array([0, 1, 0b1011, (1 << 40) - 1, 1])
    assert fits(wide, 40, masks).tolist() == [0, 1, 3, 40, 1]


def test_gpus_that_nothing_tells_apart_are_one_sort() -> None:
    fleet = of_views([gpu(0), gpu(1), gpu(2, RTX), gpu(3, use=Use.WHOLE), replace(gpu(4), memory_mib=1)])
    assert [places.tolist() for places in sorts_of(fleet)].__len__() == 4
    assert sorted(len(places) for places in sorts_of(fleet)) == [1, 1, 1, 2]
    assert sorts_of(of_views([])) == []
    assert field(of_views([]), worlds.an_ask(H100, 1), worlds.span(0, 1), at(0)).free == 0


def test_a_gpu_that_is_kept_for_guarantees_has_no_room_and_is_counted_as_that() -> None:
    views = [gpu(0), gpu(1)]
    known = of_views(views)
    barred = np.array([True, False])
    found = candidates(known, MigAsk("7g.80gb"), span(0, 4), barred=barred)
    assert {pick.gpu_id for one in found for pick in one.picks} == {known.cards[1].id}
    short = shortfall(known, MigAsk("7g.80gb", count=2), span(0, 4), barred=barred)
    assert short.free == 1
    assert short.counts == {"guaranteed_to_others": 1, "room": 1}
