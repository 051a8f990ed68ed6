"""Who sees which requests, and what the lane has to look at."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg.types.range import TimestamptzRange

from pool.core.errors import Code, Refusal
from pool.models import Membership, QuotaComment, QuotaRequest, Reservation, Team, User
from pool.queries import quota_requests
from tests.cast import Cast
from tests.scene import NOON

pytestmark = pytest.mark.django_db


def make(cast: Cast, **more: object) -> QuotaRequest:
    values = {
        "team": cast.vision,
        "pool": cast.main,
        "cap_milli": 1000,
        "valid": TimestamptzRange(NOON, NOON + timedelta(days=1)),
        "justification": "A paper",
        "requested_by": cast.lena,
        "created_at": NOON,
    } | more
    return QuotaRequest.objects.create(**values)


@pytest.mark.parametrize(
    ("who", "sees"),
    [
        ("lena", True),
        ("milo", True),
        ("robot", True),
        ("sam", False),
        ("ada", True),
        ("otto", True),
        ("anna", True),
    ],
)
def test_the_team_and_those_who_decide_or_see_all_see_a_request(cast: Cast, who: str, sees: bool) -> None:
    row = make(cast)
    user = getattr(cast, who)
    assert quota_requests.visible_to(user).exists() is sees
    if not sees:
        with pytest.raises(Refusal) as refused:
            quota_requests.one(user, row.pk)
        assert refused.value.code == Code.NOT_FOUND


def test_a_lead_above_sees_the_requests_of_teams_below(cast: Cast) -> None:
    child = Team.objects.create(name="child", parent=cast.vision)
    assert quota_requests.one(cast.lena, make(cast, team=child).pk).team == child


def test_who_left_sees_nothing(cast: Cast) -> None:
    row = make(cast)
    cast.lena.is_active = False
    assert not quota_requests.visible_to(cast.lena).filter(pk=row.pk).exists()


def test_only_approvers_have_something_to_decide(cast: Cast) -> None:
    row = make(cast)
    make(cast, state="withdrawn")
    assert list(quota_requests.open_to_decide(cast.ada)) == [row]
    for who in (cast.lena, cast.otto, cast.sam):
        assert not quota_requests.open_to_decide(who).exists()
        assert not quota_requests.pending(who).exists()


def test_bookings_that_wait_are_told_by_when_they_lapse(cast: Cast) -> None:
    for hour in (5, 2):
        Reservation.objects.create(
            team=cast.vision,
            pool=cast.main,
            owner=cast.lena,
            booked_by=cast.lena,
            ask={},
            klass="batch",
            state="pending_approval",
            period=TimestamptzRange(NOON + timedelta(hours=9), NOON + timedelta(hours=10)),
            created_at=NOON,
            charge_milli=1000,
            approve_by=NOON + timedelta(hours=hour),
        )
    found = [row.approve_by for row in quota_requests.pending(cast.ada)]
    assert found == [NOON + timedelta(hours=2), NOON + timedelta(hours=5)]


def test_comments_come_in_their_order_and_history_from_the_newest(cast: Cast) -> None:
    first = make(cast)
    second = make(cast, renews=first)
    third = make(cast, renews=second)
    for text in ("a", "b"):
        QuotaComment.objects.create(request=third, author=cast.lena, at=NOON, text=text)
    assert [one.text for one in quota_requests.comments(third)] == ["a", "b"]
    assert quota_requests.history(third) == [second, first]


def test_ones_own_is_what_one_asked_or_a_service_account_that_one_leads(cast: Cast) -> None:
    assert quota_requests.is_own(cast.lena, (cast.lena,))
    assert quota_requests.is_own(cast.lena, (cast.milo, cast.robot))
    assert not quota_requests.is_own(cast.milo, (cast.robot,))
    assert not quota_requests.is_own(cast.ada, (cast.lena, cast.robot))
    Membership.objects.create(team=cast.vision, user=cast.ada, role="lead")
    assert quota_requests.is_own(User.objects.get(pk=cast.ada.pk), (cast.robot,))
