"""The page on which an operator has bookings moved: what it shows is what is done."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.cast import Cast
from tests.portal.scattered import nodes_of, scatter
from tests.portal.web.people import page_of

pytestmark = pytest.mark.django_db

PAGE = "/pools/main/defragmentation/"


def plan_of(page: str) -> str:
    found = re.search(r'name="plan" value="(\w+)"', page)
    assert found
    return found.group(1)


def test_it_shows_and_moves(cast: Cast, ottos: Client) -> None:
    both = scatter(cast)
    page = page_of(ottos.get(PAGE))
    assert "apart-1 GPU 0, slice" in page
    assert "2 GPU-hours" in page
    answer = ottos.post(PAGE, {"plan": plan_of(page)}, follow=True)
    assert "1 booking was moved." in page_of(answer)
    assert "Nothing is worth moving" in page_of(answer)
    assert nodes_of(both[0]) == nodes_of(both[1])


def test_another_plan_is_told_and_shown(cast: Cast, ottos: Client) -> None:
    both = scatter(cast)
    answer = ottos.post(PAGE, {"plan": "another"})
    assert answer.status_code == 412
    assert "It was changed after you read it." in page_of(answer)
    assert plan_of(page_of(answer)) == plan_of(page_of(ottos.get(PAGE)))
    assert nodes_of(both[0]) != nodes_of(both[1])


def test_only_operators_come_to_it(cast: Cast, milos: Client, ottos: Client) -> None:
    scatter(cast)
    assert milos.get(PAGE).status_code == milos.post(PAGE, {"plan": "x"}).status_code == 403
    assert ottos.get("/pools/other/defragmentation/").status_code == 404
    assert PAGE in page_of(ottos.get("/"))
    assert PAGE not in page_of(milos.get("/"))
