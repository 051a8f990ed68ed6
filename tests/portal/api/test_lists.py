"""Lists of reservations: pages without a row twice, filters that are read strictly, a fixed cost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.queries import clock
from tests.portal.api.asking import RESERVATIONS, ask, later, problem, tomorrow


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


def test_it_lists_newest_first_in_pages_without_a_row_twice(lead):
    made = [lead.book(tomorrow(ask(count=1), title=str(n))).json()["id"] for n in range(5)]
    address, found = f"{RESERVATIONS}?limit=2&team=vision", []
    while address:
        response = lead.get(address)
        found += [one["id"] for one in response.json()["results"]]
        address = response.json()["next"]
        assert ('rel="next"' in response.headers.get("Link", "")) == bool(address)
    assert found == made[::-1]


def test_it_filters_by_team_state_and_time(lead, api, sam):
    mine = lead.book(tomorrow()).json()["id"]
    gone = lead.book(tomorrow(start=later(days=3))).json()["id"]
    lead.post(f"{RESERVATIONS}/{gone}/release")
    api(sam).book(tomorrow(team="speech"))

    def listed(query):
        return [one["id"] for one in lead.get(f"{RESERVATIONS}?{query}").json()["results"]]

    assert listed("") == [gone, mine]
    assert listed("state=scheduled") == [mine]
    assert listed("state=scheduled,cancelled") == listed("state=scheduled&state=cancelled") == [gone, mine]
    assert listed("team=speech") == []
    assert listed(f"overlaps={later(days=1)}/{later(days=1, hours=1)}") == [mine]
    assert listed(f"overlaps={later(days=2)}/{later(days=5)}") == [gone]
    east = (clock.now() + timedelta(days=1, hours=8)).strftime("%Y-%m-%dT%H:%M:%S+08:00")
    assert listed(f"overlaps={east}/{later(days=1, hours=1)}") == [mine]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("colour=red", 400, "unknown_parameter"),
        ("state=happy", 422, "invalid"),
        ("state=", 422, "invalid"),
        ("limit=0", 422, "invalid"),
        ("limit=501", 422, "invalid"),
        ("team=%00", 422, "invalid"),
        ("cursor=abc", 400, "malformed"),
        ("cursor=WzEsMl0", 400, "malformed"),
        ("overlaps=2027-03-01T10:00:00/2027-03-02T10:00:00", 400, "naive_time"),
        ("overlaps=2027-03-01T10:00:00Z", 422, "invalid"),
        ("overlaps=b/a", 400, "malformed"),
        ("overlaps=2027-03-02T10:00:00Z/2027-03-01T10:00:00Z", 422, "invalid"),
    ],
)
def test_it_refuses_a_filter_that_it_cannot_read(lead, query, status, code):
    problem(lead.get(f"{RESERVATIONS}?{query}"), status, code)


def test_a_list_costs_the_same_four_statements_whatever_its_length(lead, django_assert_num_queries):
    lead.book(tomorrow(ask(count=1)))
    with django_assert_num_queries(4):
        lead.get(RESERVATIONS)
    for _ in range(4):
        lead.book(tomorrow(ask(count=1)))
    with django_assert_num_queries(4):
        lead.get(RESERVATIONS)
