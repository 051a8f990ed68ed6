"""Bookings over REST: the answer as promised, every bad input refused with numbers, nothing written."""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta

import pytest
from django.db import connection

from pool.core import wire
from pool.models import Gpu, Node, Pool, QuotaLine, Reservation
from pool.queries import clock
from pool.services import broker
from tests.cast import enrol_node
from tests.portal.api.asking import BODY, RESERVATIONS, ask, later, problem, tomorrow, wrong


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


# --- The answer -------------------------------------------------------------------


def test_it_books_now_and_answers_what_was_granted(lead):
    response = lead.book()
    assert response.status_code == 201
    body = response.json()
    assert set(body) == {
        *("id", "state", "state_reason", "start", "end", "version", "team", "pool", "title"),
        *("class", "restartable", "preemptible", "priority", "preempt", "justification"),
        *("owner", "booked_by", "ask", "continues", "continued_by", "notice_until"),
        *("hold_until", "approve_by", "recall_at", "retained_milli_hours", "reclaimable"),
        *("wait", "unknown_since", "allocations"),
    }
    assert (body["state"], body["team"], body["pool"]) == ("starting", "vision", "main")
    assert (body["owner"], body["booked_by"], body["class"]) == ("lena", "lena", "interactive")
    assert body["start"].endswith("Z")
    assert body["end"].endswith("Z")
    assert len(body["allocations"]) == 2
    assert response["Location"] == f"http://testserver{RESERVATIONS}/{body['id']}"
    assert response["ETag"] == f'"r{body["version"]}"'


def test_it_stays_as_it_is_and_says_so_when_its_node_is_not_heard_from(lead, node):
    made = lead.book().json()
    node.follow()
    assert lead.get(f"{RESERVATIONS}/{made['id']}").json()["unknown_since"] == {}
    since = clock.real_now() - timedelta(hours=1)
    Node.objects.update(received_at=since)
    shown = lead.get(f"{RESERVATIONS}/{made['id']}").json()
    assert shown["state"] == "active"
    assert shown["unknown_since"] == {"node-1": since.isoformat().replace("+00:00", "Z")}


def test_it_tells_where_each_slice_is(lead, node):
    slices = lead.book().json()["allocations"]
    first = slices[0]
    assert set(first) == {
        "id",
        "node",
        "gpu",
        "gpu_uuid",
        "kind",
        "model",
        "share",
        "profile",
        "span",
        "mig_uuid",
        "env",
        "trouble",
        "trouble_since",
        "trouble_until",
        "xid",
        "action",
        "processes",
    }
    assert (first["node"], first["gpu"], first["gpu_uuid"]) == ("node-1", 0, node.gpus[0].uuid)
    assert (first["kind"], first["model"], first["profile"]) == ("mig", "H100-80GB", "1g.10gb")
    assert first["span"]["size"] == 1
    assert (first["mig_uuid"], first["env"]) == (None, {})
    assert slices[0]["span"] != slices[1]["span"]


@pytest.mark.parametrize("body", [BODY, BODY | {"owner": "robot", "title": "night", "class": "batch"}])
def test_what_booking_answers_is_what_reading_answers(lead, body):
    made = lead.book(body)
    read = lead.get(made["Location"])
    assert made.json() == read.json()
    assert made["ETag"] == read["ETag"]


def test_it_shows_the_uuids_once_the_node_has_read_them_back(lead, node):
    made = lead.book()
    node.follow()
    response = lead.get(f"{RESERVATIONS}/{made.json()['id']}")
    body = response.json()
    assert body["state"] == "active"
    uuids = {one["mig_uuid"] for one in body["allocations"]}
    assert len(uuids) == 2
    assert {one["env"]["CUDA_VISIBLE_DEVICES"] for one in body["allocations"]} == uuids
    assert response["ETag"] != made["ETag"]


def test_it_books_later_until_an_end_with_an_offset(lead):
    start = later(days=1)
    now = clock.now()
    end = (now + timedelta(days=1, hours=11)).strftime("%Y-%m-%dT%H:%M:%S+08:00")
    response = lead.book(BODY | {"start": start, "end": end, "duration": None})
    assert response.status_code == 201
    body = response.json()
    assert (body["state"], body["start"]) == ("scheduled", start)
    assert body["end"] == (now + timedelta(days=1, hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_it_takes_a_start_of_half_a_minute_ago_as_now(lead):
    response = lead.book(BODY | {"start": later(seconds=-30)})
    assert response.status_code == 201
    assert response.json()["start"] > later(seconds=-10)


# --- Bad input --------------------------------------------------------------------


def test_it_refuses_a_start_in_the_past_with_the_numbers(lead, nothing_written):
    response = lead.book(BODY | {"start": later(minutes=-2)})
    assert wrong(response) == {("/start", "start_in_past")}
    error = response.json()["errors"][0]
    assert error["start"] < error["now"]
    assert error["now"].endswith("Z")
    assert error["grace_s"] == 60


def test_it_refuses_an_end_before_the_start(lead, nothing_written):
    body = BODY | {"start": later(days=2), "end": later(days=1), "duration": None}
    assert wrong(lead.book(body)) == {("/end", "end_before_start")}


@pytest.mark.parametrize("name", ["start", "end"])
def test_it_refuses_a_naive_time(lead, nothing_written, name):
    body = BODY | {name: "2027-03-01T10:00:00"} | ({"duration": None} if name == "end" else {})
    assert problem(lead.book(body), 400, "naive_time")["pointer"] == f"/{name}"


@pytest.mark.parametrize(("count", "code"), [(0, "too_small"), (10**9, "too_large"), (10**30, "too_large")])
def test_it_refuses_a_count_that_nobody_has(lead, nothing_written, count, code):
    response = lead.book(ask(count=count))
    assert wrong(response) == {("/ask/count", code)}
    assert response.json()["errors"][0]["max"] == 1024


def test_it_refuses_an_unknown_profile_and_names_the_known_ones(lead, nothing_written):
    response = lead.book(ask(profile="9g.999gb"))
    assert wrong(response) == {("/ask/profile", "unknown_profile")}
    assert "1g.10gb" in response.json()["errors"][0]["known"]


def test_it_refuses_an_unknown_field_and_names_it(lead, nothing_written):
    assert wrong(lead.book(BODY | {"gpus": 4})) == {("/gpus", "unknown_field")}


def test_it_refuses_more_than_there_is_with_the_numbers(lead, nothing_written):
    body = problem(lead.book(ask(count=8)), 409, "no_capacity")
    assert (body["asked"], body["free"], body["offered"]) == (8, 7, 7)
    assert "8 asked, 7 free" in body["detail"]
    assert body["next_step"]


def test_it_refuses_what_overlaps_and_tells_when_it_fits(lead):
    whole = ask(profile="7g.80gb", count=1)
    first = lead.book(tomorrow(whole))
    assert first.status_code == 201
    refused = problem(lead.book(tomorrow(whole)), 409, "no_capacity")
    assert refused["first_time"] == first.json()["end"]
    assert refused["counts"] == {"busy": 1}
    assert Reservation.objects.count() == 1


def test_it_refuses_what_is_over_quota_with_the_numbers(lead, nothing_written):
    QuotaLine.objects.filter(team__name="vision").update(guaranteed_milli=0, cap_milli=200)
    body = problem(lead.book(), 409, "quota_exceeded")
    assert (body["asked"], body["used"], body["cap"]) == (250, 0, 200)


def test_it_refuses_a_team_without_quota_and_says_what_to_do(lead, nothing_written):
    QuotaLine.objects.all().delete()
    body = problem(lead.book(), 409, "quota_exceeded")
    assert body["reason"] == "no_line"
    assert "Ask for quota" in body["next_step"]


def test_it_refuses_a_pool_without_any_report(lead, nothing_written):
    Pool.objects.create(name="empty")
    QuotaLine.objects.create(
        team=QuotaLine.objects.first().team, pool=Pool.objects.get(name="empty"), cap_milli=8000
    )
    body = problem(lead.book(BODY | {"pool": "empty"}), 409, "no_capacity")
    assert (body["free"], body["offered"]) == (0, 0)


@pytest.mark.parametrize("over", [{"team": "speech"}, {"team": "nowhere"}, {"pool": "nowhere"}])
def test_it_does_not_tell_a_team_of_others_from_one_that_is_not_there(lead, nothing_written, over):
    first = problem(lead.book(BODY | over), 404, "not_found")
    second = problem(lead.book(BODY | {"team": "never-made"}), 404, "not_found")
    assert {**first, "request_id": ""} == {**second, "request_id": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"null",
        b"[]",
        b'{"ask": {"count": NaN}}',
        b'{"title": "\\ud800"}',
        b"[" * 30_000,
        b'{"a":' + b"1" * 6_000 + b"}",
    ],
)
def test_it_refuses_what_is_no_object(lead, nothing_written, body):
    assert lead.book(body).status_code in (400, 422)


@pytest.mark.parametrize("name", ["team", "pool", "title", "owner"])
def test_it_refuses_what_no_column_can_hold(lead, nothing_written, name):
    assert wrong(lead.book(BODY | {name: "a\0b"})) == {(f"/{name}", "bad_characters")}


@pytest.mark.parametrize("deep", ["/ask", "/ask/models/0", "/ask/node"])
def test_it_refuses_it_deep_inside(lead, nothing_written, deep):
    over = {"/ask": "\0", "/ask/models/0": {"kind": "gpu", "models": ["\0"]}, "/ask/node": {"node": "\0"}}
    assert wrong(lead.book(BODY | {"ask": over[deep]})) == {(deep, "bad_characters")}


# --- Later ---------------------------------------------------------------------------


def test_it_extends_by_a_duration_and_to_an_end(lead):
    made = lead.book(tomorrow()).json()
    path = f"{RESERVATIONS}/{made['id']}/extend"
    longer = lead.post(path, {"duration": "PT1H"})
    assert longer.status_code == 200
    assert longer.json()["end"] > made["end"]
    assert longer.json()["version"] > made["version"]
    end = later(days=1, hours=9)
    assert lead.post(path, {"end": end}).json()["end"] == end


def test_it_refuses_to_extend_into_somebody_elses_time(lead, api, sam):
    start = later(days=1, hours=2)
    made = lead.book(BODY | {"start": later(days=1)}).json()
    whole = {"team": "speech", "start": start, "ask": {"kind": "mig", "profile": "7g.80gb"}}
    assert api(sam).book(BODY | whole).status_code == 201
    body = problem(lead.post(f"{RESERVATIONS}/{made['id']}/extend", {"duration": "PT1H"}), 409, "no_capacity")
    assert body["latest_end"] == made["end"]


def test_it_refuses_to_change_what_was_changed_meanwhile(lead):
    made = lead.book(tomorrow())
    path = f"{RESERVATIONS}/{made.json()['id']}"
    lead.post(f"{path}/extend", {"duration": "PT1H"})
    stale = problem(lead.post(f"{path}/release", {}, If_Match=made["ETag"]), 412, "stale")
    assert stale["version"] > stale["known"]
    fresh = lead.get(path)["ETag"]
    assert lead.post(f"{path}/release", {}, If_Match=fresh).status_code == 200


@pytest.mark.parametrize("tag", ["r1", '"1"', 'W/"r1"', '"r' + "9" * 30 + '"', '"r1", "r2"'])
def test_it_refuses_a_tag_that_is_none_of_ours(lead, tag):
    made = lead.book(tomorrow()).json()
    problem(lead.post(f"{RESERVATIONS}/{made['id']}/release", {}, If_Match=tag), 400, "malformed")


def test_it_releases_once_and_says_the_second_time_that_nothing_is_left(lead):
    path = f"{RESERVATIONS}/{lead.book(tomorrow()).json()['id']}/release"
    assert lead.post(path).json()["state"] == "cancelled"
    assert problem(lead.post(path), 409, "wrong_state")["state"] == "cancelled"


def test_it_ends_what_is_active_and_frees_it_when_the_node_is_clean(lead, node):
    path = f"{RESERVATIONS}/{lead.book().json()['id']}"
    node.follow()
    assert lead.post(f"{path}/release").json()["state"] == "ending"
    node.follow()
    assert lead.get(path).json()["state"] == "ended"


def test_it_refuses_fields_where_an_action_has_none(lead):
    path = f"{RESERVATIONS}/{lead.book(tomorrow()).json()['id']}/release"
    assert wrong(lead.post(path, {"why": "done"})) == {("/why", "unknown_field")}


def test_it_tells_what_happened(lead):
    path = f"{RESERVATIONS}/{lead.book(tomorrow(), X_Request_Id='trace-me-0001').json()['id']}"
    lead.post(f"{path}/release")
    events = lead.get(f"{path}/events").json()["results"]
    assert [event["verb"] for event in events] == ["reservation.booked", "reservation.cancelled"]
    assert events[0]["request_id"] == "trace-me-0001"
    assert events[0]["actor"] == "lena"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("silent", [False, True])
def test_a_redis_that_is_closed_or_silent_costs_a_booking_little(lead, settings, silent):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen()
        settings.REDIS_URL = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        broker.forget()
        begun = time.monotonic()
        response = lead.book()
        took = time.monotonic() - begun
        broker.forget()
    assert response.status_code == 201
    assert took < 1.5


def test_a_name_that_only_a_driver_prints_can_be_asked_for(lead):
    """Names follow the driver's rounding, so one may be new to the catalogue."""
    gpu = Gpu.objects.get()
    offer = next(one for one in gpu.profiles if one["name"] == "MIG 1g.10gb")
    offer["name"] = "MIG 1g.11gb"
    gpu.save(update_fields=["profiles"])
    body = lead.book(ask(profile="1g.11gb")).json()
    assert body["allocations"][0]["profile"] == "1g.11gb"
    assert wrong(lead.book(ask(profile="1g.12345gb"))) == {("/ask/profile", "unknown_profile")}


def test_it_says_of_a_slice_that_its_gpu_is_lost(lead, node):
    made = lead.book(ask(count=1)).json()
    node.follow()
    node.gpus[0].lost = True
    node.send()
    shown = lead.get(f"{RESERVATIONS}/{made['id']}").json()
    assert (shown["state"], shown["state_reason"]) == ("active", "gpu_lost")
    (one,) = shown["allocations"]
    assert (one["trouble"], one["xid"], one["action"], one["env"]) == ("gpu_lost", None, "lost", {})
    assert one["trouble_since"] < one["trouble_until"]


def test_it_names_the_process_that_keeps_what_is_to_go(lead, api, sam, cast):
    node = enrol_node(cast.main, "node-2", use="whole")
    made = lead.book(BODY | {"ask": {"kind": "gpu", "models": ["H100-80GB"]}}).json()
    node.follow()
    node.gpus[0].processes = (wire.Process(pid=4711, user="milo", name="python"),)
    lead.post(f"{RESERVATIONS}/{made['id']}/release")
    node.follow()
    shown = lead.get(f"{RESERVATIONS}/{made['id']}").json()
    assert (shown["state"], shown["state_reason"]) == ("ending", "released")
    (one,) = shown["allocations"]
    assert one["trouble"] == "in_use"
    assert one["trouble_since"].endswith("Z")
    assert one["processes"] == [{"pid": 4711, "name": "python", "user": "milo"}]
    Reservation.objects.update(visibility="everyone")
    (others,) = api(sam).get(f"{RESERVATIONS}/{made['id']}").json()["allocations"]
    assert (others["trouble"], others["processes"]) == ("in_use", None)


# --- Everywhere --------------------------------------------------------------------------


def test_it_answers_in_utc_however_the_connection_is_set(lead):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Asia/Shanghai'")
    body = lead.book(tomorrow()).json()
    assert body["start"].endswith("Z")
    assert json.dumps(body).count("+08:00") == 0
