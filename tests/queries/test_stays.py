"""queries.stays: what a node is told of those who are on it, and what its pool allows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core import wire
from pool.core.shapes import GpuAsk, MigAsk
from pool.models import ClockOffset, Pool, Reservation, Team, User
from pool.queries import clock, stays
from pool.services import lanes, reservations
from tests.cast import Cast, SimNode, enrol_node

HOUR = timedelta(hours=1)


def book(cast: Cast, ask: Any = MigAsk(profile="1g.10gb"), **over: Any) -> Reservation:  # noqa: B008 - frozen
    values = {"actor": cast.lena, "team": "vision", "pool": "main", "duration": HOUR, "now": clock.now()}
    return reservations.book(ask=ask, **values | over)


def test_a_stay_tells_who_it_is_for_when_it_ends_and_where_it_is_extended(cast: Cast, node: SimNode) -> None:
    User.objects.filter(pk=cast.lena.pk).update(posix_name="lena-p")
    Team.objects.filter(pk=cast.vision.pk).update(posix_name="svc-vision")
    row = book(cast)
    (stay,) = stays.of_node(node.row.pk)
    assert (stay.allocation, stay.reservation) == (str(row.allocations.get().pk), str(row.pk))
    assert (stay.gpu, stay.team, stay.owner) == (node.gpus[0].uuid, "vision", "lena")
    assert stay.users == ("lena-p", "svc-vision")
    assert (stay.start, stay.end) == (row.period.lower, row.period.upper)
    assert stay.url.endswith(f"/reservations/{row.pk}/")
    assert not stay.ending


def test_the_node_is_told_of_a_notice(cast: Cast, node: SimNode) -> None:
    row = book(cast)
    until = clock.now() + timedelta(minutes=20)
    Reservation.objects.filter(pk=row.pk).update(notice_until=until, notice_why="reclaimed")
    (stay,) = stays.of_node(node.row.pk)
    assert (stay.notice_until, stay.why) == (until, "reclaimed")


def test_a_stay_that_was_released_is_ending_until_it_is_seen_clean(cast: Cast, node: SimNode) -> None:
    row = book(cast)
    node.follow()
    reservations.release(actor=cast.lena, reservation_id=row.pk, now=clock.now())
    (stay,) = stays.of_node(node.row.pk)
    assert stay.ending
    node.follow()
    assert stays.of_node(node.row.pk) == ()


def test_what_goes_on_under_the_next_booking_of_the_same_owner_is_not_ending(cast: Cast) -> None:
    node = enrol_node(cast.main, use="whole")
    ask = GpuAsk(models=("H100-80GB",))
    first = book(cast, ask)
    node.follow()
    later = first.period.upper
    second = book(cast, ask, start=later)
    lanes.due(now=later)
    by_id = {stay.reservation: stay for stay in stays.of_node(node.row.pk)}
    assert Reservation.objects.get(pk=first.pk).state == "ending"
    assert not by_id[str(first.pk)].ending
    assert str(second.pk) in by_id


def test_a_booking_that_has_not_begun_is_nobodys_business_yet(cast: Cast, node: SimNode) -> None:
    book(cast, start=clock.now() + HOUR)
    assert stays.of_node(node.row.pk) == ()


def test_a_clock_that_is_moved_is_not_the_nodes(cast: Cast, node: SimNode, settings: Any) -> None:
    settings.DEMO = True
    ClockOffset.objects.create(pk=1, seconds=3600)
    row = book(cast)
    (stay,) = stays.of_node(node.row.pk)
    assert stay.end == row.period.upper - HOUR


def test_all_stays_of_a_node_take_one_statement(cast: Cast) -> None:
    node = enrol_node(cast.main, count=2)
    for _ in range(5):
        book(cast)
    with CaptureQueriesContext(connection) as made:
        assert len(stays.of_node(node.row.pk)) == 5
    assert len(made) == 1


@pytest.mark.parametrize(
    ("owner", "team", "found"),
    [("lena", "svc", ("lena", "svc")), ("", "svc", ("svc",)), ("svc", "svc", ("svc",)), ("", "", ())],
)
def test_accounts_are_the_owners_and_the_teams(owner: str, team: str, found: tuple[str, ...]) -> None:
    assert stays.accounts(owner, team) == found


def test_the_policy_is_the_pools() -> None:
    pool = Pool(
        may_kill=True,
        grace_seconds=5,
        over_memory="end",
        over_grace_seconds=7,
        foreign="look",
        terminal_lines=False,
    )
    assert stays.policy(pool) == wire.Policy(
        kill=True, grace_s=5, over_memory="end", over_grace_s=7, foreign="look", lines=False
    )
    assert stays.policy(Pool()) == wire.Policy()
