"""What a driver reports replaces the catalogue, and nonsense in it is dropped alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import mig, wire
from pool.core.mig import Media, Model, Profile

MODELS = sorted(mig.models().values(), key=lambda m: m.name)
EACH = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
H100 = mig.models()["H100-80GB"]
RTX = mig.models()["RTX-PRO-6000-96GB"]
B300 = mig.models()["B300-269GB"]


def named(model: Model, name: str) -> Profile:
    found = model.profile(name)
    assert found is not None
    return found


def offer(p: Profile, **change: Any) -> wire.Offer:
    """The profile as a driver reports it."""
    fields: dict[str, Any] = {
        "profile_id": p.profile_id,
        "name": f"MIG {p.name}",
        "compute_slices": p.compute_slices,
        "size": p.size,
        "memory_mib": p.memory_mib,
        "sm": p.sm,
        "max_instances": p.max_instances,
        "starts": p.starts,
    }
    return wire.Offer(**(fields | change))


def one(model: Model | None, reported: wire.Offer, grid: int | None = None) -> Profile:
    found = mig.merged(model, [reported], grid)
    assert len(found) == 1
    return found[0]


def test_without_a_report_the_catalogue_holds() -> None:
    assert mig.merged(H100, ()) == H100.profiles
    assert mig.merged(None, ()) == ()


@EACH
def test_a_report_that_says_the_same_changes_nothing_but_the_confidence(model: Model) -> None:
    found = mig.merged(model, [offer(p) for p in model.profiles])
    assert found == tuple(replace(p, confidence="reported", memory_other=()) for p in model.profiles)


def test_reported_figures_win_and_only_what_is_offered_exists() -> None:
    p = named(H100, "1g.10gb")
    found = one(H100, offer(p, name="MIG 1g.11gb", memory_mib=10880, sm=18, max_instances=3, starts=(0, 2)))
    assert (found.name, found.memory_mib, found.sm) == ("1g.11gb", 10880, 18)
    assert (found.max_instances, found.starts, found.copy_engines) == (3, (0, 2), p.copy_engines)


def test_a_report_fills_what_no_source_has() -> None:
    p = named(B300, "1g.34gb")
    assert one(B300, offer(p, memory_mib=33280, sm=18)).memory_mib == 33280
    assert one(B300, offer(p)).memory_mib is None


NONSENSE: list[Any] = [-1, 0, True, "8", 1.5, float("nan"), float("inf"), [], {}, 10**40, -(10**40)]


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("field", ["memory_mib", "sm", "max_instances", "compute_slices", "size"])
def test_a_nonsense_figure_is_dropped_alone(field: str, value: object) -> None:
    p = named(H100, "2g.20gb")
    found = one(H100, offer(p, **{field: value}, **({} if field == "sm" else {"sm": 33})))
    assert getattr(found, field) == getattr(p, field)
    assert field == "sm" or found.sm == 33


def test_a_start_outside_the_grid_is_dropped_alone() -> None:
    p = named(H100, "2g.20gb")
    assert one(H100, offer(p, starts=(-2, 0, 7, 4, 8, 10**9, 0))).starts == (0, 4)
    assert one(H100, offer(p, starts=(-1, 99))).starts == p.starts
    assert one(RTX, offer(named(RTX, "2g.48gb"), starts=(6, 7))).starts == (6,)


@pytest.mark.parametrize("name", [None, "", "MIG", "my slice", "1g.10gb\x00", "1g.10gb" * 50])
def test_a_name_that_is_none_leaves_the_catalogue_s(name: str | None) -> None:
    assert one(H100, offer(named(H100, "1g.10gb"), name=name)).name == "1g.10gb"


def test_a_model_that_nobody_knows_is_taken_as_reported() -> None:
    strange = offer(named(H100, "1g.10gb"), profile_id=77, name="MIG 2g.99gb+me.all", compute_slices=-3)
    found = one(None, strange)
    assert (found.name, found.compute_slices, found.media) == ("2g.99gb+me.all", 2, Media.ALL)
    assert found.nvml_enum is None
    assert one(None, offer(found, max_instances=None, starts=(0, 1, 2))).max_instances == 3
    for useless in ({"name": None}, {"size": 0}, {"starts": ()}, {"starts": (-1,)}):
        assert mig.merged(None, [wire.Offer(**{**_fields(strange), **useless})]) == ()


def _fields(o: wire.Offer) -> dict[str, Any]:
    return {name: getattr(o, name) for name in o.__struct_fields__}


def test_a_reported_grid_wins_over_the_catalogue_s() -> None:
    wide = offer(named(H100, "1g.10gb"), starts=(0, 15))
    assert one(H100, wide).starts == (0,)
    assert one(H100, wide, grid=16).starts == (0, 15)
    assert one(H100, wide, grid=-5).starts == (0,)


def test_of_two_offers_with_one_id_the_first_counts() -> None:
    p = named(H100, "1g.10gb")
    assert [f.sm for f in mig.merged(H100, [offer(p, sm=1), offer(p, sm=2)])] == [1]


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    model=st.sampled_from([None, *MODELS]),
    grid=st.none() | st.integers(-2, 70),
    offers=st.lists(
        st.builds(
            wire.Offer,
            profile_id=st.integers(-1, 70),
            name=st.none() | st.text(max_size=8) | st.sampled_from(sorted(mig.profile_names())),
            compute_slices=anything,
            size=anything,
            memory_mib=anything,
            sm=anything,
            max_instances=anything,
            starts=st.lists(st.integers(), max_size=4).map(tuple),
        ),
        max_size=4,
    ),
)
def test_no_report_makes_a_profile_that_cannot_be(
    model: Model | None, grid: int | None, offers: list[wire.Offer]
) -> None:
    for p in mig.merged(model, offers, grid):
        limit = grid if grid is not None and 1 <= grid <= mig.MAX_GRID else mig.MAX_GRID
        assert 1 <= p.size <= mig.MAX_GRID
        assert p.starts
        assert not offers or all(0 <= s <= max(limit, model.grid if model else 0) - p.size for s in p.starts)
        assert p.max_instances >= 1
        assert p.compute_slices >= 1
        assert p.memory_mib is None or p.memory_mib > 0
