"""Saying yes or no to bookings above a pool's threshold."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Allocation, Event, Membership, OutboxMessage, Pool, QuotaLine, Reservation, User
from pool.services import approvals
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=4000, guaranteed=0)
    add_node(made.pool, mig_gpus=0, whole_gpus=2)
    Pool.objects.update(approve_above_milli=500)
    return made


@pytest.fixture
def ada() -> User:
    return User.objects.create(username="ada", roles=["approver"])


@pytest.fixture
def asked(scene: Scene, ada: User) -> Reservation:
    row = scene.book(WHOLE, start=NOON + hours(5), actor=scene.milo)
    assert row.state == "pending_approval"
    return row


def approve(row: Reservation, actor: User, **more: Any) -> Reservation:
    return approvals.approve(actor=actor, reservation_id=row.pk, **({"now": NOON + hours(1)} | more))


def deny(row: Reservation, actor: User, **more: Any) -> Reservation:
    wanted = {"answer": "Not now", "now": NOON + hours(1)} | more
    return approvals.deny(actor=actor, reservation_id=row.pk, **wanted)


def test_a_yes_books_what_it_holds_already(asked: Reservation, ada: User, scene: Scene) -> None:
    row = approve(asked, ada)
    assert (row.state, row.state_reason, row.decided_by) == ("scheduled", "approved", ada)
    assert Allocation.objects.get().holds
    message = OutboxMessage.objects.get(recipient=scene.milo)
    assert (message.kind, message.data["by"]) == ("booking_approved", "ada")


def test_a_no_frees_it_and_says_why(asked: Reservation, ada: User, scene: Scene) -> None:
    refused(Code.INVALID, lambda: deny(asked, ada, answer=" "))
    refused(Code.INVALID, lambda: deny(asked, ada, answer="x" * 4001))
    row = deny(asked, ada)
    assert (row.state, row.decided_by) == ("denied", ada)
    assert not Allocation.objects.get().holds
    assert OutboxMessage.objects.get(recipient=scene.milo).data["answer"] == "Not now"
    assert Event.objects.filter(verb="reservation.answered").get().after == {"answer": "Not now"}


@pytest.mark.parametrize("who", ["milo", "lena", "otto"])
def test_only_an_approver_decides(asked: Reservation, scene: Scene, who: str) -> None:
    refused(Code.FORBIDDEN, lambda: approve(asked, getattr(scene, who)))
    refused(Code.FORBIDDEN, lambda: deny(asked, getattr(scene, who)))


def test_to_a_stranger_there_is_nothing_to_decide(asked: Reservation, scene: Scene) -> None:
    refused(Code.NOT_FOUND, lambda: approve(asked, scene.sam))


@pytest.mark.parametrize("role", ["approver", "admin"])
def test_nobody_approves_their_own(asked: Reservation, scene: Scene, role: str) -> None:
    User.objects.filter(pk=scene.milo.pk).update(roles=[role])
    milo = User.objects.get(pk=scene.milo.pk)
    refused(Code.OWN_REQUEST, lambda: approve(asked, milo))
    refused(Code.OWN_REQUEST, lambda: deny(asked, milo))


def test_nor_what_is_a_service_accounts_that_they_lead(asked: Reservation, scene: Scene, ada: User) -> None:
    bot = User.objects.create(username="bot", kind=User.Kind.SERVICE)
    Membership.objects.create(team=scene.vision, user=bot, role="member")
    Reservation.objects.filter(pk=asked.pk).update(owner=bot)
    Membership.objects.create(team=scene.vision, user=ada, role="lead")
    refused(Code.OWN_REQUEST, lambda: approve(asked, ada))


def test_of_two_approvers_the_first_wins_and_the_second_is_told(asked: Reservation, ada: User) -> None:
    second = User.objects.create(username="second", roles=["approver"])
    approve(asked, ada, version=asked.version)
    told = refused(Code.STALE, lambda: deny(asked, second, version=asked.version))
    assert (told["decided_by"], told["state"]) == ("ada", "scheduled")


def test_an_older_version_is_refused(asked: Reservation, ada: User) -> None:
    refused(Code.STALE, lambda: approve(asked, ada, version=asked.version + 1))


def test_what_has_lapsed_or_was_taken_back_is_not_approved(asked: Reservation, ada: User) -> None:
    refused(Code.LAPSED, lambda: approve(asked, ada, now=NOON + hours(4)))
    Reservation.objects.update(state="cancelled")
    refused(Code.WRONG_STATE, lambda: approve(asked, ada))


def test_it_is_looked_at_again_as_quota_is_then(asked: Reservation, ada: User) -> None:
    QuotaLine.objects.update(cap_milli=500)
    refused(Code.QUOTA_EXCEEDED, lambda: approve(asked, ada))
    assert Reservation.objects.get().state == "pending_approval"
