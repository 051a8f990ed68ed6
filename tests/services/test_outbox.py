"""Messages go out by mail: once, in the recipient's words, again after a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail

from pool.models import OutboxMessage, User
from pool.services import notices, outbox
from tests.scene import NOON, Scene, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    User.objects.filter(pk=made.lena.pk).update(email="lena@example.com")
    notices.tell([User.objects.get(pk=made.lena.pk)], "strange", key="k", now=NOON)
    return made


@pytest.fixture(autouse=True)
def way(settings: Any) -> Any:
    settings.MAIL = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    return settings


def test_it_is_sent_once(scene: Scene) -> None:
    assert outbox.deliver(now=NOON) == outbox.Sent(sent=1)
    assert outbox.deliver(now=NOON + timedelta(days=1)) == outbox.Sent()
    (letter,) = mail.outbox
    assert letter.to == ["lena@example.com"]
    assert f"/inbox/{OutboxMessage.objects.get().pk}/" in letter.body
    assert OutboxMessage.objects.get().mailed_at == NOON


def test_without_an_address_the_inbox_must_do(scene: Scene) -> None:
    notices.tell([scene.milo], "strange", key="k", now=NOON)
    assert outbox.deliver(now=NOON).sent == 2
    assert len(mail.outbox) == 1


def test_to_who_has_left_nothing_is_sent(scene: Scene) -> None:
    User.objects.filter(pk=scene.lena.pk).update(is_active=False)
    assert outbox.deliver(now=NOON).sent == 1
    assert mail.outbox == []


def test_nothing_goes_out_while_no_server_is_set(scene: Scene, settings: Any) -> None:
    settings.MAIL = False
    assert outbox.deliver(now=NOON) == outbox.Sent()
    assert OutboxMessage.objects.get().mailed_at is None


def test_what_failed_is_tried_again_later_and_later(scene: Scene, settings: Any) -> None:
    settings.EMAIL_BACKEND = "tests.services.test_outbox.Broken"
    at = NOON
    for minutes in (1, 2, 4):
        assert outbox.deliver(now=at).failed == 1
        message = OutboxMessage.objects.get()
        assert message.try_at == at + timedelta(minutes=minutes)
        assert message.error == "ConnectionRefusedError: nobody there"
        at = message.try_at
        assert outbox.deliver(now=at - timedelta(seconds=1)) == outbox.Sent()
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert outbox.deliver(now=at).sent == 1
    assert OutboxMessage.objects.get().error == ""


def test_a_server_that_is_gone_is_asked_once_a_run(scene: Scene, settings: Any) -> None:
    User.objects.filter(pk=scene.milo.pk).update(email="milo@example.com")
    notices.tell([User.objects.get(pk=scene.milo.pk)], "strange", key="k", now=NOON)
    settings.EMAIL_BACKEND = "tests.services.test_outbox.Broken"
    assert outbox.deliver(now=NOON) == outbox.Sent(failed=1)


def test_one_bad_message_does_not_hold_up_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.NOTICE_WORDS = "tests.services.test_outbox.words"
    notices.tell(list(User.objects.filter(username="lena")), "fine", key="l", now=NOON)
    assert outbox.deliver(now=NOON) == outbox.Sent(sent=1, failed=1)


def test_what_is_too_old_is_left_to_the_inbox(scene: Scene) -> None:
    later = NOON + timedelta(days=3, seconds=1)
    assert outbox.deliver(now=later) == outbox.Sent(given_up=1)
    assert outbox.deliver(now=later) == outbox.Sent()
    assert mail.outbox == []


def test_what_another_process_has_taken_is_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_take", lambda message, now: False)
    assert outbox.deliver(now=NOON) == outbox.Sent()


def words(message: OutboxMessage) -> tuple[str, str]:
    if message.kind == "strange":
        raise KeyError("no words")
    return "Two\nlines", "Text"


class Broken:
    """A server that is not there."""

    def __init__(self, **_: Any) -> None:
        pass

    def open(self) -> None:
        raise ConnectionRefusedError("nobody there")

    def close(self) -> None:
        pass
