"""The catalogue's geometry, its media rules against the database's columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from pool.core import mig
from pool.core.mig import Media, Model, Profile, Slice
from tests.core import worlds

MODELS = sorted(mig.models().values(), key=lambda m: m.name)
EACH = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
H100 = mig.models()["H100-80GB"]
A100 = mig.models()["A100-40GB"]
RTX = mig.models()["RTX-PRO-6000-96GB"]
B300 = mig.models()["B300-269GB"]


def named(model: Model, name: str) -> Profile:
    found = model.profile(name)
    assert found is not None
    return found


# --- The catalogue ------------------------------------------------------------


def test_it_knows_thirteen_models_on_three_grids() -> None:
    assert len(MODELS) == 13
    assert {m.grid for m in MODELS} == {4, 8, 12}
    assert (RTX.grid, RTX.compute_slices) == (12, 4)


@EACH
def test_the_grid_is_what_the_profiles_reach(model: Model) -> None:
    assert mig.grid_of(model.profiles) == model.grid
    assert mig.grid_of(()) is None


@EACH
def test_profiles_are_found_by_name_and_by_id(model: Model) -> None:
    for p in model.profiles:
        assert model.profile(p.name) is p
        assert model.by_id(p.profile_id) is p
        assert p.name in mig.profile_names()
    assert model.profile("9g.999gb") is None
    assert model.by_id(999) is None


@EACH
def test_every_figure_is_plausible_or_absent(model: Model) -> None:
    assert model.sources
    assert set(model.sources) <= set(mig.sources())
    assert model.mode_change == ("reset" if model.arch == "ampere" else "immediate")
    for p in model.profiles:
        assert p.confidence in {"high", "medium", "low", "names-only"}
        assert p.starts == tuple(sorted(set(p.starts)))
        for figure in (p.memory_mib, p.sm, model.total_memory_mib, model.sm_total, *p.memory_other):
            assert figure is None or figure > 0
        if p.memory_mib and model.total_memory_mib:
            # The plain share of memory, give or take what the driver keeps for itself.
            share = model.total_memory_mib * p.size / model.grid
            assert 0.85 * share < p.memory_mib < 1.05 * share


@EACH
def test_what_a_name_says_is_what_the_profile_has(model: Model) -> None:
    for p in model.profiles:
        assert p.name.startswith(f"{p.compute_slices}g.")
        assert p.gfx == p.name.endswith("+gfx")
        suffix = {Media.EXT: "+me", Media.ALL: "+me.all", Media.NONE: "-me"}.get(p.media, "")
        assert p.name.removesuffix("+gfx").endswith(suffix)
        assert ("me" in p.name) == bool(suffix)


def test_unsourced_figures_are_absent_not_invented() -> None:
    assert all(p.memory_mib is None and p.sm is None for p in B300.profiles)
    assert {p.memory_mib for p in mig.models()["H100-96GB"].profiles} == {None}
    assert named(mig.models()["GB200-186GB"], "1g.23gb").memory_mib == 22528
    assert named(mig.models()["GB200-186GB"], "7g.186gb").memory_mib is None
    assert mig.models()["GH200-144GB"].total_memory_mib is None


def test_the_same_id_is_another_profile_on_another_model() -> None:
    assert [m.by_id(14) for m in (A100, RTX)] == [named(A100, "2g.10gb"), named(RTX, "1g.24gb")]


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        mig.models()["X"] = H100  # type: ignore[index]


# --- Layouts --------------------------------------------------------------------


def placements(model: Model, skip: str = "") -> list[Slice]:
    return [
        Slice(p, s)
        for p in model.profiles
        if p.media is Media.DEFAULT and not p.gfx and p.name != skip
        for s in p.starts
    ]


def layouts(choices: list[Slice], chosen: list[Slice]) -> Iterator[list[Slice]]:
    """Every valid layout made of these placements, each once."""
    yield chosen
    for i, choice in enumerate(choices):
        if mig.conflict([*chosen, choice]) is None:
            yield from layouts(choices[i + 1 :], [*chosen, choice])


def maximal(choices: list[Slice]) -> list[list[Slice]]:
    return [
        layout
        for layout in layouts(choices, [])
        if all(mig.conflict([*layout, c]) is not None for c in choices)
    ]


def kinds(found: list[list[Slice]]) -> int:
    return len({tuple(sorted(s.profile.name for s in layout)) for layout in found})


def test_an_a100_has_the_nineteen_layouts_of_its_table() -> None:
    plain = maximal(placements(A100, skip="1g.10gb"))
    assert (len(plain), kinds(plain)) == (19, 14)
    every = maximal(placements(A100))
    assert (len(every), kinds(every)) == (78, 38)


@EACH
def test_compute_slices_never_run_out_before_memory_slices(model: Model) -> None:
    for layout in layouts(placements(model), []):
        assert sum(s.profile.compute_slices for s in layout) <= model.compute_slices
        assert sum(s.profile.size for s in layout) <= model.grid


@EACH
def test_every_pair_of_profiles_agrees_with_the_constraints_of_the_table(model: Model) -> None:
    """The core's rule is exactly: spans overlap, or both take media, or their groups differ."""
    for a, b in combinations_with_replacement(model.profiles, 2):
        for start_a in a.starts:
            for start_b in b.starts:
                overlap = start_a < start_b + b.size and start_b < start_a + a.size
                media = mig.takes_media(a) and mig.takes_media(b)
                groups = {mig.media_group(a), mig.media_group(b)} == {0, 1}
                found = mig.conflict([Slice(a, start_a), Slice(b, start_b)])
                assert (found is not None) == (overlap or media or groups), (a.name, b.name)
                if overlap:
                    assert found == "overlap"


@pytest.mark.parametrize("a", Media)
@pytest.mark.parametrize("b", Media)
def test_media_clash_is_what_the_two_columns_exclude(a: Media, b: Media) -> None:
    assert mig.media_clash(a, b) == worlds.columns_exclude(a, b) == mig.media_clash(b, a)


@EACH
def test_the_columns_of_a_profile_are_those_of_its_media(model: Model) -> None:
    for p in model.profiles:
        assert (mig.takes_media(p), mig.media_group(p)) == worlds.COLUMNS[p.media]


@pytest.mark.parametrize(
    ("slices", "word"),
    [
        ([("1g.10gb", 7)], "no_such_placement"),
        ([("2g.20gb", 1)], "no_such_placement"),
        ([("3g.40gb", 0), ("4g.40gb", 0)], "overlap"),
        ([("3g.40gb", 0), ("3g.40gb", 4)], None),
        ([("4g.40gb", 0), ("3g.40gb", 4)], None),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "max_instances"),
        ([("1g.10gb+me", 0), ("1g.10gb", 1)], None),
        ([("7g.80gb", 0), ("1g.10gb", 0)], "overlap"),
    ],
)
def test_a_conflict_has_a_word(slices: list[tuple[str, int]], word: str | None) -> None:
    assert mig.conflict([Slice(named(H100, name), start) for name, start in slices]) == word


def test_all_media_leaves_room_for_nothing_but_media_free_slices() -> None:
    taken = [Slice(named(RTX, "1g.24gb+me.all"), 0)]
    for p in RTX.profiles:
        free = tuple(s for s in p.starts if s >= 3)
        assert mig.room(p, taken) == (free if p.media is Media.NONE else ())


def test_room_counts_what_is_taken() -> None:
    taken = [Slice(named(H100, "3g.40gb"), 4)]
    assert mig.room(named(H100, "1g.10gb"), taken) == (0, 1, 2, 3)
    assert mig.room(named(H100, "7g.80gb"), taken) == ()
    assert mig.room(named(H100, "7g.80gb"), ()) == (0,)


@EACH
def test_the_most_that_fits_is_what_filling_up_gives(model: Model) -> None:
    for p in model.profiles:
        taken: list[Slice] = []
        while starts := mig.room(p, taken):
            taken.append(Slice(p, starts[0]))
        assert mig.most(p) == len(taken) == p.max_instances


# --- The smallest that fits -------------------------------------------------------


@EACH
def test_a_minimum_takes_plain_profiles_only(model: Model) -> None:
    for p in model.profiles:
        found = mig.smallest(model.profiles, p.memory_mib, p.compute_slices)
        assert found is not None
        assert found.media is Media.DEFAULT
        assert not found.gfx
        assert (found.size, found.compute_slices) <= (p.size, p.compute_slices)


@pytest.mark.parametrize(
    ("memory", "compute", "name"),
    [
        (None, 1, "1g.10gb"),
        (9984, None, "1g.10gb"),
        (9985, None, "1g.20gb"),
        (9985, 2, "2g.20gb"),
        (20097, None, "3g.40gb"),
        (None, 4, "4g.40gb"),
        (None, 5, "7g.80gb"),
        (81153, None, None),
        (None, 8, None),
    ],
)
def test_the_smallest_profile_that_is_enough(
    memory: int | None, compute: int | None, name: str | None
) -> None:
    found = mig.smallest(H100.profiles, memory, compute)
    assert (found.name if found else None) == name


def test_unknown_memory_satisfies_no_minimum() -> None:
    assert mig.smallest(B300.profiles, 1, None) is None
    found = mig.smallest(B300.profiles, None, 1)
    assert found is not None
    assert found.name == "1g.34gb"


def test_media_and_graphics_profiles_are_never_the_smallest_even_alone() -> None:
    assert mig.smallest([p for p in RTX.profiles if {"+", "-"} & set(p.name)], 1, 1) is None


def test_of_two_of_one_size_the_one_with_less_memory_then_the_first_by_name() -> None:
    p = named(H100, "1g.10gb")
    lean, fat, unknown = (replace(p, name=n, memory_mib=m) for n, m in (("b", 5), ("a", 9), ("c", None)))
    assert mig.smallest([unknown, fat, lean], None, None) is lean
    assert mig.smallest([unknown, fat, lean], 6, None) is fat
    assert mig.smallest([replace(lean, name="z"), lean], None, None) is lean


# --- Which model it is ------------------------------------------------------------


@EACH
def test_a_gpu_is_known_by_its_name_or_its_pci_id(model: Model) -> None:
    for name in model.nvml_names:
        assert mig.identify(name, None, None) is model
        assert mig.identify(name.removeprefix("NVIDIA ").upper(), None, model.total_memory_mib) is model
    for pci in model.pci_device_ids:
        assert mig.identify("Graphics Device", pci, model.total_memory_mib) is model


@pytest.mark.parametrize("memory", [None, -1, 0, True, "40960", float("nan"), float("inf"), 10**30])
def test_a_memory_that_makes_no_sense_decides_nothing(memory: object) -> None:
    assert mig.identify("NVIDIA A30", None, memory) is mig.models()["A30-24GB"]


def test_another_variant_or_an_unknown_gpu_is_no_model() -> None:
    assert mig.identify("NVIDIA H20", None, 143771) is None
    assert mig.identify("NVIDIA H20", None, 97871) is mig.models()["H100-96GB"]
    assert mig.identify("NVIDIA L40S", 0x26B910DE, 46068) is None
    assert mig.identify("", None, None) is None


def test_the_pci_id_wins_over_the_name() -> None:
    assert mig.identify("NVIDIA A100-SXM4-40GB", 0x20B210DE, 81920) is mig.models()["A100-80GB"]
    assert mig.identify("NVIDIA A100-SXM4-40GB", 0x20B210DE, None) is mig.models()["A100-80GB"]
    assert mig.identify("NVIDIA A100-SXM4-40GB", 0x20B210DE, 40960) is A100


FIGURES = ("memory_mib", "sm", "decoders", "encoders", "copy_engines", "jpeg", "ofa")


def test_a_row_known_by_name_only_has_figures_only_where_its_note_names_a_source() -> None:
    raw = json.loads(Path(mig.__file__).with_name("catalogue.json").read_text())
    rows = [p for m in raw["models"].values() for p in m["profiles"] if p["confidence"] == "names-only"]
    assert len(rows) > 20
    for row in rows:
        present = [f for f in FIGURES if row[f] is not None]
        assert present == [] or "from the MIG guide" in row["note"]
