"""Booking in the browser, all of it without script."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from pool.core.shapes import GpuAsk
from pool.models import Gpu, QuotaLine, Reservation, User
from pool.queries import clock
from tests.cast import Cast, SimNode, enrol_node
from tests.portal.web.people import book, browser, page_of
from tests.scene import add_shares

pytestmark = pytest.mark.django_db

TYPED = {
    "team": "vision",
    "pool": "main",
    "what": "mig:1g.10gb@H100-80GB",
    "count": "2",
    "begin": "now",
    "amount": "2",
    "unit": "hours",
    "klass": "interactive",
    "title": "Finetune",
    "key": "form-1",
}


def send(client: Client, **typed: str) -> Any:
    return client.post("/book/", TYPED | typed)


def test_the_form_shows_what_the_pool_offers_with_share_memory_and_charge(
    node: SimNode, milos: Client
) -> None:
    page = page_of(milos.get("/book/"))
    assert "1g.10gb – 1/8 of the memory, 9.8 GiB, 0.125 GPU" in page
    assert "7 of 7 are free for the whole time." in page


def test_a_form_that_is_sent_books_and_shows_the_reservation(
    node: SimNode, milos: Client, milo: User
) -> None:
    answer = send(milos)
    made = Reservation.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/reservations/{made.pk}/"
    assert (made.owner, made.title, made.klass) == (milo, "Finetune", "interactive")
    assert made.allocations.count() == 2
    assert made.period.upper - made.period.lower == timedelta(hours=2)
    assert "Booked." in page_of(milos.get(answer["Location"]))


def test_the_same_form_sent_twice_books_once(node: SimNode, milos: Client) -> None:
    first, second = send(milos), send(milos)
    assert first["Location"] == second["Location"]
    assert Reservation.objects.count() == 1


def test_a_form_that_was_sent_and_then_changed_books_nothing_and_gets_a_new_key(
    node: SimNode, milos: Client
) -> None:
    send(milos)
    answer = send(milos, count="3")
    page = page_of(answer)
    assert answer.status_code == 422
    assert Reservation.objects.count() == 1
    key = re.search(r'name="key"\s+value="(\w+)"', page)
    assert key is not None
    assert key[1] != "form-1"
    assert send(milos, count="3", key=key[1]).status_code == 302


def test_no_room_is_refused_with_the_numbers_and_what_was_typed_stays(node: SimNode, milos: Client) -> None:
    answer = send(milos, count="8", title="Big one")
    page = page_of(answer)
    assert answer.status_code == 409
    assert 'role="alert"' in page
    assert "8 asked, 7 free for the whole time, of 7 that the pool can hold." in page
    assert "What next:" in page
    assert 'value="Big one"' in page
    assert 'value="8"' in page
    assert not Reservation.objects.exists()


def test_a_refusal_counts_what_others_hold_and_says_when_it_fits(
    cast: Cast, node: SimNode, milos: Client
) -> None:
    book(cast.sam, team="speech", title="Secret plan", profile="7g.80gb")
    page = page_of(send(milos, count="1"))
    assert "1 asked, 0 free" in page
    assert "1 booked" in page
    assert "First free:" in page
    assert "Secret plan" not in page


def test_over_quota_is_refused_with_the_numbers(node: SimNode, milos: Client) -> None:
    QuotaLine.objects.filter(team__name="vision").update(cap_milli=200, guaranteed_milli=0)
    answer = send(milos)
    assert answer.status_code == 409
    assert "0.25 GPU asked, 0 of 0.2 in use" in page_of(answer)
    assert not Reservation.objects.exists()


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"count": "0"}, "id_count"),
        ({"count": "1000000000"}, "id_count"),
        ({"what": "mig:9g.90gb"}, "id_what"),
        ({"begin": "at", "start_date": "2020-01-01", "start_time": "10:00"}, "id_start_date"),
        ({"begin": "at", "start_date": "", "start_time": ""}, "id_start_date"),
        ({"amount": "0"}, "id_amount"),
        ({"amount": "400", "unit": "days"}, "id_amount"),
        ({"team": "speech"}, "id_team"),
        ({"title": "x" * 201}, "id_title"),
        ({"owner": "sam"}, "id_owner"),
    ],
)
def test_a_wrong_field_is_named_beside_it_and_above(
    node: SimNode, milos: Client, typed: dict[str, str], field: str
) -> None:
    answer = send(milos, **typed)
    page = page_of(answer)
    assert answer.status_code == 422
    assert f'href="#{field}"' in page
    assert f'id="{field}_error"' in page
    assert not Reservation.objects.exists()


def test_a_local_time_that_comes_twice_is_asked_and_the_answer_is_booked(
    node: SimNode, milos: Client, milo: User
) -> None:
    milo.zone = "Europe/Berlin"
    milo.save()
    # The last Sunday of an October within the year that can be booked ahead.
    year = clock.now().year + (clock.now().month > 9)
    day = max(d for d in range(25, 32) if clock.now().replace(year=year, month=10, day=d).weekday() == 6)
    typed = {"begin": "at", "start_date": f"{year}-10-{day}", "start_time": "02:30"}
    asked = send(milos, **typed)
    assert asked.status_code == 422
    choices = re.findall(r'name="start_choice"\s+value="([^"]+)"', page_of(asked))
    assert len(choices) == 2
    assert send(milos, **typed, start_choice=choices[1]).status_code == 302
    assert Reservation.objects.get().period.lower.isoformat() == f"{year}-10-{day}T01:30:00+00:00"


def test_a_lead_books_for_a_service_account_and_a_member_is_not_offered_that(
    node: SimNode, lenas: Client, milos: Client, robot: User
) -> None:
    assert "robot, service account" in page_of(lenas.get("/book/")).replace("Robot (robot)", "robot")
    assert 'name="owner"' not in page_of(milos.get("/book/"))
    assert send(lenas, owner="robot").status_code == 302
    made = Reservation.objects.get()
    assert (made.owner, made.booked_by.username) == (robot, "lena")


def test_whole_gpus_are_offered_and_booked(cast: Cast, lenas: Client) -> None:
    enrol_node(cast.main, "whole-1", count=4, use="whole")
    assert 'value="gpu:H100-80GB"' in page_of(lenas.get("/book/"))
    assert send(lenas, what="gpu:H100-80GB", count="3", same_node="on").status_code == 302
    assert Reservation.objects.get().ask == {
        "kind": "gpu",
        "count": 3,
        "models": ["H100-80GB"],
        "same_node": True,
    }


def test_checking_first_books_nothing_and_shows_the_count(node: SimNode, milos: Client) -> None:
    page = page_of(send(milos, check="1", count="3"))
    assert "7 of 7 are free for the whole time." in page
    assert "0.375 GPU" in page
    assert not Reservation.objects.exists()


def test_the_room_part_answers_alone_and_follows_what_is_typed(
    cast: Cast, node: SimNode, milos: Client
) -> None:
    book(cast.lena, count=2)
    answer = milos.get("/book/room/", TYPED | {"count": "6"}, headers={"HX-Request": "true"})
    page = page_of(answer)
    assert page.lstrip().startswith("<section")
    assert "6 asked, 5 free for the whole time, of 7 that the pool can hold." in page
    assert "HX-Request" in answer["Vary"]


def test_a_frozen_or_unheard_gpu_is_not_counted_as_free(cast: Cast, node: SimNode, milos: Client) -> None:
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(minutes=5)
    node.row.save()
    assert "1 asked, 0 free" in page_of(milos.get("/book/room/", TYPED | {"count": "1"}))


def test_a_pool_without_a_report_offers_nothing_and_says_so(cast: Cast, milos: Client) -> None:
    page = page_of(milos.get("/book/"))
    assert "There is nothing to book yet" in page
    assert "<form" not in page.partition("<main")[2].partition("</main>")[0]


def test_whoever_is_in_no_team_reads_why(node: SimNode, ottos: Client) -> None:
    assert "You are in no team that may book." in page_of(ottos.get("/book/"))
    answer = send(ottos)
    assert answer.status_code == 422
    assert not Reservation.objects.exists()


def test_a_link_can_fill_the_form(node: SimNode, milos: Client) -> None:
    page = page_of(milos.get("/book/?what=mig:3g.40gb@H100-80GB&count=2&title=Eval"))
    assert re.search(r'value="mig:3g.40gb@H100-80GB"\s+selected', page)
    assert 'value="Eval"' in page


def test_a_typed_title_is_shown_as_text(node: SimNode, milos: Client) -> None:
    answer = send(milos, title="<script>alert(1)</script>")
    page = page_of(milos.get(answer["Location"]))
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_another_browser_cannot_replay_a_key(node: SimNode, milos: Client, lena: User) -> None:
    send(milos)
    assert send(browser(lena)).status_code == 302
    assert Reservation.objects.count() == 2


def test_a_whole_ask_by_memory_reads_in_words() -> None:
    from pool.core.shapes import ask_json
    from portal.askwords import asked

    assert asked(ask_json(GpuAsk(("A100-40GB", "A30"), memory_mib=20 * 1024, count=2))) == (
        "2 × A100-40GB / A30 with 20 GiB"
    )


# --- Shares -----------------------------------------------------------------------


SHARED = {
    "what": "share:mps@H100-80GB",
    "count": "1",
    "share_memory": "8",
    "share_unit": "gib",
    "share_compute": "10",
}


def test_without_gpus_for_shares_the_form_asks_nothing_about_them(node: SimNode, milos: Client) -> None:
    page = page_of(milos.get("/book/"))
    assert "id_share_memory" not in page
    assert "share:" not in page


def test_the_form_offers_shares_and_what_keeps_them_apart(cast: Cast, milos: Client) -> None:
    add_shares(cast.main)
    page = page_of(milos.get("/book/"))
    assert "H100-80GB, up to 78.6 GiB – MPS: the driver keeps the limits" in page
    assert "8 GiB and 10 % of the compute of H100-80GB; MPS: the driver keeps the limits" in page
    assert "8 GiB for you, 0 GiB booked already, of 78.6 GiB" in page
    assert "10 % for you, 0 % booked already, of 100 %" in page


def test_a_kind_that_several_models_have_is_offered_for_any(cast: Cast, milos: Client) -> None:
    add_shares(cast.main, "a")
    add_shares(cast.main, "b", model="A30-24GB")
    page = page_of(milos.get("/book/"))
    assert 'value="share:mps"' in page
    assert "any model – MPS" in page


def test_a_share_is_booked_in_the_browser(cast: Cast, milos: Client) -> None:
    add_shares(cast.main)
    assert send(milos, **SHARED).status_code == 302
    made = Reservation.objects.get()
    assert made.ask == {
        "kind": "share",
        "memory_mib": 8192,
        "compute": {"guaranteed": 10, "limit": 10},
        "sharing": "mps",
        "models": ["H100-80GB"],
        "count": 1,
    }
    page = page_of(milos.get("/reservations/"))
    assert "1 × share of H100-80GB with 8 GiB memory and 10 % compute" in page


def test_a_share_that_does_not_fit_says_what_is_full(cast: Cast, milos: Client) -> None:
    add_shares(cast.main)
    send(milos, **SHARED | {"share_compute": "95"})
    page = page_of(send(milos, **SHARED, key="form-2"))
    assert "1 with too little compute left" in page
    assert "First free:" in page


def test_the_room_counts_the_account_for_whom_it_is(cast: Cast, milos: Client, lenas: Client) -> None:
    add_shares(cast.main)
    send(milos, **SHARED)
    address = "/book/room/"
    typed = {**TYPED, **SHARED}
    assert "1 whose shares are another account" in page_of(lenas.get(address, typed))
    assert "This fits" in page_of(lenas.get(address, typed | {"owner": "milo"}))


def test_time_slicing_has_to_be_accepted(cast: Cast, milos: Client) -> None:
    add_shares(cast.main, sharing=Gpu.Sharing.TIMESLICE)
    loose = SHARED | {"what": "share:timeslice@H100-80GB"}
    answer = send(milos, **loose)
    assert answer.status_code == 422
    assert 'href="#id_accept_not_enforced"' in page_of(answer)
    assert send(milos, **loose, accept_not_enforced="on").status_code == 302


# --- Offers -------------------------------------------------------------------------


def offered(client: Client, **typed: str) -> list[str]:
    """What the buttons of the offers send."""
    page = page_of(send(client, offers="1", **typed))
    assert "Times that are free" in page
    return re.findall(r'name="hold" value="([^"]*)"', page)


def test_times_are_offered_for_what_is_typed_and_nothing_is_booked(node: SimNode, milos: Client) -> None:
    page = page_of(send(milos, offers="1"))
    assert "soonest · leaves the most for others · can go on for longest ·" in page
    assert "nothing is booked after it" in page
    assert 'value="Finetune"' in page
    assert not Reservation.objects.exists()


def test_an_offer_is_held_with_its_button_and_booked_on_its_page(node: SimNode, milos: Client) -> None:
    answer = send(milos, hold=offered(milos)[0])
    held = Reservation.objects.get()
    assert (held.state, held.title) == ("held", "Finetune")
    assert answer["Location"] == f"/reservations/{held.pk}/"
    page = page_of(milos.get(answer["Location"]))
    assert "Held for you. Book it before the time is up." in page
    assert "It is kept for you until" in page
    booked = milos.post(f"/reservations/{held.pk}/confirm/")
    again = milos.post(f"/reservations/{held.pk}/confirm/")
    assert (booked.status_code, again.status_code) == (302, 302)
    held.refresh_from_db()
    assert held.state == "starting"
    assert "Book it" not in page_of(milos.get(answer["Location"]))


def test_what_somebody_else_holds_has_no_button_to_book_it(node: SimNode, milos: Client, lena: User) -> None:
    send(milos, hold=offered(milos)[0])
    held = Reservation.objects.get()
    assert "Book it" not in page_of(browser(lena).get(f"/reservations/{held.pk}/"))
    assert browser(lena).post(f"/reservations/{held.pk}/confirm/").status_code == 403


def test_a_second_hold_is_refused_beside_what_was_typed(node: SimNode, milos: Client) -> None:
    value = offered(milos)[0]
    send(milos, hold=value)
    refused = send(milos, hold=value, key="form-2")
    assert refused.status_code == 409
    assert "You hold something already" in page_of(refused)
    assert send(milos, hold="never|soon", key="form-3").status_code == 400


def test_without_an_offer_it_is_said_why(node: SimNode, milos: Client) -> None:
    QuotaLine.objects.update(cap_milli=100, guaranteed_milli=0)
    page = page_of(send(milos, offers="1"))
    assert "Times that are free" in page
    assert "Over quota" in page
    assert 'name="hold"' not in page


def test_what_would_fit_instead_is_said(node: SimNode, milos: Client) -> None:
    page = page_of(send(milos, offers="1", count="9"))
    assert "No room" in page
    assert "This fits instead: 7 × 1g.10gb." in page


def test_a_hold_that_has_lapsed_says_so(node: SimNode, milos: Client) -> None:
    send(milos, hold=offered(milos)[0])
    Reservation.objects.update(hold_until=clock.now())
    held = Reservation.objects.get()
    answer = milos.post(f"/reservations/{held.pk}/confirm/")
    assert answer.status_code == 409
    assert "The hold has lapsed" in page_of(answer)
