"""Bodies of bookings: every wrong field named at once, times with their offset, end or duration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pool.core.errors import Code, Invalid, Refusal
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.core.terms import ORDINARILY, Preempt, Terms
from portal.api import wishes

BODY = {
    "team": "vision",
    "pool": "main",
    "title": "train",
    "ask": {"kind": "mig", "profile": "1g.10gb", "count": 2},
    "start": None,
    "duration": "PT2H",
    "class": "interactive",
}


def wrong(body):
    with pytest.raises(Invalid) as refused:
        wishes.booking(body)
    return {(e.pointer, e.code) for e in refused.value.errors}


def test_it_reads_a_whole_body():
    wish = wishes.booking(BODY)
    assert wish.ask == MigAsk(profile="1g.10gb", count=2)
    assert (wish.team, wish.pool, wish.title, wish.klass) == ("vision", "main", "train", Class.INTERACTIVE)
    assert (wish.start, wish.end, wish.duration, wish.owner) == (None, None, timedelta(hours=2), None)


def test_it_reads_whole_gpus_with_an_end_and_an_owner():
    body = BODY | {
        "ask": {"kind": "gpu", "model": "H100-80GB", "count": 4, "same_node": True},
        "start": "2027-03-01T18:00:00+08:00",
        "end": "2027-03-01T12:00:00Z",
        "duration": None,
        "class": "batch",
        "owner": "robot",
    }
    wish = wishes.booking(body)
    assert wish.ask == GpuAsk(models=("H100-80GB",), count=4, same_node=True)
    assert wish.start == datetime(2027, 3, 1, 10, tzinfo=UTC)
    assert wish.end == datetime(2027, 3, 1, 12, tzinfo=UTC)
    assert (wish.klass, wish.owner) == (Class.BATCH, "robot")


def test_it_needs_neither_title_nor_class_nor_start():
    wish = wishes.booking({name: BODY[name] for name in ("team", "pool", "ask", "duration")})
    assert (wish.title, wish.klass, wish.start) == ("", Class.INTERACTIVE, None)


def test_it_reads_on_what_terms_it_is_booked():
    more = {"preemptible": True, "priority": 70, "justification": "a paper"}
    wish = wishes.booking(BODY | more | {"preempt": {"signal": "SIGUSR1", "grace": "PT2M"}})
    assert wish.terms == Terms(True, 70, Preempt("SIGUSR1", timedelta(minutes=2)), "a paper")
    assert wishes.booking(BODY).terms == ORDINARILY


def test_of_a_signal_both_halves_are_needed():
    assert wrong(BODY | {"preempt": {"signal": "SIGUSR1"}}) == {("/preempt/grace", "required")}
    assert wrong(BODY | {"preempt": {"grace": "PT1M", "x": 1}}) == {
        ("/preempt/signal", "required"),
        ("/preempt/x", "unknown_field"),
    }
    assert wrong(BODY | {"preempt": "SIGUSR1"}) == {("/preempt", "not_an_object")}


def test_a_title_of_blanks_is_none():
    assert wishes.booking(BODY | {"title": " \n "}).title == ""
    assert wishes.booking(BODY | {"title": " two words "}).title == "two words"


def test_it_names_every_wrong_field_at_once():
    body = {"team": "", "pool": 7, "title": "x" * 201, "ask": {"kind": "mig", "count": 0}, "class": "urgent"}
    assert wrong(body) >= {
        ("/team", "blank"),
        ("/pool", "not_a_string"),
        ("/title", "too_long"),
        ("/ask/count", "too_small"),
        ("/class", "not_a_choice"),
        ("/duration", "one_of"),
    }


@pytest.mark.parametrize("name", ["team", "pool", "ask"])
def test_it_requires(name):
    body = {key: value for key, value in BODY.items() if key != name}
    assert wrong(body) == {(f"/{name}", "required")}


def test_it_names_a_field_that_it_does_not_know():
    assert wrong(BODY | {"gpus": 1}) == {("/gpus", "unknown_field")}
    assert wrong(BODY | {"a/b~c": 1}) == {("/a~1b~0c", "unknown_field")}
    assert wrong(BODY | {"ask": BODY["ask"] | {"colour": "red"}}) == {("/ask/colour", "unknown_field")}


def test_it_needs_exactly_one_of_end_and_duration():
    assert wrong(BODY | {"end": "2027-03-01T12:00:00Z"}) == {("/end", "one_of")}
    assert wrong(BODY | {"duration": None}) == {("/duration", "one_of")}


@pytest.mark.parametrize(
    ("name", "value"), [("start", "2027-03-01T10:00:00"), ("end", "2027-03-01T10:00:00")]
)
def test_it_refuses_a_time_without_its_offset(name, value):
    body = BODY | {name: value} | ({"duration": None} if name == "end" else {})
    with pytest.raises(Refusal) as refused:
        wishes.booking(body)
    assert refused.value.code == Code.NAIVE_TIME
    assert refused.value.data["pointer"] == f"/{name}"


@pytest.mark.parametrize("value", ["tomorrow", "2027-13-01T00:00:00Z", "1e9", ""])
def test_it_refuses_a_time_that_is_none(value):
    with pytest.raises(Refusal) as refused:
        wishes.booking(BODY | {"start": value})
    assert refused.value.code == Code.MALFORMED


@pytest.mark.parametrize("value", [7, True, [], {}])
def test_it_refuses_a_time_that_is_no_text(value):
    assert wrong(BODY | {"start": value}) == {("/start", "not_a_string")}


@pytest.mark.parametrize("count", [0, -1, 10**9, 10**400, 1.5, "2", True])
def test_it_refuses_a_count_that_is_none(count):
    assert {pointer for pointer, _ in wrong(BODY | {"ask": BODY["ask"] | {"count": count}})} == {"/ask/count"}


@pytest.mark.parametrize("value", ["", [], {}, 3, None])
def test_it_refuses_an_ask_that_is_none(value):
    assert all(pointer.startswith("/ask") for pointer, _ in wrong(BODY | {"ask": value}))


def test_it_reads_an_extension_and_an_action_without_fields():
    assert wishes.extension({"duration": "PT1H"}).duration == timedelta(hours=1)
    assert wishes.extension({"end": "2027-03-01T12:00:00Z"}).end == datetime(2027, 3, 1, 12, tzinfo=UTC)
    wishes.nothing({})


def test_it_refuses_an_extension_without_a_length_and_fields_where_none_belong():
    with pytest.raises(Invalid):
        wishes.extension({})
    with pytest.raises(Invalid):
        wishes.nothing({"why": "because"})
