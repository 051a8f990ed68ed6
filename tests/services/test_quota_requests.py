"""Requests for quota: who may do what with them, what is granted, and what the lane makes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.period import Period
from pool.models import Event, Membership, OutboxMessage, Pool, QuotaGrant, QuotaRequest, Team, User
from pool.services import quota_requests
from pool.services.quota_requests import Amounts
from tests.scene import NOON, Scene, add_node, hours, make_scene, refused

pytestmark = pytest.mark.django_db

WEEKS = Period(NOON, NOON + timedelta(days=30))
TWO = Amounts(guaranteed_milli=1000, cap_milli=2000)


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=1000, guaranteed=0)
    add_node(made.pool, mig_gpus=4)
    return made


@pytest.fixture
def ada() -> User:
    return User.objects.create(username="ada", roles=["approver"])


def submit(scene: Scene, actor: User | None = None, **more: Any) -> QuotaRequest:
    wanted = {"amounts": TWO, "valid": WEEKS, "justification": "A paper", "now": NOON} | more
    wanted = {"team": scene.vision, "pool": scene.pool} | wanted
    return quota_requests.submit(actor=actor or scene.lena, **wanted)


def approve(row: QuotaRequest, actor: User, **more: Any) -> QuotaGrant:
    return quota_requests.approve(actor=actor, request_id=row.pk, **({"now": NOON} | more))


def deny(row: QuotaRequest, actor: User, **more: Any) -> QuotaRequest:
    return quota_requests.deny(actor=actor, request_id=row.pk, **({"answer": "No room", "now": NOON} | more))


def kinds(user: User) -> list[str]:
    return list(OutboxMessage.objects.filter(recipient=user).order_by("pk").values_list("kind", flat=True))


# --- Asking -------------------------------------------------------------------


def test_a_lead_asks_and_approvers_are_told(scene: Scene, ada: User) -> None:
    row = submit(scene)
    assert (row.state, row.requested_by, row.version) == ("submitted", scene.lena, 1)
    assert kinds(ada) == ["request_submitted"]
    assert Event.objects.get().verb == "quota.requested"


@pytest.mark.parametrize("who", ["milo", "sam", "otto"])
def test_only_a_lead_of_the_team_asks(scene: Scene, who: str) -> None:
    refused(Code.FORBIDDEN, lambda: submit(scene, getattr(scene, who)))


@pytest.mark.parametrize(
    ("wrong", "pointer", "code"),
    [
        ({"amounts": Amounts()}, "/cap_milli", "nothing_asked"),
        ({"amounts": Amounts(2, 1)}, "/guaranteed_milli", "too_large"),
        ({"amounts": Amounts(memory_mib=-1)}, "/memory_mib", "too_small"),
        ({"amounts": Amounts(cap_milli=10**10)}, "/cap_milli", "too_large"),
        ({"justification": " "}, "/justification", "blank"),
        ({"justification": "x" * 4001}, "/justification", "too_long"),
        ({"valid": Period(NOON - hours(2), NOON - hours(1))}, "/end", "end_in_past"),
        ({"valid": Period(NOON, None)}, "/end", "required"),
        ({"valid": Period(NOON, NOON + timedelta(days=2000))}, "/end", "too_far"),
        ({"model": "RTX 9999"}, "/model", "unknown_model"),
    ],
)
def test_what_cannot_be_granted_is_not_asked(
    scene: Scene, wrong: dict[str, Any], pointer: str, code: str
) -> None:
    (error, *_) = refused(Code.INVALID, lambda: submit(scene, **wrong))["errors"]
    assert (error["pointer"], error["code"]) == (pointer, code)


# --- Deciding -----------------------------------------------------------------


def test_what_is_granted_begins_at_once_and_its_asker_is_told(scene: Scene, ada: User) -> None:
    row = submit(scene)
    change = Pool.objects.get().change
    grant = approve(row, ada)
    row.refresh_from_db()
    assert (row.state, row.decided_by, row.decided_at) == ("active", ada, NOON)
    assert (grant.guaranteed_milli, grant.cap_milli, grant.valid.upper) == (1000, 2000, WEEKS.end)
    assert Pool.objects.get().change == change + 1
    assert kinds(scene.lena) == ["request_approved"]


def test_what_begins_later_waits_for_it(scene: Scene, ada: User) -> None:
    row = submit(scene, valid=Period(NOON + hours(1), NOON + hours(5)))
    approve(row, ada)
    row.refresh_from_db()
    assert row.state == "approved"


def test_other_amounts_and_dates_stand_and_the_request_keeps_what_was_asked(scene: Scene, ada: User) -> None:
    row = submit(scene)
    day = Period(NOON, NOON + hours(24))
    grant = approve(row, ada, amounts=Amounts(0, 500), valid=day, answer="Half of it")
    row.refresh_from_db()
    assert (grant.cap_milli, grant.valid.upper) == (500, NOON + hours(24))
    assert (row.cap_milli, row.valid.upper, row.answer) == (2000, WEEKS.end, "Half of it")
    (message,) = OutboxMessage.objects.filter(recipient=scene.lena)
    assert message.data["cap_milli"] == 500


def test_a_booking_fits_only_while_the_grant_lasts(scene: Scene, ada: User) -> None:
    approve(submit(scene, amounts=Amounts(0, 3000), valid=Period(NOON, NOON + hours(5))), ada)
    assert QuotaGrant.objects.get().valid.upper == NOON + hours(5)


def test_a_no_comes_with_a_reason(scene: Scene, ada: User) -> None:
    row = submit(scene)
    refused(Code.INVALID, lambda: deny(row, ada, answer=" "))
    assert deny(row, ada).state == "denied"
    assert not QuotaGrant.objects.exists()
    assert OutboxMessage.objects.get(recipient=scene.lena).data["answer"] == "No room"


@pytest.mark.parametrize("who", ["lena", "milo", "otto"])
def test_only_an_approver_decides(scene: Scene, who: str) -> None:
    row = submit(scene)
    refused(Code.FORBIDDEN, lambda: approve(row, getattr(scene, who)))
    refused(Code.FORBIDDEN, lambda: deny(row, getattr(scene, who)))


def test_to_a_stranger_there_is_no_request(scene: Scene) -> None:
    row = submit(scene)
    refused(Code.NOT_FOUND, lambda: approve(row, scene.sam))
    refused(
        Code.NOT_FOUND,
        lambda: quota_requests.comment(actor=scene.sam, request_id=row.pk, text="Hi", now=NOON),
    )
    refused(Code.NOT_FOUND, lambda: quota_requests.withdraw(actor=scene.sam, request_id=row.pk, now=NOON))


@pytest.mark.parametrize("role", ["approver", "admin"])
def test_nobody_approves_their_own(scene: Scene, role: str) -> None:
    boss = User.objects.create(username="boss", roles=[role])
    Membership.objects.create(team=scene.vision, user=boss, role="lead")
    row = submit(scene, boss)
    refused(Code.OWN_REQUEST, lambda: approve(row, boss))
    refused(Code.OWN_REQUEST, lambda: deny(row, boss))


def test_nor_what_a_service_account_of_theirs_has_asked(scene: Scene, ada: User) -> None:
    bot = User.objects.create(username="bot", kind=User.Kind.SERVICE)
    Membership.objects.create(team=scene.vision, user=bot, role="lead")
    row = submit(scene, bot)
    Membership.objects.create(team=scene.vision, user=ada, role="lead")
    refused(Code.OWN_REQUEST, lambda: approve(row, ada))
    approve(row, User.objects.create(username="other", roles=["approver"]))


def test_of_two_approvers_the_first_wins_and_the_second_is_told(scene: Scene, ada: User) -> None:
    row = submit(scene)
    second = User.objects.create(username="second", roles=["approver"])
    approve(row, ada, version=1)
    told = refused(Code.STALE, lambda: deny(row, second, version=1))
    assert (told["decided_by"], told["state"], told["version"]) == ("ada", "active", 2)


def test_more_than_there_is_is_not_granted_as_guaranteed(scene: Scene, ada: User) -> None:
    row = submit(scene, amounts=Amounts(5000, 5000))
    (error,) = refused(Code.INVALID, lambda: approve(row, ada))["errors"]
    assert (error["code"], error["room_gpu"], error["guaranteed_gpu"]) == ("more_than_there_is", "4", "5")
    approve(row, ada, amounts=Amounts(4000, 5000))


# --- Comments and taking back -------------------------------------------------


def test_the_other_side_hears_of_a_comment(scene: Scene, ada: User) -> None:
    row = submit(scene)
    quota_requests.comment(actor=ada, request_id=row.pk, text="For what?", now=NOON)
    quota_requests.comment(actor=scene.milo, request_id=row.pk, text="For this", now=NOON)
    assert kinds(scene.lena) == ["request_comment", "request_comment"]
    assert kinds(ada) == ["request_submitted", "request_comment"]
    assert kinds(scene.milo) == []


def test_it_is_withdrawn_only_before_it_is_decided_on(scene: Scene, ada: User) -> None:
    row = submit(scene)
    refused(Code.FORBIDDEN, lambda: quota_requests.withdraw(actor=scene.milo, request_id=row.pk, now=NOON))
    refused(
        Code.STALE,
        lambda: quota_requests.withdraw(actor=scene.lena, request_id=row.pk, version=7, now=NOON),
    )
    assert quota_requests.withdraw(actor=scene.lena, request_id=row.pk, now=NOON).state == "withdrawn"
    refused(Code.WRONG_STATE, lambda: quota_requests.withdraw(actor=scene.lena, request_id=row.pk, now=NOON))
    refused(Code.STALE, lambda: approve(row, ada))


# --- Renewal ------------------------------------------------------------------


def test_a_renewal_goes_on_from_what_was_granted(scene: Scene, ada: User) -> None:
    first = submit(scene)
    refused(Code.INVALID, lambda: submit(scene, renews=first))
    approve(first, ada)
    first.refresh_from_db()
    second = submit(scene, renews=first, valid=Period(WEEKS.end or NOON, NOON + timedelta(days=60)))
    assert second.renews == first
    other = Team.objects.create(name="other", parent=scene.vision)
    (error,) = refused(Code.INVALID, lambda: submit(scene, renews=first, team=other))["errors"]
    assert error["code"] == "other_line"


# --- The lane -----------------------------------------------------------------


def test_grants_begin_and_end_once(scene: Scene, ada: User) -> None:
    row = submit(scene, valid=Period(NOON + hours(1), NOON + hours(5)))
    approve(row, ada)
    assert quota_requests.go_on(now=NOON) == 0
    assert quota_requests.go_on(now=NOON + hours(1)) == 1
    assert quota_requests.go_on(now=NOON + hours(1)) == 0
    assert QuotaRequest.objects.get().state == "active"
    assert quota_requests.go_on(now=NOON + hours(5)) == 1
    assert QuotaRequest.objects.get().state == "expired"
    assert kinds(scene.lena) == ["request_approved", "grant_began", "grant_ended"]


def test_what_nobody_looked_at_in_time_is_over_at_once_or_in_two_steps(scene: Scene, ada: User) -> None:
    approve(submit(scene, valid=Period(NOON + hours(1), NOON + hours(2))), ada)
    while quota_requests.go_on(now=NOON + hours(9)):
        pass
    assert QuotaRequest.objects.get().state == "expired"


def test_its_team_is_reminded_a_week_and_a_day_before_the_end(scene: Scene, ada: User) -> None:
    approve(submit(scene), ada)
    end = WEEKS.end or NOON
    assert quota_requests.go_on(now=end - timedelta(days=8)) == 0
    assert quota_requests.go_on(now=end - timedelta(days=7)) == 1
    assert quota_requests.go_on(now=end - timedelta(days=6)) == 0
    assert quota_requests.go_on(now=end - timedelta(days=1)) == 1
    assert quota_requests.go_on(now=end - timedelta(hours=1)) == 0
    assert kinds(scene.lena) == ["request_approved", "grant_ends", "grant_ends"]


def test_of_many_each_is_reminded_in_its_turn(
    scene: Scene, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_requests, "BATCH", 1)
    for _ in range(2):
        approve(submit(scene), ada)
    at = (WEEKS.end or NOON) - timedelta(days=7)
    assert [quota_requests.go_on(now=at) for _ in range(3)] == [1, 1, 0]
    assert kinds(scene.lena).count("grant_ends") == 2


def test_a_reminder_that_comes_too_late_is_left_out(scene: Scene, ada: User) -> None:
    approve(submit(scene), ada)
    assert quota_requests.go_on(now=(WEEKS.end or NOON) - timedelta(hours=3)) == 1


def test_a_short_grant_and_one_that_is_renewed_need_no_reminder(scene: Scene, ada: User) -> None:
    approve(submit(scene, valid=Period(NOON, NOON + hours(20))), ada)
    first = submit(scene)
    approve(first, ada)
    first.refresh_from_db()
    approve(submit(scene, renews=first, valid=replace(WEEKS, end=NOON + timedelta(days=60))), ada)
    assert quota_requests.go_on(now=(WEEKS.end or NOON) - timedelta(days=7)) == 1  # the short one is over
