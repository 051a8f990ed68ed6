"""What one booking may be: each limit with its last that passes and its first that does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core import limits
from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_lines import NO_LIMITS, Limits, Line
from tests.core.worlds import at, span

SIX = {"kind": "mig", "largest_milli": 500, "milli": 3000, "period": span(2, 8), "now": at(0)}


def refusal(allowed: Limits, **wanted: Any) -> dict[str, Any]:
    with pytest.raises(Refusal) as caught:
        check(allowed, **wanted)
    assert caught.value.code is Code.QUOTA_EXCEEDED
    return caught.value.data


def check(allowed: Limits, **wanted: Any) -> None:
    limits.check([Line(7, "H100", 0, 9000, team=3, limits=allowed)], **{**SIX, **wanted})


def test_without_limits_anything_passes() -> None:
    check(NO_LIMITS, kind="gpu", largest_milli=1000, milli=64_000, period=span(900, None))


def test_only_kinds_that_are_named_are_allowed() -> None:
    check(Limits(kinds=("mig", "share")))
    assert refusal(Limits(kinds=("mig", "share")), kind="gpu") == {
        "reason": "kind_not_allowed", "line": 7, "team": 3, "model": "H100",
        "cap": ["mig", "share"], "asked": "gpu",
    }  # fmt: skip


def test_no_piece_is_larger_than_the_largest() -> None:
    check(Limits(largest_milli=500))
    data = refusal(Limits(largest_milli=500), largest_milli=501)
    assert (data["reason"], data["cap"], data["asked"]) == ("piece_too_large", 500, 501)


def test_gpus_are_those_of_all_pieces_rounded_up() -> None:
    check(Limits(most_gpus=3))
    data = refusal(Limits(most_gpus=3), milli=3001)
    assert (data["reason"], data["cap"], data["asked"]) == ("too_many_gpus", 3, 4)


def test_a_booking_is_no_longer_than_the_longest_and_one_without_end_is_longer_than_any() -> None:
    check(Limits(longest_minutes=360))
    longer = Period(at(2), at(8) + timedelta(seconds=1))
    data = refusal(Limits(longest_minutes=360), period=longer)
    assert (data["reason"], data["cap"], data["asked"]) == ("too_long", 360, 361)
    assert refusal(Limits(longest_minutes=360), period=span(2, None))["asked"] is None


def test_nothing_is_booked_further_ahead_than_allowed() -> None:
    check(Limits(ahead_minutes=120))
    data = refusal(Limits(ahead_minutes=120), now=at(0) - timedelta(seconds=1))
    assert (data["reason"], data["cap"], data["asked"]) == ("too_far_ahead", 120, 121)
    check(Limits(ahead_minutes=0), now=at(2))
    check(Limits(ahead_minutes=0), now=at(3))


def test_every_line_has_to_allow_it() -> None:
    lines = [Line(1, None, 0, 9000, team=3), Line(2, None, 0, 9000, team=1, limits=Limits(most_gpus=2))]
    with pytest.raises(Refusal) as caught:
        limits.check(lines, **SIX)
    assert (caught.value.data["line"], caught.value.data["team"]) == (2, 1)
