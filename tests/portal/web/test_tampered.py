"""What no page sends: offers that were typed by hand, links with absurd times."""

from __future__ import annotations

import pytest
from django.test import Client

from pool.models import Reservation
from tests.cast import Cast, SimNode
from tests.portal.web.people import page_of
from tests.portal.web.test_booking import send
from tests.portal.web.test_make_room import ASK

pytestmark = pytest.mark.django_db

LATER = "2199-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "value",
    [
        *("nonsense", "|", "||||", f"{LATER}|{LATER}|", f"{LATER}||"),
        "2199-01-02T00:00:00+00:00|2199-01-01T00:00:00+00:00|",
        "2199-01-01T00:00:00|2199-01-02T00:00:00|",
        f"{LATER}|9999-12-31T23:59:59+00:00|9999-12-31T23:59:59+00:00",
        "0001-01-01T00:00:00+14:00|0001-01-01T01:00:00+00:00|",
    ],
)
def test_an_offer_that_was_never_made_is_refused_and_holds_nothing(
    node: SimNode, milos: Client, value: str
) -> None:
    answer = send(milos, hold=value)
    assert answer.status_code in (400, 409, 422)
    assert "book-form" in page_of(answer)
    assert not Reservation.objects.exists()


@pytest.mark.parametrize(
    "said",
    [
        {"duration": "P99999999D"},
        {"duration": "PT0S"},
        {"start": "9999-12-31T23:59:59Z"},
        {"start": "0001-01-01T00:00:00+14:00"},
        {"start": "2199-01-01T00:00:00"},
        {"ask": '{"kind":"gpu","count":1e400}'},
        {"ask": "[" * 2000},
        {"owner": "nobody\0"},
    ],
)
def test_a_link_with_absurd_words_is_refused(cast: Cast, ottos: Client, said: dict[str, str]) -> None:
    fields = {"team": "vision", "duration": "PT1H", "ask": ASK} | said
    assert ottos.get("/pools/main/room/", fields).status_code in (400, 422)
