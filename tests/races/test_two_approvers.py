"""Two approvers at once: without the lock both decide, with it the first wins and the second is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code
from pool.core.period import Period
from pool.models import Pool, QuotaGrant, QuotaRequest, User
from pool.services import approvals, quota_requests
from pool.services.quota_requests import Amounts
from tests.races.runners import codes, together, without_the_lock
from tests.scene import NOON, WHOLE, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scene() -> Scene:
    made = make_scene(cap=4000, guaranteed=0)
    add_node(made.pool, "a", mig_gpus=0, whole_gpus=2)
    return made


@pytest.fixture
def two(scene: Scene) -> list[User]:
    return [User.objects.create(username=name, roles=["approver"]) for name in ("ada", "ben")]


def ask(scene: Scene) -> QuotaRequest:
    return quota_requests.submit(
        actor=scene.lena,
        team=scene.vision,
        pool=scene.pool,
        amounts=Amounts(0, 1000),
        valid=Period(NOON, NOON + timedelta(days=9)),
        justification="A paper",
        now=NOON,
    )


def both_decide(row: QuotaRequest, two: list[User]) -> list[Any]:
    yes, no = two
    return together(
        lambda: quota_requests.approve(actor=yes, request_id=row.pk, now=NOON),
        lambda: quota_requests.deny(actor=no, request_id=row.pk, answer="No", now=NOON),
    )


def test_without_the_lock_one_says_yes_and_one_no(
    scene: Scene, two: list[User], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ask(scene)
    without_the_lock(monkeypatch, 2)
    assert codes(both_decide(row, two)) == {"ok": 2}


def test_on_a_request_the_first_decides_and_the_second_hears_who_did(scene: Scene, two: list[User]) -> None:
    row = ask(scene)
    results = both_decide(row, two)
    assert codes(results) == {"ok": 1, Code.STALE: 1}
    row.refresh_from_db()
    (refusal,) = (one for one in results if hasattr(one, "code"))
    assert refusal.data["decided_by"] == row.decided_by.get_username()  # type: ignore[union-attr]
    assert QuotaGrant.objects.exists() is (row.state == "active")


def test_on_a_booking_the_first_decides_and_the_second_hears_who_did(scene: Scene, two: list[User]) -> None:
    Pool.objects.update(approve_above_milli=100)
    row = scene.book(WHOLE, start=NOON + hours(5))
    yes, no = two
    results = together(
        lambda: approvals.approve(actor=yes, reservation_id=row.pk, now=NOON),
        lambda: approvals.deny(actor=no, reservation_id=row.pk, answer="No", now=NOON),
    )
    assert codes(results) == {"ok": 1, Code.STALE: 1}
    row.refresh_from_db()
    assert row.state == ("scheduled" if row.decided_by == yes else "denied")
