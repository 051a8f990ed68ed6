"""The inbox: read by its owner alone, and a link to what can be done."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from pool.models import OutboxMessage, Reservation
from pool.queries import clock
from pool.services import notices
from tests.cast import Cast, enrol_node
from tests.portal.web.people import book, browser, page_of

pytestmark = pytest.mark.django_db


def tell(cast: Cast, kind: str = "ends_soon", row: Reservation | None = None) -> OutboxMessage:
    end = (clock.now() + timedelta(hours=1)).isoformat()
    notices.tell([cast.milo], kind, key=kind, now=clock.now(), reservation=row, data={"end": end})
    return OutboxMessage.objects.latest("pk")


def test_what_is_new_is_counted_in_the_frame_and_shown_on_the_first_page(cast: Cast, milos: Client) -> None:
    enrol_node(cast.main)
    tell(cast, row=book(cast.milo))
    page = page_of(milos.get("/"))
    assert "It ends soon: Finetune" in page
    assert '1<span class="visually-hidden"> unread</span>' in page
    assert "It ends soon: Finetune" in page_of(milos.get("/inbox/"))
    answer = milos.post("/inbox/read/", follow=True)
    assert "1 message is marked as read." in page_of(answer)
    page = page_of(milos.get("/"))
    assert "It ends soon" not in page
    assert "unread" not in page


def test_an_empty_inbox_says_so(milos: Client) -> None:
    assert "Nothing has been told to you yet." in page_of(milos.get("/inbox/"))


def test_to_open_a_message_reads_it_and_does_nothing_else(cast: Cast, milos: Client) -> None:
    enrol_node(cast.main)
    row = book(cast.milo)
    message = tell(cast, row=row)
    page = page_of(milos.get(f"/inbox/{message.pk}/"))
    assert f'action="/reservations/{row.pk}/extend/"' in page
    assert f'action="/reservations/{row.pk}/release/"' in page
    message.refresh_from_db()
    row.refresh_from_db()
    assert message.read_at is not None
    assert row.version == Reservation.objects.get().version == 1


def test_from_its_page_a_reservation_is_extended(cast: Cast, milos: Client) -> None:
    enrol_node(cast.main)
    row = book(cast.milo)
    milos.get(f"/inbox/{tell(cast, row=row).pk}/")
    typed = {"known_end": row.period.upper.isoformat(), "by": "60", "key": "k"}
    assert milos.post(f"/reservations/{row.pk}/extend/", typed).status_code == 302
    assert Reservation.objects.get().period.upper == row.period.upper + timedelta(hours=1)


def test_nobody_reads_what_was_told_to_another(
    cast: Cast, milos: Client, sams: Client, lenas: Client
) -> None:
    message = tell(cast)
    for client in (sams, lenas):
        assert client.get(f"/inbox/{message.pk}/").status_code == 404
        assert "It ends soon" not in page_of(client.get("/inbox/"))
    assert milos.get(f"/inbox/{message.pk}/").status_code == 200
    assert milos.get("/inbox/0/").status_code == 404


def test_of_what_is_not_seen_any_more_nothing_is_offered(cast: Cast, milos: Client) -> None:
    enrol_node(cast.main)
    message = tell(cast, row=book(cast.lena))
    cast.milo.memberships.all().delete()
    assert "not yours to see any more" in page_of(milos.get(f"/inbox/{message.pk}/"))


def test_who_approves_no_more_is_led_to_no_approvals(cast: Cast) -> None:
    enrol_node(cast.main)
    row, adas = book(cast.lena), browser(cast.ada)
    notices.tell([cast.ada], "booking_to_approve", key="k", now=clock.now(), reservation=row)
    at = f"/inbox/{OutboxMessage.objects.get().pk}/"
    assert "To the approvals" in page_of(adas.get(at))
    cast.ada.roles = []
    cast.ada.save()
    assert "To the approvals" not in page_of(adas.get(at))


def test_older_messages_are_on_the_next_page(cast: Cast, milos: Client) -> None:
    for n in range(31):
        notices.tell(
            [cast.milo], "budget", key=str(n), now=clock.now(), data={"team": "vision", "percent": n}
        )
    first = page_of(milos.get("/inbox/"))
    oldest = OutboxMessage.objects.order_by("pk")[1].pk
    assert f"?before={oldest}" in first
    assert "0 percent of the budget of vision" in page_of(milos.get(f"/inbox/?before={oldest}"))
