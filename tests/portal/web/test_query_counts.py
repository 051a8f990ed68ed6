"""How many statements each page takes, whatever there is: more rows, no more statements."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pool.queries import clock
from tests.cast import Cast, enrol_node
from tests.portal.web.people import book

pytestmark = pytest.mark.django_db

#: Change one only with a reason in the commit.
BASELINE = {
    "/": 16,
    "/nodes/": 7,
    "/nodes/node-1/": 15,
    "/gpus/{gpu}/": 19,
    "/agents/": 7,
    "/book/": 20,
    "/reservations/": 10,
    "/reservations/{reservation}/": 17,
}


@pytest.mark.parametrize("address", BASELINE)
def test_a_page_takes_no_more_statements_when_there_is_more(cast: Cast, milos: Client, address: str) -> None:
    node = enrol_node(cast.main, count=2)
    first = book(cast.milo)
    node.follow()
    address_of = address.format(gpu=node.gpus[0].uuid, reservation=first.pk)
    few = _statements(milos, address_of)
    for number in range(3):
        enrol_node(cast.main, f"more-{number}", count=2)
    for hours in range(4):
        book(cast.milo, count=2, start=clock.now() + timedelta(hours=3 + 3 * hours))
    node.follow()
    many = _statements(milos, address_of)
    assert many == few
    assert many == BASELINE[address]


def _statements(client: Client, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert client.get(address).status_code == 200
    return len(seen)
