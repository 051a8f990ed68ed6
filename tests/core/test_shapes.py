"""Reading asks: what is taken, what each wrong field is called, and that nothing else ever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core import mig
from pool.core.errors import Code, Invalid
from pool.core.shapes import (
    MAX_COUNT,
    Ask,
    Class,
    GpuAsk,
    MigAsk,
    ShareAsk,
    Sharing,
    Spread,
    ask_json,
    check_class,
    parse_ask,
    stored_ask,
)


def faults(raw: object) -> dict[str, str]:
    """Pointer -> code of everything that is wrong with it."""
    with pytest.raises(Invalid) as caught:
        parse_ask(raw)
    return {error.pointer: error.code for error in caught.value.errors}


def numbers(raw: object) -> dict[str, Any]:
    with pytest.raises(Invalid) as caught:
        parse_ask(raw)
    return caught.value.errors[0].data


def share(**fields: Any) -> dict[str, Any]:
    return {"kind": "share", "memory_mib": 8192, "compute": {"guaranteed": 20, "limit": 20}} | fields


def slices(**fields: Any) -> dict[str, Any]:
    return {"kind": "mig", "profile": "1g.10gb"} | fields


# --- What is taken ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "ask"),
    [
        ({"kind": "mig", "profile": "1g.10gb", "count": 2}, MigAsk("1g.10gb", count=2)),
        ({"kind": "mig", "profile": "MIG 1g.10gb"}, MigAsk("1g.10gb")),
        ({"kind": "mig", "memory_mib": 8192}, MigAsk(memory_mib=8192)),
        ({"kind": "mig", "compute_slices": 2, "memory_mib": 1}, MigAsk(memory_mib=1, compute_slices=2)),
        (
            {"kind": "mig", "profile_any": ["1g.5gb", "MIG 1g.10gb"], "spread": "node"},
            MigAsk(profile_any=("1g.5gb", "1g.10gb"), spread=Spread.NODE),
        ),
        (
            {"kind": "gpu", "count": 4, "segment": 2, "same_nvlink_domain": True},
            GpuAsk(count=4, segment=2, same_nvlink_domain=True),
        ),
        ({"kind": "gpu", "count": 4, "segment": 8}, GpuAsk(count=4, segment=8)),
        (
            {"kind": "gpu", "node_cpu_milli": 16000, "node_memory_mib": 65536},
            GpuAsk(node_cpu_milli=16000, node_memory_mib=65536),
        ),
        (slices(same_nvlink_domain=False, segment=None), MigAsk("1g.10gb")),
        (slices(model="H100-80GB"), MigAsk("1g.10gb", models=("H100-80GB",))),
        (slices(models=["B", "A", "B"]), MigAsk("1g.10gb", models=("B", "A"))),
        (slices(same_node=True, node="dgx-1"), MigAsk("1g.10gb", same_node=True, node="dgx-1")),
        (
            slices(model=None, models=None, node=None, same_node=None, memory_mib=None),
            MigAsk("1g.10gb"),
        ),
        ({"kind": "gpu"}, GpuAsk()),
        (
            {"kind": "gpu", "model": "H100-80GB", "count": 4, "same_node": True},
            GpuAsk(("H100-80GB",), count=4, same_node=True),
        ),
        ({"kind": "gpu", "memory_mib": 40_000, "count": MAX_COUNT}, GpuAsk(memory_mib=40_000, count=1024)),
    ],
)
def test_an_ask_is_read(raw: dict[str, Any], ask: Ask) -> None:
    assert parse_ask(raw) == ask


def test_a_name_that_only_a_driver_prints_is_taken_when_it_is_reported() -> None:
    assert faults(slices(profile="1g.31gb")) == {"/ask/profile": "unknown_profile"}
    assert parse_ask(slices(profile="1g.31gb"), reported_names=["1g.31gb"]) == MigAsk("1g.31gb")


def test_a_stored_ask_outlives_its_profile() -> None:
    ask = MigAsk("1g.31gb", count=3)
    assert stored_ask(ask_json(ask)) == ask


# --- What is wrong ----------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, -(10**9)])
def test_a_count_below_one_is_too_small(value: int) -> None:
    assert faults(slices(count=value)) == {"/ask/count": "too_small"}
    assert numbers(slices(count=value)) == {"min": 1, "max": 1024, "value": value}


@pytest.mark.parametrize("value", [1025, 10**9])
def test_a_count_above_the_most_is_too_large(value: int) -> None:
    assert faults({"kind": "gpu", "count": value}) == {"/ask/count": "too_large"}
    assert numbers({"kind": "gpu", "count": value}) == {"min": 1, "max": 1024, "value": value}


def test_a_number_that_no_reader_keeps_exact_is_not_repeated() -> None:
    assert numbers(slices(count=10**400)) == {"min": 1, "max": 1024}


@pytest.mark.parametrize("value", [True, False, 1.0, 2.5, "2", "", [], {}, float("nan")])
def test_a_count_that_is_no_integer_is_refused(value: object) -> None:
    assert faults(slices(count=value)) == {"/ask/count": "not_an_integer"}
    assert numbers(slices(count=value)) == {"min": 1, "max": 1024}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, {"/ask": "not_an_object"}),
        ([], {"/ask": "not_an_object"}),
        ("mig", {"/ask": "not_an_object"}),
        ({}, {"/ask/kind": "required"}),
        ({"kind": None}, {"/ask/kind": "required"}),
        ({"kind": "half"}, {"/ask/kind": "not_a_choice"}),
        ({"kind": ["mig"]}, {"/ask/kind": "not_a_choice"}),
        ({"kind": "mig"}, {"/ask/profile": "required"}),
        ({"kind": "mig", "profile": None}, {"/ask/profile": "required"}),
        (slices(count=None), {"/ask/count": "required"}),
        (slices(profile="2g.5gb"), {"/ask/profile": "unknown_profile"}),
        (slices(profile=1), {"/ask/profile": "not_a_string"}),
        (slices(profile=""), {"/ask/profile": "malformed"}),
        (slices(memory_mib=-1), {"/ask/memory_mib": "too_small"}),
        (slices(memory_mib=10**12), {"/ask/memory_mib": "too_large"}),
        (slices(memory_mib="8 GiB"), {"/ask/memory_mib": "not_an_integer"}),
        (slices(compute_slices=0), {"/ask/compute_slices": "too_small"}),
        (slices(compute_slices=65), {"/ask/compute_slices": "too_large"}),
        (slices(same_node=1), {"/ask/same_node": "not_a_boolean"}),
        (slices(node="*"), {"/ask/node": "malformed"}),
        (slices(node="dgx-1\n"), {"/ask/node": "malformed"}),
        (slices(model=""), {"/ask/model": "malformed"}),
        (slices(model="H100\x00"), {"/ask/model": "malformed"}),
        (slices(model="\ud800"), {"/ask/model": "malformed"}),
        (slices(model="x" * 101), {"/ask/model": "malformed"}),
        (slices(model=["H100-80GB"]), {"/ask/model": "not_a_string"}),
        (slices(models="H100-80GB"), {"/ask/models": "not_a_list"}),
        (slices(models=[]), {"/ask/models": "too_few"}),
        (slices(models=["x"] * 17), {"/ask/models": "too_many"}),
        (slices(models=["H100-80GB", 1]), {"/ask/models": "not_a_string"}),
        (slices(model="A", models=["B"]), {"/ask/model": "not_together"}),
        (slices(coutn=2), {"/ask/coutn": "unknown_field"}),
        ({"kind": "gpu", "profile": "7g.80gb"}, {"/ask/profile": "unknown_field"}),
        ({"kind": "gpu", "compute_slices": 1}, {"/ask/compute_slices": "unknown_field"}),
        (slices(profile_any=["2g.20gb"]), {"/ask/profile_any": "not_together"}),
        ({"kind": "mig", "profile_any": []}, {"/ask/profile_any": "too_few"}),
        ({"kind": "mig", "profile_any": ["2g.5gb"]}, {"/ask/profile_any": "unknown_profile"}),
        ({"kind": "gpu", "count": 5, "segment": 2}, {"/ask/segment": "does_not_divide"}),
        ({"kind": "gpu", "segment": 0}, {"/ask/segment": "too_small"}),
        (slices(same_nvlink_domain=True), {"/ask/same_nvlink_domain": "only_whole_gpus"}),
        (slices(segment=2), {"/ask/segment": "only_whole_gpus"}),
        (slices(spread="rack"), {"/ask/spread": "not_a_choice"}),
        (slices(spread="node", same_node=True), {"/ask/spread": "not_together"}),
        (slices(spread="node", node="dgx-1"), {"/ask/spread": "not_together"}),
        (slices(node_cpu_milli=-1), {"/ask/node_cpu_milli": "too_small"}),
        (slices(node_memory_mib="1 TiB"), {"/ask/node_memory_mib": "not_an_integer"}),
    ],
)
def test_each_wrong_field_has_its_word(raw: object, expected: dict[str, str]) -> None:
    assert faults(raw) == expected


def test_everything_that_is_wrong_is_said_at_once() -> None:
    raw = {"kind": "mig", "count": 0, "node": "A B", "typo": 1, "same_node": "yes"}
    assert faults(raw) == {
        "/ask/typo": "unknown_field",
        "/ask/profile": "required",
        "/ask/count": "too_small",
        "/ask/same_node": "not_a_boolean",
        "/ask/node": "malformed",
    }
    assert set(faults({"count": 0, "typo": 1})) == {"/ask/kind", "/ask/count", "/ask/typo"}


def test_an_unknown_profile_is_answered_with_those_that_exist() -> None:
    assert numbers(slices(profile="9g.90gb")) == {"known": sorted(mig.profile_names())}


def test_a_pointer_escapes_and_shortens_what_the_asker_wrote() -> None:
    found = faults(slices(**{"a/b~c": 1, "x" * 5000: 1, "\ud800\n": 1}))
    assert set(found) == {"/ask/a~1b~0c", "/ask/" + "x" * 100, "/ask/\\ud800?"}
    assert len(faults(slices(**{f"field{n}": 1 for n in range(5000)}))) == 20


def test_another_pointer_names_another_place() -> None:
    with pytest.raises(Invalid) as caught:
        parse_ask({}, "/items/3/ask")
    assert caught.value.errors[0].pointer == "/items/3/ask/kind"
    assert caught.value.code is Code.INVALID


def test_segments_have_to_divide_what_is_asked_or_to_hold_it_all() -> None:
    for count, segment in ((4, 2), (4, 4), (4, 8), (5, 1), (5, 9)):
        ask = parse_ask({"kind": "gpu", "count": count, "segment": segment})
        assert isinstance(ask, GpuAsk)
        assert ask.segment == segment
    assert numbers({"kind": "gpu", "count": 5, "segment": 2}) == {"count": 5, "segment": 2}


def test_there_are_three_classes() -> None:
    assert {c.value for c in Class} == {"online", "interactive", "batch"}


# --- Nothing else ever happens ------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
any_json = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
fields = {
    "kind": st.sampled_from(["mig", "gpu", "share"]) | any_json,
    "profile": st.sampled_from(sorted(mig.profile_names())) | any_json,
    "memory_mib": st.integers(1, 99_999) | any_json,
    "compute_slices": st.integers(1, 7) | any_json,
    "count": st.integers(1, 9) | any_json,
    "model": st.just("H100-80GB") | any_json,
    "models": st.lists(st.sampled_from(sorted(mig.models())), min_size=1) | any_json,
    "same_node": st.booleans() | any_json,
    "node": st.just("dgx-1") | any_json,
    "profile_any": st.lists(st.sampled_from(sorted(mig.profile_names())), min_size=1) | any_json,
    "spread": st.just("node") | any_json,
    "segment": st.integers(1, 9) | any_json,
    "same_nvlink_domain": st.booleans() | any_json,
    "node_cpu_milli": st.integers(0, 99_999) | any_json,
    "node_memory_mib": st.integers(0, 99_999) | any_json,
    "memory_pct": st.integers(1, 100) | any_json,
    "compute": st.dictionaries(st.sampled_from(["guaranteed", "limit"]), st.integers(0, 100)) | any_json,
    "sharing": st.sampled_from([kind.value for kind in Sharing]) | any_json,
    "accept_not_enforced": st.booleans() | any_json,
    "extra": any_json,
}
almost_asks = st.fixed_dictionaries({}, optional=fields)


@settings(max_examples=250)
@given(any_json | almost_asks)
def test_any_json_is_an_ask_or_a_refusal_that_can_be_sent(raw: object) -> None:
    found = outcome(raw)
    if isinstance(found, Invalid):
        assert found.errors
        json.dumps(found.data, allow_nan=False).encode()
        json.dumps(found.data, ensure_ascii=False).encode()
    else:
        assert parse_ask(json.loads(json.dumps(ask_json(found), ensure_ascii=False).encode())) == found


def outcome(raw: object) -> Ask | Invalid:
    try:
        return parse_ask(raw)
    except Invalid as refused:
        return refused


names = st.lists(st.sampled_from(sorted(mig.models())), unique=True, max_size=3).map(tuple)
common = {
    "count": st.integers(1, MAX_COUNT),
    "models": names,
    "same_node": st.booleans(),
    "node": st.sampled_from([None, "dgx-1"]),
    "node_cpu_milli": st.integers(0, 99_999),
    "node_memory_mib": st.integers(0, 99_999),
}
sound = st.builds(
    MigAsk,
    profile=st.sampled_from(sorted(mig.profile_names())),
    memory_mib=st.none() | st.integers(1, 99_999),
    compute_slices=st.none() | st.integers(1, 7),
    **common,
) | st.builds(
    GpuAsk,
    memory_mib=st.none() | st.integers(1, 99_999),
    same_nvlink_domain=st.booleans(),
    segment=st.sampled_from([None, 1, MAX_COUNT]),
    **common,
)
sound_shares = st.builds(
    lambda memory, in_percent, compute, more, sharing, **rest: ShareAsk(
        memory_mib=None if in_percent else memory * 99,
        memory_pct=memory if in_percent else None,
        guaranteed=compute,
        limit=max(1, min(100, compute + more)),
        sharing=sharing,
        **rest,
    ),
    memory=st.integers(1, 100),
    in_percent=st.booleans(),
    compute=st.integers(0, 100),
    more=st.integers(0, 100),
    sharing=st.sampled_from([None, Sharing.MPS, Sharing.HAMI]),
    accept_not_enforced=st.booleans(),
    **common,
)


@given(sound | sound_shares)
def test_an_ask_survives_being_written_and_read(ask: Ask) -> None:
    assert parse_ask(ask_json(ask)) == stored_ask(ask_json(ask)) == ask
    assert None not in ask_json(ask).values()


# --- Shares -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "ask"),
    [
        (share(), ShareAsk(memory_mib=8192, guaranteed=20, limit=20)),
        (share(compute={"limit": 30}), ShareAsk(memory_mib=8192, guaranteed=30, limit=30)),
        (share(compute={"guaranteed": 30}), ShareAsk(memory_mib=8192, guaranteed=30, limit=30)),
        (share(compute={"guaranteed": 0, "limit": 100}), ShareAsk(memory_mib=8192, guaranteed=0, limit=100)),
        (
            share(memory_mib=None, memory_pct=25, count=3, sharing="hami", models=["A"], node="dgx-1"),
            ShareAsk(None, 25, 20, 20, 3, ("A",), node="dgx-1", sharing=Sharing.HAMI),
        ),
        (
            share(sharing="timeslice", accept_not_enforced=True, same_node=True),
            ShareAsk(8192, None, 20, 20, same_node=True, sharing=Sharing.TIMESLICE, accept_not_enforced=True),
        ),
    ],
)
def test_an_ask_for_shares_is_read_and_written(raw: dict[str, Any], ask: ShareAsk) -> None:
    assert parse_ask(raw) == ask
    assert stored_ask(json.loads(json.dumps(ask_json(ask)))) == ask


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (share(memory_mib=None), {"/ask/memory_mib": "required"}),
        (share(memory_pct=10), {"/ask/memory_pct": "not_together"}),
        (share(memory_mib=None, memory_pct=0), {"/ask/memory_pct": "too_small"}),
        (share(memory_mib=None, memory_pct=101), {"/ask/memory_pct": "too_large"}),
        (share(compute=None), {"/ask/compute": "required"}),
        (share(compute=20), {"/ask/compute": "not_an_object"}),
        (share(compute={}), {"/ask/compute/guaranteed": "required"}),
        (share(compute={"guaranteed": 0}), {"/ask/compute/limit": "required"}),
        (share(compute={"guaranteed": 50, "limit": 20}), {"/ask/compute/limit": "too_small"}),
        (share(compute={"limit": 0}), {"/ask/compute/limit": "too_small"}),
        (share(compute={"guaranteed": 101}), {"/ask/compute/guaranteed": "too_large"}),
        (share(compute={"limit": 10, "least": 1}), {"/ask/compute/least": "unknown_field"}),
        (share(sharing="vgpu"), {"/ask/sharing": "not_a_choice"}),
        (share(sharing=["mps"]), {"/ask/sharing": "not_a_choice"}),
        (share(sharing="timeslice"), {"/ask/accept_not_enforced": "not_enforced"}),
        (share(accept_not_enforced="yes"), {"/ask/accept_not_enforced": "not_a_boolean"}),
        (share(profile="1g.10gb"), {"/ask/profile": "unknown_field"}),
        (slices(memory_pct=10), {"/ask/memory_pct": "unknown_field"}),
    ],
)
def test_each_wrong_field_of_a_share_has_its_word(raw: dict[str, Any], expected: dict[str, str]) -> None:
    assert faults(raw) == expected


@pytest.mark.parametrize("klass", [Class.ONLINE, Class.INTERACTIVE])
def test_only_batch_work_may_take_more_than_its_guarantee(klass: Class) -> None:
    yielding = ShareAsk(memory_mib=1, guaranteed=0, limit=100)
    with pytest.raises(Invalid) as caught:
        check_class(yielding, klass)
    assert [(e.pointer, e.code) for e in caught.value.errors] == [("/ask/compute/limit", "only_batch_above")]
    check_class(yielding, Class.BATCH)
    check_class(ShareAsk(memory_mib=1, guaranteed=5, limit=5), klass)
    check_class(MigAsk("1g.10gb"), klass)
