"""What may be taken back, and what is taken back, is told before it is confirmed, and while it lasts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from pool.core.admission import Loan
from pool.core.period import Period
from pool.models import Pool, QuotaLine, Reservation
from pool.services import reservations
from portal.web.borrowed import spells
from portal.web.tags import hours_of
from tests.cast import Cast, SimNode
from tests.portal.web.people import book, browser, page_of
from tests.portal.web.test_booking import TYPED

pytestmark = pytest.mark.django_db

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
WHOLE = {"what": "mig:7g.80gb@H100-80GB", "count": "1"}


@pytest.fixture
def lent(node: SimNode) -> None:
    """All of it is guaranteed to speech, which lends it; vision borrows."""
    QuotaLine.objects.filter(team__name="vision").update(guaranteed_milli=0)
    QuotaLine.objects.filter(team__name="speech").update(guaranteed_milli=1000)
    Pool.objects.update(min_run_seconds=0)


def send(client: Client, **typed: str) -> Any:
    return client.post("/book/", TYPED | typed)


def test_what_follows_on_one_another_is_told_as_one() -> None:
    def loan(start: int, end: int | None, milli: int) -> Loan:
        until = None if end is None else NOON + timedelta(hours=end)
        return Loan(Period(NOON + timedelta(hours=start), until), milli, "others")

    assert spells([]) == ()
    assert spells([loan(1, 2, 500), loan(0, 1, 250), loan(3, 4, 125)]) == (loan(0, 2, 500), loan(3, 4, 125))
    assert spells([loan(0, None, 500), loan(1, 2, 1000)]) == (loan(0, None, 1000),)


def test_the_form_says_when_what_may_be_taken_back(lent: None, milos: Client) -> None:
    page = page_of(milos.get("/book/room/", TYPED))
    assert "0.25 GPU of it may be taken back from" in page
    assert 'name="told" value="borrows"' in page


def test_without_script_it_is_told_before_anything_is_booked(lent: None, milos: Client) -> None:
    page = page_of(send(milos))
    assert "Nothing is booked yet." in page
    assert "may be taken back from" in page
    assert not Reservation.objects.exists()
    assert send(milos, told="borrows").status_code == 302


def test_an_offer_and_what_is_held_say_it_too(lent: None, milos: Client) -> None:
    page = page_of(send(milos, offers="1"))
    assert "may be taken back from" in page[page.index('id="offers"') :]
    chosen = re.search(r'name="hold" value="([^"]+)"', page)
    assert chosen is not None
    answer = milos.post("/book/", TYPED | {"hold": chosen[1]}, follow=True)
    assert "0.25 GPU of it may be taken back from" in page_of(answer)


def test_when_a_booking_takes_back_it_is_said_before(
    cast: Cast, lent: None, milos: Client, sams: Client
) -> None:
    victim = book(cast.milo, profile="7g.80gb")
    page = page_of(send(sams, team="speech", **WHOLE))
    assert "Your team takes back what it lent" in page
    assert "1 booking that borrows from your team has to leave first." in page
    assert Reservation.objects.count() == 1
    answer = sams.post("/book/", TYPED | WHOLE | {"team": "speech", "told": "reclaims"}, follow=True)
    assert "those who borrow it leave by" in page_of(answer)
    page = page_of(milos.get(f"/reservations/{victim.pk}/"))
    assert "It is taken back at" in page
    assert "at the head of the wait list" in page
    assert f"/reservations/{victim.pk}/explanation/" in page


def test_what_needs_an_approver_is_said_before(node: SimNode, milos: Client) -> None:
    Pool.objects.update(approve_above_milli=100)
    later = {"begin": "at", "start_date": "2099-01-01", "start_time": "10:00"}
    assert "No start before" not in page_of(milos.get("/book/room/", TYPED | later))
    refused = page_of(milos.get("/book/room/", TYPED))
    assert 'class="note note-bad"' in refused


def test_on_what_terms_is_kept_and_checked(node: SimNode, milos: Client, lenas: Client) -> None:
    terms = {"preempt_signal": "SIGUSR1", "preempt_grace": "3", "priority": "20", "justification": "A paper"}
    assert send(milos, **terms).status_code == 302
    made = Reservation.objects.get()
    assert (made.preempt_signal, made.preempt_grace_s, made.priority) == ("SIGUSR1", 180, 20)
    assert (made.justification, made.preemptible) == ("A paper", True)
    page = page_of(send(milos, key="form-2", priority="80"))
    assert "Only a lead of the team may say more than 50." in page
    assert send(lenas, key="form-3", priority="80", firm="on").status_code == 302
    assert not Reservation.objects.order_by("-pk")[0].preemptible
    assert "field-error" in page_of(send(milos, key="form-4", firm="on", preempt_signal="SIGUSR1"))


def test_what_giving_back_late_costs_is_said_before_and_a_lead_waives_it(
    cast: Cast, node: SimNode, milos: Client, lenas: Client
) -> None:
    Pool.objects.update(late_release_price=True)
    row = book(cast.milo, duration=timedelta(days=2))
    price = reservations.late_price(Reservation.objects.get(pk=row.pk), row.created_at)
    address = f"/reservations/{row.pk}/"
    assert f"{hours_of(price)} of it stay on your team's budget" in page_of(milos.get(address))
    assert 'name="waive"' not in page_of(milos.get(address))
    assert 'name="waive"' in page_of(browser(cast.lena).get(address))
    lenas.post(address + "release/", {"waive": "1"})
    assert Reservation.objects.get(pk=row.pk).retained_milli_hours == 0
