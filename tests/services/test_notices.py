"""Telling people what happened, once."""

from __future__ import annotations

import pytest

from pool.core.errors import Code
from pool.models import Membership, OutboxMessage, Team, User
from pool.services import notices
from tests.scene import NOON, Scene, make_scene, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def test_each_person_gets_one_message(scene: Scene) -> None:
    told = notices.tell([scene.lena, scene.milo, scene.milo], "evicted", key="evicted:1", now=NOON)
    assert told == 2
    assert set(OutboxMessage.objects.values_list("recipient", "kind", "try_at")) == {
        (scene.lena.pk, "evicted", NOON),
        (scene.milo.pk, "evicted", NOON),
    }


def test_who_was_told_of_a_matter_is_not_told_again(scene: Scene) -> None:
    notices.tell([scene.lena], "evicted", key="evicted:1", now=NOON)
    assert notices.tell([scene.lena, scene.milo], "evicted", key="evicted:1", now=NOON) == 1
    assert notices.tell([scene.lena], "evicted", key="evicted:2", now=NOON) == 1
    assert OutboxMessage.objects.count() == 3


def test_service_accounts_and_those_who_left_are_not_told(scene: Scene) -> None:
    gone = User.objects.create(username="gone", is_active=False)
    bot = User.objects.create(username="bot", kind=User.Kind.SERVICE)
    assert notices.tell([gone, bot], "evicted", key="evicted:1", now=NOON) == 0


def test_data_is_kept_as_it_was_given(scene: Scene) -> None:
    notices.tell([scene.lena], "evicted", key="k", now=NOON, data={"at": NOON.isoformat(), "why": None})
    assert OutboxMessage.objects.get().data == {"at": NOON.isoformat(), "why": None}


def test_a_key_that_is_too_long_is_a_mistake(scene: Scene) -> None:
    with pytest.raises(ValueError, match="too long"):
        notices.tell([scene.lena], "evicted", key="k" * 121, now=NOON)


def test_a_subteam_without_a_lead_is_led_from_above(scene: Scene) -> None:
    child = Team.objects.create(name="child", parent=scene.vision)
    assert notices.leads(child) == notices.leads(scene.vision) == [scene.lena]
    chief = User.objects.create(username="chief")
    Membership.objects.create(team=child, user=chief, role="lead")
    assert notices.leads(child) == [chief]


def test_admins_decide_where_nobody_is_an_approver(scene: Scene) -> None:
    ada = User.objects.create(username="ada", roles=["admin"])
    assert notices.approvers() == [ada]
    anna = User.objects.create(username="anna", roles=["approver"])
    assert notices.approvers() == [anna]


def test_only_ones_own_message_is_read_and_only_once(scene: Scene) -> None:
    notices.tell([scene.lena], "evicted", key="k", now=NOON)
    message = OutboxMessage.objects.get()
    refused(Code.NOT_FOUND, lambda: notices.read(actor=scene.milo, message_id=message.pk, now=NOON))
    assert notices.read(actor=scene.lena, message_id=message.pk, now=NOON).read_at == NOON
    assert notices.read_all(actor=scene.lena, now=NOON) == 0


def test_all_of_ones_own_messages_are_read(scene: Scene) -> None:
    for key in ("a", "b"):
        notices.tell([scene.lena, scene.milo], "evicted", key=key, now=NOON)
    assert notices.read_all(actor=scene.lena, now=NOON) == 2
    assert OutboxMessage.objects.filter(read_at=None).count() == 2
