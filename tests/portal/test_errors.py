"""The table of refusals: complete, with numbers, in two languages' machinery."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone, translation

from pool.core.errors import Code, FieldError, Invalid, Refusal, invalid
from pool.core.period import parse_instant
from portal.errors import DoorCode, problem, problem_for
from portal.errortable import TABLE
from portal.fielderrors import SENTENCES, field_sentence


@pytest.mark.parametrize("code", [*Code, *DoorCode])
def test_it_has_words_for_every_code_even_without_numbers(code):
    said = problem_for(code, {})
    assert 400 <= said.status < 600
    assert said.code == code.value
    assert said.title
    assert said.detail
    assert said.next_step
    assert "%(" not in said.detail


@pytest.mark.parametrize("code", sorted(TABLE))
def test_it_says_the_numbers_when_they_are_known(code):
    for sentence in TABLE[code].sentences:
        asked = defaultdict(lambda: 7)
        said = str(sentence % asked)
        assert said
        assert said.count("7") == len(asked)


@pytest.mark.parametrize(("count", "said"), [(1, "1 booking stands in"), (3, "3 bookings stand in")])
def test_it_counts_what_stands_in_the_way(count, said):
    assert problem(Refusal(Code.WRONG_STATE, doing="adopt", count=count)).detail == f"{said} the way."


def test_it_tells_asked_and_free_and_what_stands_in_the_way():
    said = problem(
        Refusal(Code.NO_CAPACITY, asked=3, free=1, offered=7, counts={"busy": 4, "unknown": 2, "lost": 0})
    )
    assert said.status == 409
    assert "3 asked, 1 free" in said.detail
    assert "4 booked, 2 not heard from" in said.detail
    assert "lost" not in said.detail
    assert said.data["counts"]["busy"] == 4


def test_it_tells_the_first_free_time_in_the_active_zone():
    refusal = Refusal(Code.NO_CAPACITY, asked=1, free=0, first_time="2027-03-01T10:00:00Z")
    assert "First free: 2027-03-01 10:00:00 UTC." in problem(refusal).detail
    with timezone.override(ZoneInfo("Asia/Shanghai")):
        assert "First free: 2027-03-01 18:00:00 CST." in problem(refusal).detail


def test_it_tells_quota_in_gpus():
    over = Refusal(Code.QUOTA_EXCEEDED, reason="over_cap", model=None, cap=8000, used=7750, asked=375, line=3)
    assert problem(over).detail.startswith("0.375 GPU asked, 7.75 of 8 in use")
    none = Refusal(
        Code.QUOTA_EXCEEDED, reason="no_line", model="H100-80GB", cap=0, used=0, asked=250, line=None
    )
    assert problem(none).detail == "The team has no quota for this in the pool; 0.25 GPU asked."
    assert problem(none).next_step.startswith("Ask for quota")


def test_it_gives_each_wrong_field_its_own_sentence():
    refusal = Invalid(
        [
            FieldError("/ask/count", "too_large", {"max": 1024}),
            FieldError("/shape", "unknown_field", {"known": ["kind", "count"]}),
        ]
    )
    said = problem(refusal)
    assert said.status == 422
    assert [f["detail"] for f in said.fields] == [
        "This must be at most 1024.",
        "There is no such field; known: kind, count.",
    ]
    assert said.fields[0] == {
        "pointer": "/ask/count",
        "code": "too_large",
        "max": 1024,
        "detail": "This must be at most 1024.",
    }
    assert "/ask/count: This must be at most 1024." in said.detail
    assert "errors" not in said.data


def test_it_shows_times_of_a_field_in_words_and_keeps_them_in_the_data():
    now = "2027-03-01T10:00:00Z"
    said = problem(invalid("/start", "start_in_past", start="2027-03-01T09:00:00Z", now=now, grace_s=60))
    assert "2027-03-01 09:00:00 UTC lies before now (2027-03-01 10:00:00 UTC)" in said.detail
    assert said.fields[0]["now"] == now


def test_what_it_says_a_time_must_look_like_can_be_sent_as_it_is():
    with pytest.raises(Refusal) as refused:
        parse_instant("tomorrow", "/start")
    said = problem(refused.value)
    assert said.detail == "/start must look like 2027-10-31T09:00:00+01:00."
    assert parse_instant(said.data["expected"], "/start").tzinfo is not None


def test_it_sends_nobody_to_another_time_where_none_would_do():
    never = problem(Refusal(Code.NO_CAPACITY, asked=5, free=0, offered=4))
    assert never.next_step.startswith("No other time helps")
    later = problem(Refusal(Code.NO_CAPACITY, asked=4, free=0, offered=4))
    assert later.next_step.startswith("Choose another time")
    silent = problem(Refusal(Code.NO_CAPACITY, asked=5, free=0, offered=0, counts={"unknown": 8}))
    assert silent.next_step.startswith("Choose another time")
    unknown = problem(Refusal(Code.NO_CAPACITY, asked=4, free=0))
    assert unknown.next_step.startswith("Choose another time")


@pytest.mark.parametrize("code", sorted(SENTENCES))
def test_it_never_shows_a_placeholder_of_a_field(code):
    assert "%" not in field_sentence(code, {})


def test_it_has_words_for_a_field_code_it_does_not_know():
    assert field_sentence("purple", {}) == "This cannot be taken (purple)."


def test_it_leaves_odd_values_as_they_are():
    for value in ("2027-13-01T10:00:00Z", "2027-03-01T10:00:00.000", 10**30, None, ["a", 1]):
        said = problem(invalid("/start", "start_in_past", start=value, now=datetime(2027, 1, 1, tzinfo=UTC)))
        assert said.detail


def test_it_is_marked_for_translation():
    """Rendering happens late: the same refusal follows the language that is active then."""
    refusal = Refusal(Code.NOT_FOUND)
    with translation.override("en"):
        english = problem(refusal).title
    assert english == "Not found"
    assert not isinstance(TABLE[Code.NOT_FOUND].title, str)


def test_its_data_can_be_written_as_json():
    said = problem(Refusal(Code.WRONG_STATE, state="ended", wanted="ending"))
    assert json.loads(json.dumps(dict(said.data))) == {"state": "ended", "wanted": "ending"}
    assert said.detail == "Its state is “Ended”; “Ending” cannot follow that."


@pytest.mark.parametrize(
    ("doing", "state", "detail", "next_step"),
    [
        (
            "release",
            "cancelled",
            "It is over already (Cancelled); nothing is left to release.",
            "Nothing needs",
        ),
        ("release", "ending", "It is ending already; its slices are being taken down.", "Wait until it has"),
        (
            "release",
            "waiting",
            "It has not been granted (On the wait list); nothing is there",
            "Wait until it is",
        ),
        ("extend", "ended", "It is over already (Ended); no time can be added.", "Make a new reservation"),
        ("extend", "ending", "It is ending already; no time can be added.", "Make a new reservation"),
        ("extend", "held", "It has not been granted (Held); no time can be added.", "Wait until it is"),
        ("extend", "paused", "Its state is “Between its windows”; that does not allow this.", "Look at"),
        ("release", "purple", "Its state is “purple”; that does not allow this.", "Look at"),
    ],
)
def test_it_says_what_a_state_does_not_allow_and_what_to_do(doing, state, detail, next_step):
    said = problem(Refusal(Code.WRONG_STATE, state=state, doing=doing))
    assert said.detail.startswith(detail)
    assert said.next_step.startswith(next_step)
    assert said.data["state"] == state


def test_it_names_a_state_in_the_language_of_the_moment():
    with translation.override("zh-hans"):
        said = problem(Refusal(Code.WRONG_STATE, state="cancelled", doing="release"))
    assert "已取消" in said.detail
    assert "cancelled" not in said.detail.lower()


def test_where_nothing_is_taken_no_empty_list_is_shown():
    said = problem(invalid("/why", "unknown_field", known=[]))
    assert said.detail == "/why: There is no such field; no fields are taken."
    assert said.fields[0]["known"] == []
    odd = problem_for(DoorCode.UNKNOWN_PARAMETER, {"parameter": "limit", "known": []})
    assert odd.detail == "limit is not known here; no parameters are taken."


def test_who_may_not_decide_is_sent_to_who_may() -> None:
    for action in ("decide", "set_quota"):
        assert "Ask an approver" in problem_for(Code.FORBIDDEN, {"action": action}).next_step
    assert "lead" in problem_for(Code.FORBIDDEN, {"action": "book"}).next_step


def test_what_needs_an_approver_and_is_waited_for_is_told_so() -> None:
    said = problem_for(Code.NEEDS_APPROVAL, {"reason": "not_from_wait", "above_milli": 1, "asked_milli": 2})
    assert "not given from the wait list" in said.detail
    assert said.next_step.startswith("Book it with a start")
