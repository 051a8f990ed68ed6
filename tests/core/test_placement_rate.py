"""What spots cost, and in which order they come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pool.core.fleet import of_views
from pool.core.placement import Use
from pool.core.placement_field import field
from pool.core.placement_policy import prior
from pool.core.placement_rate import Rates, Spots, rated
from pool.core.shapes import GpuAsk, MigAsk
from tests.core.worlds import at, gpu, profile, span, taken

H100 = "H100-80GB"


def spots_of(*gpus: object, ask: object = None) -> Spots:
    here = field(of_views(gpus), ask or MigAsk("1g.10gb"), span(0, 1), at(0))  # type: ignore[arg-type]
    return rated(Rates(here, prior()))


def test_every_place_that_is_free_is_a_spot() -> None:
    spots = spots_of(gpu(0), gpu(1, busy=[taken(profile(H100, "4g.40gb"), 0, span(0, 9))]))
    assert spots.place.tolist() == [0] * 7 + [1] * 3
    assert spots.start.tolist() == [*range(7), 4, 5, 6]
    assert np.isfinite(spots.loss).all()


rows = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 7),
        st.integers(0, 2),
        st.sampled_from([125, 250, 1000]),
        st.integers(0, 8),
        st.sampled_from([-0.02, 0.0, 0.5, 0.500002, 3.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@given(found=rows, first=st.integers(1, 20))
def test_the_order_is_that_of_the_terms_one_after_the_other(
    found: list[tuple[int, int, int, int, int, float, bool]], first: int
) -> None:
    columns = [np.array(column) for column in zip(*found, strict=True)]
    place, start, rank, charge, crowd, loss, stays = columns
    none = np.zeros(len(place))
    spots = Spots(place, start, start, rank, charge, crowd, loss, none, none, none, stays.astype(np.int64))
    by_terms = sorted(
        range(len(place)),
        key=lambda n: (not stays[n], rank[n], charge[n], spots.cost[n], crowd[n], place[n], -start[n], n),
    )
    assert spots.order().tolist() == by_terms
    assert spots.order(first)[:first].tolist() == by_terms[:first]


def test_nothing_is_lost_where_all_media_is_gone_and_all_of_it_by_taking_all_media() -> None:
    rtx = "RTX-PRO-6000-96GB"
    gone = gpu(model=rtx, busy=[taken(profile(rtx, "1g.24gb+me.all"), 0, span(0, 1))])
    assert set(spots_of(gone, ask=MigAsk("1g.24gb-me")).loss.tolist()) == {0.0}
    everything = spots_of(gpu(model=rtx), ask=MigAsk("1g.24gb+me.all"))
    assert len(set(everything.loss.tolist())) == 1
    assert everything.loss[0] > spots_of(gpu(model=rtx), ask=MigAsk("1g.24gb")).loss.max()


def test_whole_gpus_of_a_node_cost_the_same_and_count_once() -> None:
    spots = spots_of(*(gpu(n, use=Use.WHOLE) for n in range(3)), ask=GpuAsk())
    assert len(spots.place) == 3
    assert len(set(spots.cost.tolist())) == 1
    assert set(spots.charge.tolist()) == {1000}


def test_no_room_is_no_spot() -> None:
    assert len(spots_of(gpu(why="lost")).place) == 0
