"""The wait list in the browser, without script: joining, standing in it, accepting, leaving, and why."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from pool.models import QuotaLine, Reservation, User
from pool.queries import clock
from pool.services import lanes
from tests.cast import SimNode
from tests.portal.web.people import book, page_of
from tests.portal.web.test_booking import send

pytestmark = pytest.mark.django_db


@pytest.fixture
def full(node: SimNode, lena: User) -> Reservation:
    """The whole of the only GPU is booked for six hours."""
    return book(lena, profile="7g.80gb", title="Secret plan", duration=timedelta(hours=6))


def waits(client: Client, **typed: str) -> Reservation:
    answer = send(client, wait="1", wait_for="24", **typed)
    assert answer.status_code == 302, page_of(answer)
    return Reservation.objects.get(pk=answer["Location"].split("/")[2])


def test_what_is_refused_for_room_can_be_waited_for_and_what_is_granted_offers_no_wait(
    full: Reservation, milos: Client
) -> None:
    page = page_of(send(milos))
    assert "Join the wait list" in page
    assert 'name="wait_for"' in page
    assert "Join the wait list" not in page_of(milos.get("/book/"))


def test_it_joins_for_the_time_that_was_chosen_and_says_so(full: Reservation, milos: Client) -> None:
    row = waits(milos, asks_first="on", partial_ok="on")
    assert (row.state, row.asks_first, row.partial_ok) == ("waiting", True, True)
    assert row.window.upper - row.window.lower == timedelta(hours=26)
    page = page_of(milos.get(f"/reservations/{row.pk}/"))
    assert "On the wait list. You are told" in page
    assert "It is number 1 of 1 in the line." in page
    assert "an estimate, if nobody extends" in page
    assert "You are asked first." in page


def test_joining_twice_with_the_same_form_joins_once(full: Reservation, milos: Client) -> None:
    assert waits(milos).pk == waits(milos).pk


def test_the_list_shows_those_who_wait_with_their_place(full: Reservation, milos: Client) -> None:
    waits(milos, title="Mine")
    page = page_of(milos.get("/reservations/?group=waiting"))
    assert "Mine" in page
    assert "(number 1 of 1)" in page
    assert "Secret plan" not in page


def test_an_offer_is_accepted_with_one_button(node: SimNode, milos: Client) -> None:
    row = waits(milos, asks_first="on")
    lanes.due(now=clock.now())
    page = page_of(milos.get(f"/reservations/{row.pk}/"))
    assert "The wait list offers it to you until" in page
    assert "Accept it" in page
    assert milos.get(f"/reservations/{row.pk}/confirm/").status_code == 405
    assert milos.post(f"/reservations/{row.pk}/confirm/").status_code == 302
    row.refresh_from_db()
    assert row.state == "starting"


def test_it_is_left_with_one_button(full: Reservation, milos: Client) -> None:
    row = waits(milos)
    milos.post(f"/reservations/{row.pk}/release/")
    row.refresh_from_db()
    assert row.state == "cancelled"


def test_the_explanation_names_what_the_viewer_may_see_and_counts_the_rest(
    full: Reservation, milos: Client, sams: Client
) -> None:
    row = waits(milos)
    page = page_of(milos.get(f"/reservations/{row.pk}/explanation/"))
    assert "Why it is so" in page
    assert "Secret plan" in page
    theirs = waits(sams, team="speech")
    page = page_of(sams.get(f"/reservations/{theirs.pk}/explanation/"))
    assert "Secret plan" not in page
    assert "that is not yours to see" in page
    assert sams.get(f"/reservations/{row.pk}/explanation/").status_code == 404


def test_a_full_cap_is_explained_with_its_numbers(node: SimNode, milos: Client, lena: User) -> None:
    QuotaLine.objects.filter(team__name="vision").update(cap_milli=250, guaranteed_milli=250)
    book(lena, title="Uses it up", count=2)
    row = waits(milos)
    page = page_of(milos.get(f"/reservations/{row.pk}/explanation/"))
    assert "Uses it up" in page
    assert "0.25" in page
