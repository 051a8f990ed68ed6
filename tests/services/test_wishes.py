"""What may be asked: times that can be, text that can be kept, and by whom for whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.shapes import MigAsk
from pool.models import (
    Membership,
    User,
)
from tests.scene import NOON, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def field_error(call: Callable[[], object]) -> tuple[str, str]:
    (error,) = refused(Code.INVALID, call)["errors"]
    return error["pointer"], error["code"]


# --- Times ----------------------------------------------------------------------


@pytest.mark.parametrize("ago", [0, 59, 60])
def test_a_start_up_to_a_minute_ago_means_now(scene: Scene, ago: int) -> None:
    booked = scene.book(start=NOON - timedelta(seconds=ago))
    assert booked.period.lower == NOON
    assert booked.period.upper == NOON + hours(1)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"start": NOON - timedelta(seconds=61)}, ("/start", "start_in_past")),
        ({"start": NOON + timedelta(days=367)}, ("/start", "too_far")),
        ({"duration": timedelta(seconds=59)}, ("/duration", "too_small")),
        ({"duration": timedelta(days=366, seconds=1)}, ("/duration", "too_large")),
        ({"duration": None, "end": NOON - hours(1)}, ("/end", "end_before_start")),
        ({"duration": None, "end": NOON + timedelta(seconds=59)}, ("/end", "too_small")),
        ({"duration": None}, ("/duration", "one_of")),
        ({"end": NOON + hours(1)}, ("/end", "one_of")),
    ],
)
def test_it_refuses_times_that_cannot_be(
    scene: Scene, times: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert field_error(lambda: scene.book(**times)) == expected


def test_it_refuses_a_naive_time(scene: Scene) -> None:
    naive = datetime(2027, 3, 1, 13)  # noqa: DTZ001
    assert refused(Code.NAIVE_TIME, lambda: scene.book(start=naive)) == {"pointer": "/start"}


@pytest.mark.parametrize(
    ("what", "pointer"),
    [({"title": "a\0b"}, "/title"), ({"ask": MigAsk(profile="1g.10gb", node="a\0")}, "/ask")],
)
def test_it_refuses_characters_that_cannot_be_stored(
    scene: Scene, what: dict[str, Any], pointer: str
) -> None:
    assert field_error(lambda: scene.book(**what)) == (pointer, "bad_characters")


# --- Who ------------------------------------------------------------------------


def test_a_team_that_one_is_not_in_does_not_exist(scene: Scene) -> None:
    refused(Code.NOT_FOUND, lambda: scene.book(actor=scene.sam))


def test_an_operator_sees_the_team_and_may_not_book_for_it(scene: Scene) -> None:
    refused(Code.FORBIDDEN, lambda: scene.book(actor=scene.otto))


def test_a_lead_books_for_a_member_and_stays_in_the_audit(scene: Scene) -> None:
    booked = scene.book(owner="milo")
    assert (booked.owner, booked.booked_by) == (scene.milo, scene.lena)


def test_a_lead_books_for_a_service_account_of_the_team(scene: Scene) -> None:
    robot = User.objects.create(username="robot", kind="service")
    Membership.objects.create(team=scene.vision, user=robot, role="member")
    assert scene.book(owner="robot").owner == robot


def test_a_member_may_name_only_themselves_as_owner(scene: Scene) -> None:
    assert scene.book(actor=scene.milo, owner="milo").owner == scene.milo
    refused(Code.FORBIDDEN, lambda: scene.book(actor=scene.milo, owner="lena"))


@pytest.mark.parametrize("owner", ["sam", "nobody", "a\0"])
def test_the_owner_must_be_of_the_team(scene: Scene, owner: str) -> None:
    assert field_error(lambda: scene.book(owner=owner)) == ("/owner", "not_a_member")
