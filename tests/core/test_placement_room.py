"""What one GPU has free over a period, and why it has nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.core import mig
from pool.core.placement_room import Use, chosen, mismatch, packed, room, slots
from pool.core.shapes import Ask, GpuAsk, MigAsk
from tests.core.worlds import gpu, profile, span, taken, wall

H100, RTX, B300 = "H100-80GB", "RTX-PRO-6000-96GB", "B300-269GB"
ONE, TWO, THREE = (profile(H100, name) for name in ("1g.10gb", "2g.20gb", "3g.40gb"))


# --- Slots ------------------------------------------------------------


def test_slots_are_masks_in_order_and_on_the_grid() -> None:
    assert slots(2, (4, 0, 2), 8) == ((0, 0b11), (2, 0b1100), (4, 0b110000))
    assert slots(2, (0, 7), 8) == ((0, 0b11),)


@pytest.mark.parametrize(("free", "count"), [(0b1111, 2), (0b0110, 1), (0b0111, 1), (0b0101, 0), (0, 0)])
def test_crossing_slots_are_packed_as_tightly_as_they_can(free: int, count: int) -> None:
    assert packed(slots(2, (0, 1, 2), 4), free) == count


# --- Room -----------------------------------------------------------------------


def test_an_empty_gpu_has_room_for_the_most() -> None:
    for p in mig.models()[H100].profiles:
        assert room(gpu(), p, span(0, 1)).count == mig.most(p)


def test_what_is_taken_at_any_instant_is_taken_for_the_whole_period() -> None:
    card = gpu(busy=[taken(ONE, 0, span(0, 1)), taken(ONE, 1, span(3, 4)), taken(ONE, 2, span(4, 5))])
    found = room(card, ONE, span(0, 4))
    assert [start for start, _ in found.slots] == [2, 3, 4, 5, 6]
    assert (found.count, found.why) == (5, None)
    assert found.free == 0b1111_1100


@pytest.mark.parametrize(
    ("busy", "name", "word"),
    [
        ([wall(0, 8, span(1, 2))], "1g.10gb", "busy"),
        ([wall(0, 1, span(1, 2))], "7g.80gb", "busy"),
        ([wall(0, 1, span(2, 3))], "7g.80gb", None),
        ([taken(profile(H100, "1g.10gb+me"), 0, span(1, 2))], "1g.10gb+me", "media"),
        ([taken(profile(H100, "1g.10gb+me"), 0, span(2, 3))], "1g.10gb+me", None),
    ],
)
def test_no_room_has_a_word(busy: list[object], name: str, word: str | None) -> None:
    found = room(replace(gpu(), busy=tuple(busy)), profile(H100, name), span(0, 2))  # type: ignore[arg-type]
    assert (found.why, bool(found.count)) == (word, word is None)


def test_the_limit_of_a_profile_counts_those_at_the_same_instant() -> None:
    few = replace(ONE, max_instances=2)
    behind = [taken(few, 0, span(0, 1)), taken(few, 1, span(1, 2)), taken(few, 2, span(2, 3))]
    assert room(gpu(busy=behind), few, span(0, 3)).count == 1
    beside = [taken(few, 0, span(0, 2)), taken(few, 1, span(1, 3))]
    assert room(gpu(busy=beside), few, span(0, 3)).why == "limit"
    assert room(gpu(busy=[taken(TWO, 0, span(0, 3))]), few, span(0, 3)).count == 2


def test_media_extensions_come_once_whatever_a_driver_says() -> None:
    three = replace(profile(H100, "1g.10gb+me"), max_instances=3)
    assert room(gpu(), three, span(0, 1)).count == 1


def test_a_whole_gpu_is_free_or_not() -> None:
    card = gpu(use=Use.WHOLE, busy=[wall(5, 1, span(2, 3))])
    assert (room(card, None, span(0, 2)).count, room(card, None, span(0, 3)).why) == (1, "busy")


# --- Which GPUs and profiles come into question -------------------------------------


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        (MigAsk("1g.10gb"), None),
        (MigAsk("1g.10gb", node="elsewhere"), "node"),
        (MigAsk("1g.10gb", models=("A100-80GB",)), "no_such_model"),
        (MigAsk("1g.10gb", models=("A100-80GB", H100)), None),
        (MigAsk("1g.5gb"), "no_such_profile"),
        (MigAsk("1g.10gb", memory_mib=9_984), None),
        (MigAsk("1g.10gb", memory_mib=9_985), "too_small"),
        (MigAsk("1g.10gb", compute_slices=2), "too_small"),
        (MigAsk(memory_mib=81_153), "too_small"),
        (MigAsk(compute_slices=8), "too_small"),
        (GpuAsk(), "wrong_use"),
    ],
)
def test_a_gpu_that_is_out_of_the_question_has_a_word(ask: Ask, word: str | None) -> None:
    card = gpu()
    assert mismatch(card, ask, chosen(card, ask)) == word


@pytest.mark.parametrize(
    ("memory", "ask", "word"),
    [
        (81_559, GpuAsk(memory_mib=81_559), None),
        (81_559, GpuAsk(memory_mib=81_560), "too_small"),
        (None, GpuAsk(memory_mib=1), "memory_unknown"),
        (None, GpuAsk(), None),
        (81_559, MigAsk("7g.80gb"), "wrong_use"),
    ],
)
def test_a_whole_gpu_that_is_out_of_the_question(memory: int | None, ask: Ask, word: str | None) -> None:
    card = replace(gpu(use=Use.WHOLE), memory_mib=memory)
    assert mismatch(card, ask, chosen(card, ask)) == word


def test_unknown_memory_is_said_to_be_unknown_not_small() -> None:
    card = gpu(model=B300)
    for ask in (MigAsk(memory_mib=1), MigAsk("1g.34gb", memory_mib=1)):
        assert chosen(card, ask) is None
        assert mismatch(card, ask, None) == "memory_unknown"
    assert chosen(card, MigAsk("1g.34gb")) is not None


def test_a_gpu_without_profiles_offers_none() -> None:
    bare = replace(gpu(), profiles=())
    assert mismatch(bare, MigAsk(memory_mib=1), None) == "no_such_profile"


def test_profiles_with_media_or_graphics_come_only_by_name() -> None:
    card = gpu(model=RTX)
    by_name = chosen(card, MigAsk("1g.24gb+gfx"))
    assert by_name is not None
    assert by_name.gfx
    smallest = chosen(card, MigAsk(memory_mib=1))
    assert smallest is not None
    assert smallest.name == "1g.24gb"
    only_odd = replace(card, profiles=tuple(p for p in card.profiles if p.name != "1g.24gb" and p.size == 3))
    assert chosen(only_odd, MigAsk(memory_mib=1)) is None
