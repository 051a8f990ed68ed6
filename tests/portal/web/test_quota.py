"""Pages of quota: lines, what a pool promises, asking, deciding, and whose eyes they are for."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from pool.core.period import Period
from pool.models import OutboxMessage, Pool, QuotaGrant, QuotaLine, QuotaRequest, Reservation
from pool.queries import clock
from pool.services import quota_requests as services
from tests.cast import Cast, enrol_node
from tests.portal.web.people import book, browser, page_of

pytestmark = pytest.mark.django_db

LINE = "/quota/lines/main/vision/"
TYPED = {
    "cap": "4",
    "guaranteed": "1.5",
    "unit": "slots",
    "unit_size": "1",
    "weight": "2",
    "hours": "100",
    "kinds": ["mig"],
    "version": "1",
}


@pytest.fixture
def adas(cast: Cast) -> Client:
    return browser(cast.ada)


def days(first: int, last: int) -> dict[str, str]:
    today = clock.now().date()
    return {"first": str(today + timedelta(days=first)), "last": str(today + timedelta(days=last))}


def ask(lenas: Client, **more: Any) -> QuotaRequest:
    typed = {"team": "vision", "pool": "main", "cap": "2", "guaranteed": "1", "justification": "A paper"}
    answer = lenas.post("/quota/ask/", typed | days(0, 30) | more, follow=True)
    assert answer.status_code == 200, page_of(answer)
    return QuotaRequest.objects.latest("pk")


# --- Lines --------------------------------------------------------------------


def test_a_member_sees_the_lines_of_the_own_teams(cast: Cast, milos: Client, sams: Client) -> None:
    enrol_node(cast.main, count=2)
    book(cast.milo, count=2)
    QuotaLine.objects.filter(team=cast.vision).update(budget_milli_hours=2000, lend_milli=100, most_gpus=3)
    page = page_of(milos.get("/quota/"))
    assert "Vision" in page
    assert "Speech" not in page
    assert "of 16 GPUs" in page
    assert "0.5 GPU-hours of 2 GPU-hours" in page
    assert "Change it" not in page
    assert "Vision" not in page_of(sams.get("/quota/"))


def test_without_a_line_the_page_says_what_to_do(cast: Cast, milos: Client) -> None:
    QuotaLine.objects.all().delete()
    assert "A lead can ask for it" in page_of(milos.get("/quota/"))


def test_an_approver_sets_a_line_with_all_that_stands_on_it(cast: Cast, adas: Client) -> None:
    found = adas.get("/quota/lines/", {"team": "vision", "pool": "main", "model": ""})
    assert found["Location"] == LINE
    assert 'value="16"' in page_of(adas.get(LINE))
    assert "The line is set." in page_of(adas.post(LINE, TYPED, follow=True))
    line = QuotaLine.objects.get(team=cast.vision)
    assert (line.cap_milli, line.guaranteed_milli, line.weight, line.kinds) == (4000, 1500, 2, ["mig"])
    assert (line.budget_milli_hours, line.lend_milli, line.version) == (100_000, None, 2)
    answer = adas.post(LINE, TYPED)
    assert answer.status_code == 412


def test_a_line_for_a_model_is_another(cast: Cast, adas: Client) -> None:
    assert "not set yet" in page_of(adas.get(LINE, {"model": "H100-80GB"}))
    adas.post(f"{LINE}?model=H100-80GB", TYPED | {"version": "0"})
    assert QuotaLine.objects.get(model="H100-80GB").cap_milli == 4000


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"guaranteed": "5"}, "This must be at most 4000."),
        ({"cap": "-1"}, "greater than or equal to 0"),
        ({"lend": "3"}, "This must be at most 1500."),
        ({"cap": ""}, "This field is required."),
    ],
)
def test_what_cannot_be_is_told_beside_its_field(
    cast: Cast, adas: Client, typed: dict[str, str], said: str
) -> None:
    answer = adas.post(LINE, TYPED | typed)
    assert answer.status_code == 422
    assert said in page_of(answer)


def test_lowering_below_what_is_promised_shows_the_list_first(cast: Cast, adas: Client) -> None:
    enrol_node(cast.main, count=2)
    row = book(cast.milo, count=4)
    low = TYPED | {"cap": "0.2", "guaranteed": "0"}
    answer = adas.post(LINE, low)
    assert answer.status_code == 409
    assert str(row.pk) in page_of(answer)
    assert "Set it nevertheless" in page_of(answer)
    assert QuotaLine.objects.get(team=cast.vision).cap_milli == 16000
    assert adas.post(LINE, low | {"confirmed": "1"}).status_code == 302
    assert QuotaLine.objects.get(team=cast.vision).cap_milli == 200
    assert Reservation.objects.get().state == "starting"


# --- Who may see what ---------------------------------------------------------


@pytest.mark.parametrize("who", ["milo", "lena", "sam", "otto"])
def test_pages_of_approvers_are_theirs_alone(cast: Cast, who: str) -> None:
    client = browser(getattr(cast, who))
    for address in (LINE, "/quota/lines/", "/pools/main/promised/", "/approvals/"):
        assert client.get(address).status_code == 403
    assert client.post(LINE, TYPED).status_code == 403


def test_to_a_stranger_a_request_is_not_there(cast: Cast, lenas: Client, sams: Client) -> None:
    row = ask(lenas)
    at = f"/quota/requests/{row.pk}/"
    assert sams.get(at).status_code == 404
    assert str(at) not in page_of(sams.get("/quota/requests/"))
    for act in ("comment", "withdraw", "approve", "deny"):
        typed = {"text": "x", "answer": "x", "version": "1", "cap": "1"} | days(0, 1)
        assert sams.post(f"{at}{act}/", typed).status_code == 404


def test_nobody_who_is_not_signed_in_comes_here(cast: Cast) -> None:
    for address in ("/quota/", "/quota/ask/", "/quota/requests/", "/approvals/", "/inbox/", "/inbox/1/"):
        assert Client().get(address)["Location"].startswith("/login/?next=")


def test_what_is_promised_stands_beside_what_there_is(cast: Cast, adas: Client) -> None:
    enrol_node(cast.main, count=2)
    page = page_of(adas.get("/pools/main/promised/"))
    assert "All together" in page
    assert "more than there is" in page  # 12 GPUs are guaranteed, there are 2


# --- Requests -----------------------------------------------------------------


def test_a_request_goes_its_way_from_asking_to_the_grant(cast: Cast, lenas: Client, adas: Client) -> None:
    row = ask(lenas)
    at = f"/quota/requests/{row.pk}/"
    assert (row.cap_milli, row.guaranteed_milli, row.requested_by) == (2000, 1000, cast.lena)
    assert "2 GPU, of which 1 guaranteed" in page_of(adas.get("/approvals/"))
    assert "Said." in page_of(adas.post(f"{at}comment/", {"text": "Which paper?"}, follow=True))
    assert "Which paper?" in page_of(lenas.get(at))
    typed = {"cap": "1", "guaranteed": "0", "answer": "One", "version": "1"} | days(0, 5)
    assert "Granted." in page_of(adas.post(f"{at}approve/", typed, follow=True))
    assert QuotaGrant.objects.get().cap_milli == 1000
    page = page_of(lenas.get(at))
    assert "Renew it" in page
    assert "Grant it" not in page
    renewal = page_of(lenas.get(f"/quota/ask/?renews={row.pk}"))
    assert days(6, 6)["first"] in renewal
    answer = adas.post(f"{at}deny/", {"answer": "No", "version": "1"})
    assert answer.status_code == 412
    assert "ada has decided on it already." in page_of(answer)


def test_what_an_approver_leaves_as_it_was_is_granted_as_it_was_asked(cast: Cast, adas: Client) -> None:
    """To the minute and to the MiB, in whatever zone the approver looks at it."""
    cast.ada.zone = "Asia/Shanghai"
    cast.ada.save()
    begin = clock.now().replace(hour=9, minute=30, second=0, microsecond=0) + timedelta(days=2)
    row = services.submit(
        actor=cast.lena,
        team=cast.vision,
        pool=cast.main,
        amounts=services.Amounts(cap_milli=2000, memory_mib=1003),
        valid=Period(begin, begin + timedelta(days=3, hours=9)),
        justification="A paper",
        now=clock.now(),
    )
    at = f"/quota/requests/{row.pk}/"
    page = page_of(adas.get(at))
    shown = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    typed = {name: shown.get(name, "") for name in ("cap", "guaranteed", "memory", "hours", "first", "last")}
    assert "Granted." in page_of(adas.post(f"{at}approve/", typed | {"version": "1"}, follow=True))
    grant = QuotaGrant.objects.get()
    assert (grant.valid.lower, grant.valid.upper) == (row.valid.lower, row.valid.upper)
    assert (grant.cap_milli, grant.memory_mib) == (2000, 1003)


def test_a_renewal_begins_where_the_grant_ends(cast: Cast, lenas: Client) -> None:
    cast.lena.zone = "Asia/Shanghai"
    cast.lena.save()
    begin = clock.now().replace(minute=0, second=0, microsecond=0)
    row = services.submit(
        actor=cast.lena,
        team=cast.vision,
        pool=cast.main,
        amounts=services.Amounts(cap_milli=2000),
        valid=Period(begin, begin.replace(hour=21, minute=30) + timedelta(days=3)),
        justification="A paper",
        now=clock.now(),
    )
    services.approve(actor=cast.ada, request_id=row.pk, now=clock.now())
    page = page_of(lenas.get(f"/quota/ask/?renews={row.pk}"))
    shown = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    renewed = ask(lenas, renews=str(row.pk), first=shown["first"], last=shown["last"])
    assert renewed.valid.lower == row.valid.upper


def test_a_line_that_is_saved_as_it_is_shown_stays_as_it_is(cast: Cast, adas: Client) -> None:
    kept = {"longest_minutes": 50, "ahead_minutes": 20, "memory_mib": 1003}
    QuotaLine.objects.filter(team=cast.vision).update(**kept)
    shown = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page_of(adas.get(LINE))))
    typed = {name: shown[name] for name in ("cap", "guaranteed", "memory", "longest", "ahead", "version")}
    again = {"unit": "slots", "unit_size": "1", "weight": "1"} | typed
    assert "The line is set." in page_of(adas.post(LINE, again, follow=True))
    line = QuotaLine.objects.get(team=cast.vision)
    assert {name: getattr(line, name) for name in kept} == kept


def test_a_request_is_denied_and_another_withdrawn(cast: Cast, lenas: Client, adas: Client) -> None:
    row = ask(lenas)
    answer = adas.post(f"/quota/requests/{row.pk}/deny/", {"answer": "", "version": "1"})
    assert answer.status_code == 422
    adas.post(f"/quota/requests/{row.pk}/deny/", {"answer": "No room", "version": "1"})
    assert "No room" in page_of(lenas.get(f"/quota/requests/{row.pk}/"))
    other = ask(lenas)
    answer = lenas.post(f"/quota/requests/{other.pk}/withdraw/", follow=True)
    assert "Withdrawn." in page_of(answer)
    assert lenas.post(f"/quota/requests/{other.pk}/withdraw/").status_code == 409
    assert [row.state for row in QuotaRequest.objects.order_by("pk")] == ["denied", "withdrawn"]


def test_a_form_that_is_sent_twice_asks_once(cast: Cast, lenas: Client) -> None:
    assert ask(lenas, key="k") == ask(lenas, key="k")
    assert QuotaRequest.objects.count() == 1


def test_a_word_that_is_sent_twice_is_said_once(cast: Cast, lenas: Client) -> None:
    row = ask(lenas)
    at = f"/quota/requests/{row.pk}/"
    assert 'name="key"' in page_of(lenas.get(at)).split("comment/")[1]
    for _ in range(2):
        lenas.post(f"{at}comment/", {"text": "Soon, please", "key": "k"})
    assert [one.text for one in row.comments.all()] == ["Soon, please"]


def test_what_was_typed_stays_where_it_is_refused(cast: Cast, lenas: Client, milos: Client) -> None:
    typed = {"team": "vision", "pool": "main", "guaranteed": "1", "cap": "0", "justification": "Because"}
    answer = lenas.post("/quota/ask/", typed | days(3, 1))
    assert answer.status_code == 422
    assert "Because" in page_of(answer)
    answer = lenas.post("/quota/ask/", typed | days(0, 1))
    assert "This must be at most 0." in page_of(answer)
    assert "you lead none" in page_of(milos.get("/quota/ask/"))


def test_nobody_decides_on_their_own(cast: Cast) -> None:
    cast.lena.roles = ["approver"]
    cast.lena.save()
    row = ask(browser(cast.lena))
    client = browser(cast.lena)
    assert "another approver decides" in page_of(client.get(f"/quota/requests/{row.pk}/"))
    answer = client.post(f"/quota/requests/{row.pk}/deny/", {"answer": "x", "version": "1"})
    assert answer.status_code == 403


def test_requests_are_filtered_by_state(cast: Cast, lenas: Client) -> None:
    row = ask(lenas)
    at = f"/quota/requests/{row.pk}/"
    assert at in page_of(lenas.get("/quota/requests/?state=submitted"))
    assert at not in page_of(lenas.get("/quota/requests/?state=denied"))
    assert at not in page_of(lenas.get(f"/quota/requests/?before={row.pk}"))


# --- Bookings that wait for an approver ---------------------------------------


def test_an_approver_says_yes_to_one_booking_and_no_to_another(cast: Cast, adas: Client) -> None:
    enrol_node(cast.main, count=2)
    Pool.objects.update(approve_above_milli=100)
    start = clock.now() + timedelta(hours=5)
    yes, no = (book(cast.milo, title=title, start=start) for title in ("First", "Second"))
    assert "First" in page_of(adas.get("/approvals/"))
    answer = adas.post(f"/approvals/{yes.pk}/approve/", {"version": yes.version}, follow=True)
    assert "Approved." in page_of(answer)
    assert adas.post(f"/approvals/{no.pk}/deny/", {"version": no.version}).status_code == 422
    adas.post(f"/approvals/{no.pk}/deny/", {"version": no.version, "answer": "Not now"})
    assert adas.post(f"/approvals/{no.pk}/approve/", {"version": no.version}).status_code == 412
    states = Reservation.objects.order_by("title").values_list("state", flat=True)
    assert list(states) == ["scheduled", "denied"]
    kinds = OutboxMessage.objects.filter(recipient=cast.milo).order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["booking_approved", "booking_denied"]


def test_others_have_no_say_about_bookings(cast: Cast, lenas: Client, sams: Client) -> None:
    enrol_node(cast.main, count=2)
    Pool.objects.update(approve_above_milli=100)
    row = book(cast.milo, start=clock.now() + timedelta(hours=5))
    assert lenas.post(f"/approvals/{row.pk}/approve/").status_code == 403
    assert sams.post(f"/approvals/{row.pk}/approve/").status_code == 404
