"""The page on which an operator makes room for somebody's ask: it moves what it shows, once."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from pool.models import Allocation
from tests.cast import Cast
from tests.portal.scattered import nodes_of, scatter
from tests.portal.web.people import page_of

pytestmark = pytest.mark.django_db

ASK = '{"kind":"mig","profile":"7g.80gb","count":1}'


def address(cast: Cast, both: list, **more: str) -> str:
    """For all of a GPU when both small slices are there."""
    start = both[0].period.lower.isoformat().replace("+", "%2B")
    said = {"team": "vision", "start": start, "duration": "PT1H", "ask": ASK} | more
    return "/pools/main/room/?" + "&".join(f"{name}={value}" for name, value in said.items())


def fields_of(page: str) -> dict[str, str]:
    form = page[page.index('action="/pools/main/room/"') :]
    found = re.findall(r'name="(\w+)"\s+value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


@pytest.fixture
def both(cast: Cast) -> list:
    """Two slices on two GPUs, and nothing else in the pool."""
    return scatter(cast)


def test_it_shows_and_moves(cast: Cast, ottos: Client, both: list) -> None:
    page = page_of(ottos.get(address(cast, both)))
    assert "1 × 7g.80gb" in page
    assert "What would be moved" in page
    answer = ottos.post("/pools/main/room/", fields_of(page), follow=True)
    assert "1 booking was moved." in page_of(answer)
    assert "It fits as it is" in page_of(answer)
    assert nodes_of(both[0]) == nodes_of(both[1])


def test_sent_twice_it_moves_once(cast: Cast, ottos: Client, both: list) -> None:
    fields = fields_of(page_of(ottos.get(address(cast, both))))
    for _ in range(2):
        assert "1 booking was moved." in page_of(ottos.post("/pools/main/room/", fields, follow=True))


def test_another_plan_is_told_and_the_present_one_shown(cast: Cast, ottos: Client, both: list) -> None:
    fields = fields_of(page_of(ottos.get(address(cast, both))))
    answer = ottos.post("/pools/main/room/", fields | {"plan": "another"})
    assert answer.status_code == 412
    assert fields_of(page_of(answer))["plan"] == fields["plan"]
    assert nodes_of(both[0]) != nodes_of(both[1])


def test_only_operators_come_to_it(cast: Cast, milos: Client, ottos: Client, both: list) -> None:
    assert milos.get(address(cast, both)).status_code == 403
    assert ottos.get(address(cast, both, team="nobody")).status_code == 404
    assert ottos.get(address(cast, both).replace("main", "other")).status_code == 404


@pytest.mark.parametrize("wrong", [{"ask": "{"}, {"ask": "[]"}, {"duration": "soon"}, {"class": "x"}])
def test_an_address_that_says_nothing_is_told_so(
    cast: Cast, ottos: Client, both: list, wrong: dict[str, str]
) -> None:
    answer = ottos.get(address(cast, both, **wrong))
    assert answer.status_code in (400, 422)
    assert "Make room" in page_of(answer)


def test_where_no_move_helps_it_says_so(cast: Cast, ottos: Client, both: list) -> None:
    ask = ASK.replace('"count":1', '"count":9')
    assert "No move of bookings" in page_of(ottos.get(address(cast, both, ask=ask)))
    assert Allocation.objects.filter(holds=True).count() == 2
