"""The booking form: what is typed becomes what the domain takes, or a question."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pool.core.shapes import GpuAsk, MigAsk, ShareAsk, Sharing, Spread
from portal.web.forms import BookForm, ExtendForm, Offered, summary

OFFERED = Offered(
    teams=[("vision", "Vision")],
    pools=[("main", "Main")],
    what=[
        ("slices", [("mig:1g.10gb@H100-80GB", "x"), ("mig:1g.10gb", "y")]),
        ("whole", [("gpu:H100-80GB", "z")]),
        ("shares", [("share:mps@H100-80GB", "a"), ("share:timeslice", "b")]),
    ],
    owners=[("milo", "Milo")],
)
TYPED = {
    "team": "vision",
    "pool": "main",
    "what": "mig:1g.10gb@H100-80GB",
    "count": "2",
    "begin": "now",
    "amount": "90",
    "unit": "minutes",
    "klass": "batch",
}


def filled(zone: str = "Europe/Berlin", **typed: str) -> BookForm:
    return BookForm(TYPED | typed, offered=OFFERED, zone=ZoneInfo(zone))


def test_it_reads_a_slice_of_one_model() -> None:
    form = filled(same_node="on")
    assert form.is_valid(), form.errors
    assert form.cleaned_data["ask"] == MigAsk("1g.10gb", count=2, models=("H100-80GB",), same_node=True)
    assert form.cleaned_data["start"] is None
    assert form.cleaned_data["duration"] == timedelta(minutes=90)


def test_it_reads_a_slice_of_any_model_and_whole_gpus() -> None:
    anywhere, whole = filled(what="mig:1g.10gb"), filled(what="gpu:H100-80GB")
    assert anywhere.is_valid()
    assert anywhere.cleaned_data["ask"] == MigAsk("1g.10gb", count=2)
    assert whole.is_valid()
    assert whole.cleaned_data["ask"] == GpuAsk(("H100-80GB",), count=2)


def test_it_reads_where_whole_gpus_have_to_lie() -> None:
    form = filled(what="gpu:H100-80GB", count="8", same_nvlink_domain="on", segment="4")
    assert form.is_valid(), form.errors
    ask = GpuAsk(("H100-80GB",), count=8, same_nvlink_domain=True, segment=4)
    assert form.cleaned_data["ask"] == ask
    assert form.places_said
    assert not filled().places_said


def test_it_reads_what_each_takes_of_its_node() -> None:
    form = filled(spread="on", node_cpu="1.5", node_memory="16")
    assert form.is_valid(), form.errors
    ask = form.cleaned_data["ask"]
    assert (ask.spread, ask.node_cpu_milli, ask.node_memory_mib) == (Spread.NODE, 1500, 16384)


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"same_nvlink_domain": "on"}, "same_nvlink_domain"),
        ({"segment": "4"}, "segment"),
        ({"what": "gpu:H100-80GB", "count": "5", "segment": "2"}, "segment"),
        ({"spread": "on", "same_node": "on"}, "spread"),
        ({"node_cpu": "-1"}, "node_cpu"),
        ({"node_cpu": "nan"}, "node_cpu"),
        ({"node_memory": "1e12"}, "node_memory"),
    ],
)
def test_a_place_that_cannot_be_is_said_beside_its_field(typed: dict[str, str], field: str) -> None:
    form = filled(**typed)
    assert not form.is_valid()
    assert field in form.errors
    assert form.places_said


def share(**typed: str) -> BookForm:
    whole = {"what": "share:mps@H100-80GB", "count": "1", "share_memory": "8", "share_compute": "20"}
    return filled(**whole | typed)


def test_it_reads_a_share_in_gib_or_in_percent() -> None:
    in_gib, in_percent = share(share_memory="7.5"), share(share_memory="25", share_unit="percent")
    assert in_gib.is_valid(), in_gib.errors
    wanted = ShareAsk(memory_mib=7680, guaranteed=20, limit=20, models=("H100-80GB",), sharing=Sharing.MPS)
    assert in_gib.cleaned_data["ask"] == wanted
    assert in_percent.is_valid()
    assert (in_percent.cleaned_data["ask"].memory_mib, in_percent.cleaned_data["ask"].memory_pct) == (
        None,
        25,
    )


def test_it_reads_work_that_yields() -> None:
    form = share(share_compute="0", share_limit="100")
    assert form.is_valid(), form.errors
    assert (form.cleaned_data["ask"].guaranteed, form.cleaned_data["ask"].limit) == (0, 100)


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"share_memory": ""}, "share_memory"),
        ({"share_memory": "0"}, "share_memory"),
        ({"share_memory": "nan"}, "share_memory"),
        ({"share_memory": "1e300"}, "share_memory"),
        ({"share_memory": "101", "share_unit": "percent"}, "share_memory"),
        ({"share_compute": ""}, "share_compute"),
        ({"share_compute": "101"}, "share_compute"),
        ({"share_compute": "0"}, "share_limit"),
        ({"share_compute": "50", "share_limit": "20"}, "share_limit"),
        ({"share_limit": "90", "klass": "interactive"}, "share_limit"),
        ({"what": "share:timeslice"}, "accept_not_enforced"),
    ],
)
def test_what_is_wrong_with_a_share_is_said_beside_its_field(typed: dict[str, str], field: str) -> None:
    form = share(**typed)
    assert not form.is_valid()
    assert list(form.errors) == [field]
    assert [fault["id"] for fault in summary(form).fields] == [f"id_{field}"]


def test_what_is_left_in_the_fields_of_shares_says_nothing_of_a_slice() -> None:
    form = filled(share_memory="x", share_compute="-7")
    assert form.is_valid(), form.errors
    assert form.cleaned_data["ask"] == MigAsk("1g.10gb", count=2, models=("H100-80GB",))


def test_time_slicing_is_read_once_it_is_accepted() -> None:
    form = share(what="share:timeslice", accept_not_enforced="on")
    assert form.is_valid(), form.errors
    assert form.cleaned_data["ask"].sharing is Sharing.TIMESLICE


@pytest.mark.parametrize("count", ["0", "-1", "1000000000", "x", ""])
def test_it_refuses_a_count_beside_its_field(count: str) -> None:
    form = filled(count=count)
    assert not form.is_valid()
    assert list(form.errors) == ["count"]
    assert [fault["id"] for fault in summary(form).fields] == ["id_count"]


def test_it_reads_a_local_time_in_the_zone_of_the_viewer() -> None:
    form = filled(begin="at", start_date="2027-03-01", start_time="09:30")
    assert form.is_valid()
    assert form.cleaned_data["start"] == datetime(2027, 3, 1, 8, 30, tzinfo=UTC)


def test_a_time_that_comes_twice_is_a_question_with_both_answers() -> None:
    typed = {"begin": "at", "start_date": "2027-10-31", "start_time": "02:30"}
    form = filled(**typed)
    assert not form.is_valid()
    assert "comes twice" in form.errors["start_date"][0]
    assert [words for _, words in form.questions] == ["02:30 (CEST, UTC+02:00)", "02:30 (CET, UTC+01:00)"]
    for value, instant in zip((v for v, _ in form.questions), ("00:30", "01:30"), strict=True):
        answered = filled(**typed, start_choice=value)
        assert answered.is_valid()
        assert answered.cleaned_data["start"].astimezone(UTC).strftime("%H:%M") == instant


def test_a_time_that_does_not_exist_is_a_question_with_its_neighbours() -> None:
    form = filled(begin="at", start_date="2027-03-28", start_time="02:30")
    assert not form.is_valid()
    assert "does not exist" in form.errors["start_date"][0]
    assert [words for _, words in form.questions] == ["01:30 (CET, UTC+01:00)", "03:30 (CEST, UTC+02:00)"]


def test_an_answer_to_another_question_is_not_taken() -> None:
    typed = {"begin": "at", "start_date": "2027-10-31", "start_time": "02:30"}
    form = filled(**typed, start_choice="2027-11-01T02:30:00+01:00")
    assert not form.is_valid()
    assert form.questions


def test_a_set_time_needs_date_and_clock() -> None:
    form = filled(begin="at", start_date="2027-10-31")
    assert not form.is_valid()
    assert list(form.errors) == ["start_date"]


@pytest.mark.parametrize(
    ("day", "clock"), [("31.10.2027", "02:30"), ("2027-02-30", "02:30"), ("2027-10-31", "2")]
)
def test_a_time_that_cannot_be_read_is_refused_beside_its_field(day: str, clock: str) -> None:
    form = filled(begin="at", start_date=day, start_time=clock)
    assert not form.is_valid()
    assert list(form.errors) == ["start_date"]


def test_an_extension_counts_from_the_end_that_was_shown() -> None:
    form = ExtendForm({"known_end": "2027-03-01T12:00:00+00:00", "by": "30"})
    assert form.is_valid()
    assert form.cleaned_data["end"] == datetime(2027, 3, 1, 12, 30, tzinfo=UTC)
    typed = ExtendForm({"known_end": "2027-03-01T12:00:00+00:00", "amount": "2", "unit": "days"})
    assert typed.is_valid()
    assert typed.cleaned_data["end"] == datetime(2027, 3, 3, 12, tzinfo=UTC)


@pytest.mark.parametrize("known_end", ["", "soon", "2027-03-01T12:00:00"])
def test_an_extension_without_a_known_end_is_refused(known_end: str) -> None:
    assert not ExtendForm({"known_end": known_end, "by": "30"}).is_valid()


def test_an_extension_without_a_length_is_refused() -> None:
    assert not ExtendForm({"known_end": "2027-03-01T12:00:00+00:00"}).is_valid()
