"""What free slices are worth: tables against counting by hand, stretches against a look at every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.mig import models
from pool.core.mix import Form, Kind, Mix, SliceParameters
from pool.core.worth_mig import FOREVER, SliceWorth, Stretches, Taken, kinds_of, ranked, stretches, weighed

A100 = models()["A100-40GB"]
RTX = models()["RTX-PRO-6000-96GB"]
FIVE = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def mix(*names: str, slices: SliceParameters | None = None) -> Mix:
    kinds = tuple(Kind(Form.MIG, profile=name) for name in names)
    return Mix(kinds, (1 / len(names),) * len(names), slices=slices or SliceParameters())


def worth(*names: str, slices: SliceParameters | None = None) -> SliceWorth:
    return SliceWorth(mix(*names, slices=slices), A100.name, A100.grid, A100.profiles)


def taken(*entries: tuple[int, int, int, int]) -> Taken:
    return Taken(*np.array(entries, dtype=np.int64).reshape(-1, 4).T)


def now(*free: int) -> Stretches:
    """GPUs on which nothing begins or ends."""
    return Stretches(np.arange(len(free)), np.array(free, dtype=np.int64), np.ones(len(free)))


def profile(name: str):  # type: ignore[no-untyped-def]
    found = A100.profile(name)
    assert found is not None
    return found


# --- Tables -------------------------------------------------------------------


def test_a_free_gpu_is_worth_one_and_a_full_one_nothing() -> None:
    assert worth(*FIVE).of(np.array([255, 0])) == pytest.approx([1.0, 0.0])


def test_a_kind_counts_as_the_part_of_its_places_that_is_left() -> None:
    half = worth("2g.10gb", slices=SliceParameters(power=1.0)).of(
        np.array([0b00001111, 0b00110000, 0b11000000])
    )
    assert half == pytest.approx([2 / 3, 1 / 3, 0.0])


def test_a_kind_all_of_whose_places_are_anothers_does_not_count_twice() -> None:
    kinds = kinds_of(mix("3g.20gb", "4g.20gb"), A100.name, A100.grid, A100.profiles)
    assert weighed(kinds, A100.grid, SliceParameters()) == {(15,): 0.0, (15, 240): 1.0}


def test_alone_it_counts() -> None:
    kinds = kinds_of(mix("4g.20gb"), A100.name, A100.grid, A100.profiles)
    assert weighed(kinds, A100.grid, SliceParameters(nested=0.0)) == {(15,): 1.0}


def test_chosen_weights_count_instead_of_the_rule() -> None:
    kinds = kinds_of(mix("1g.5gb", "7g.40gb"), A100.name, A100.grid, A100.profiles)
    by = SliceParameters(weights=(("1g.5gb", 3.0), ("7g.40gb", -1.0)))
    assert list(weighed(kinds, A100.grid, by).values()) == [0.75, -0.25]


def test_what_the_geometry_lacks_does_not_count() -> None:
    kinds = kinds_of(mix("1g.24gb", "2g.10gb"), A100.name, A100.grid, A100.profiles)
    assert [(kind.name, kind.often) for kind in kinds] == [("2g.10gb", 1.0)]


def test_a_geometry_of_which_nothing_is_asked_counts_all_plain_profiles_alike() -> None:
    kinds = kinds_of(mix("1g.5gb"), RTX.name, RTX.grid, RTX.profiles)
    assert [(kind.name, round(kind.often, 3)) for kind in kinds] == [
        ("1g.24gb", 0.333),
        ("2g.48gb", 0.333),
        ("4g.96gb", 0.333),
    ]


def test_asks_by_size_count_as_the_profile_that_they_would_get() -> None:
    asked = Mix((Kind(Form.MIG, memory_mib=9000),), (1.0,))
    (kind,) = kinds_of(asked, A100.name, A100.grid, A100.profiles)
    assert kind.places[0].bit_count() == 2


def test_asks_for_other_models_do_not_count() -> None:
    asked = Mix(
        (Kind(Form.MIG, profile="1g.5gb", models=("H100-80GB",)), Kind(Form.MIG, profile="2g.10gb")),
        (0.9, 0.1),
    )
    assert [kind.name for kind in kinds_of(asked, A100.name, A100.grid, A100.profiles)] == ["2g.10gb"]


def test_a_grid_too_large_for_a_table_is_counted_mask_by_mask() -> None:
    wide = SliceWorth(mix("1g.5gb"), "X", 20, A100.profiles)
    narrow = worth("1g.5gb")
    free = np.array([[0b1111111, 0b1010101], [0b1, 0]])
    assert wide.of(free) == pytest.approx(narrow.of(free))
    lost = wide.loss(profile("1g.5gb"), now(0b11, 0))
    assert lost[0, :2] == pytest.approx(narrow.loss(profile("1g.5gb"), now(0b11, 0))[0, :2])


# --- Losses -------------------------------------------------------------------


def test_a_place_that_is_taken_costs_more_than_anything() -> None:
    lost = worth(*FIVE).loss(profile("2g.10gb"), now(0b11111100, 0b00000011))
    assert np.isinf(lost).tolist() == [[True, False, False], [False, True, True]]


def test_the_loss_is_the_worth_before_less_that_after() -> None:
    by = worth(*FIVE)
    lost = by.loss(profile("3g.20gb"), now(255))
    assert lost[0] == pytest.approx(by.of(np.array([255, 255])) - by.of(np.array([0b11110000, 0b00001111])))


def test_places_are_ranked_by_loss_then_fullness_then_gpu_then_the_last_start() -> None:
    at = now(0b00001111, 255, 0b00001111)
    loss = np.array([[0.5, np.inf], [0.5, 0.5], [0.5, 0.1]])
    rows, starts = ranked(loss, at)
    assert list(zip(rows.tolist(), starts.tolist(), strict=True)) == [(2, 1), (0, 0), (2, 0), (1, 1), (1, 0)]


def test_rounding_decides_nothing() -> None:
    rows, _ = ranked(np.array([[0.1 + 0.2], [0.3]]), now(255, 255))
    assert rows.tolist() == [0, 1]


def test_it_goes_beside_what_stays_as_long_rather_than_beside_what_soon_goes() -> None:
    # GPU 0 will be free at 10, GPU 1 at 90: something until 100 spoils less on GPU 1.
    at = stretches(np.array([255, 255]), taken((0, 1, 0, 10), (1, 1, 0, 90)), 0, 100, 50.0)
    rows, _ = ranked(worth(*FIVE).loss(profile("1g.5gb"), at), at)
    assert rows[0] == 1


def test_no_gpu_is_no_place() -> None:
    none = np.zeros(0, dtype=np.int64)
    at = stretches(none, taken(), 0, 1, 1.0)
    assert worth(*FIVE).loss(profile("1g.5gb"), at).shape == (0, 7)


# --- Stretches ----------------------------------------------------------------


def test_a_gpu_on_which_nothing_happens_is_one_stretch() -> None:
    at = stretches(np.array([255, 15]), taken((0, 1, -5, 100)), 0, 100, 10.0)
    assert (at.row.tolist(), at.free.tolist()) == ([0, 1], [254, 15])


def test_it_is_cut_where_others_end_and_begin() -> None:
    at = stretches(np.array([255]), taken((0, 1, -5, 4), (0, 6, 4, 7)), 0, 10, 10.0)
    assert at.free.tolist() == [254, 249, 255]


def test_later_counts_less() -> None:
    at = stretches(np.array([255]), taken((0, 1, -5, 5)), 0, 10, 5.0)
    assert at.weight == pytest.approx([1 - np.exp(-1), np.exp(-1) - np.exp(-2)])


def test_without_end_all_the_future_counts() -> None:
    at = stretches(np.array([255]), taken((0, 1, -5, 5), (0, 2, 3, FOREVER)), 0, FOREVER, 5.0)
    assert at.weight.sum() == pytest.approx(1.0)
    assert at.free.tolist() == [254, 252, 253]


def test_what_overlaps_ends_when_the_last_of_it_ends() -> None:
    at = stretches(np.array([255]), taken((0, 3, 0, 5), (0, 1, 2, 8)), 0, 10, 10.0)
    assert at.free.tolist() == [252, 252, 254, 255]


TIMES = st.integers(0, 12)
ENTRIES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 255), TIMES, st.integers(1, 8)), max_size=8)


@given(ENTRIES, TIMES, st.integers(1, 10))
def test_the_stretches_say_what_is_free_at_every_instant(
    entries: list[tuple[int, int, int, int]], start: int, lasts: int
) -> None:
    busy = [(row, mask, begin, begin + length) for row, mask, begin, length in entries]
    end = start + lasts
    at = stretches(np.full(3, 255), taken(*busy), start, end, 4.0)
    for row in range(3):
        instants = []
        for moment in range(start, end):
            gone = 0
            for _, mask, *_ in (b for b in busy if b[0] == row and b[2] <= moment < b[3]):
                gone |= mask
            weight = np.exp((start - moment) / 4) - np.exp((start - moment - 1) / 4)
            instants.append((255 & ~gone, weight))
        here = at.row == row
        for free in {free for free, _ in instants} | set(at.free[here].tolist()):
            expected = sum(weight for f, weight in instants if f == free)
            assert at.weight[here][at.free[here] == free].sum() == pytest.approx(expected)
