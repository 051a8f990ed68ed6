"""What quota does not allow, in words with the numbers that were told."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from portal.errors import problem
from portal.quotawords import SAID, said

NUMBERS = {"line": 1, "team": 2, "model": None}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"reason": "over_cap", "cap": 8000, "used": 7750, "asked": 375},
            "0.375 GPU asked, 7.75 of 8 in use at the busiest moment.",
        ),
        (
            {"reason": "over_memory", "cap": 81920, "used": 1024, "asked": 1536},
            "1.5 GiB of GPU memory asked, 1 of 80 in use at the busiest moment.",
        ),
        (
            {"reason": "over_budget", "budget": 3000, "used": 2000, "asked": 1500, "month": "2027-03-01"},
            "1.5 GPU-hours asked, 2 of 3 are reserved in that month.",
        ),
        (
            {"reason": "kind_not_allowed", "cap": ["mig", "share"], "asked": "gpu"},
            "The team may not book this kind here, only: mig, share.",
        ),
        (
            {"reason": "too_long", "cap": 120, "asked": None},
            "One booking may last 2 hours at most; ? asked.",
        ),
        (
            {"reason": "borrowing_stopped", "model": "H100"},
            "It would be borrowed, and a team waits for what it is guaranteed; nothing is lent meanwhile.",
        ),
    ],
)
def test_each_rule_has_its_sentence(data: dict[str, Any], words: str) -> None:
    told = problem(Refusal(Code.QUOTA_EXCEEDED, **{**NUMBERS, **data}))
    assert told.detail == words
    assert told.next_step == str(SAID[data["reason"]].next_step)
    assert told.status == 409


def test_a_reason_that_is_not_known_is_no_error() -> None:
    assert said({"reason": "new"}) is None
    assert problem(Refusal(Code.QUOTA_EXCEEDED, reason="new")).detail == "The team's quota does not allow it."
