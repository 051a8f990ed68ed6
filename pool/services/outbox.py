"""Sends messages by mail, with retry and back-off; the inbox has them whether or not this works.

The words are the portal's (settings.NOTICE_WORDS), the way out is Django's mail backend.
Nothing is sent within a transaction: a message is taken for a while, sent, and then
marked, so a process that dies in between may send one twice, and never loses one.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.core import mail
from django.utils.module_loading import import_string

from pool.models import OutboxMessage

if TYPE_CHECKING:
    from django.core.mail.backends.base import BaseEmailBackend

log = logging.getLogger(__name__)

#: One run ends itself after this; the next follows within seconds.
RUN_SECONDS = 4.0
BATCH = 50
#: Whoever took a message and died gives it back after this.
TAKEN = timedelta(minutes=5)
#: A message that could not be sent is tried again after this, doubled each time, at most six hours.
RETRY = timedelta(minutes=1)
MOST_RETRY = timedelta(hours=6)
#: Older than this nobody needs it by mail any more; the inbox keeps it.
GIVE_UP = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Sent:
    """What one run did. `failed` are tried again, `given_up` never."""

    sent: int = 0
    failed: int = 0
    given_up: int = 0


def deliver(*, now: datetime) -> Sent:
    """Send what is due, oldest first; nothing while no mail server is set (settings.MAIL).

    Whoever has no address has read it in the inbox: the message counts as handed over. A server
    that does not answer ends the run, since it would not answer for the next one either.
    """
    if not settings.MAIL:
        return Sent()
    until = time.monotonic() + RUN_SECONDS
    sent = failed = given_up = 0
    due = OutboxMessage.objects.filter(mailed_at=None, try_at__lte=now).order_by("try_at", "pk")
    with _Way() as way:
        for message in due.select_related("recipient", "reservation__team", "request__team")[:BATCH]:
            if time.monotonic() > until:
                break
            if now - message.created_at > GIVE_UP:
                given_up += _write(message, try_at=None, error=message.error or "too old")
            elif _take(message, now):
                try:
                    way.send(message)
                except Exception as error:
                    log.warning("outbox.failed", exc_info=error, extra={"notice": message.pk})
                    _put_back(message, error, now)
                    failed += 1
                    if isinstance(error, OSError) and not way.is_open:
                        break
                else:
                    sent += _write(message, mailed_at=now, error="")
    return Sent(sent, failed, given_up)


class _Way:
    """One connection for all messages of a run, opened with the first."""

    def __init__(self) -> None:
        self._backend: BaseEmailBackend | None = None

    @property
    def is_open(self) -> bool:
        return self._backend is not None

    def __enter__(self) -> _Way:
        return self

    def __exit__(self, *_: object) -> None:
        if self._backend is not None:
            self._backend.close()

    def send(self, message: OutboxMessage) -> None:
        """Raises whatever the words or the backend do; after that the next message opens it anew."""
        address = message.recipient.email.strip()
        # Who has left meanwhile reads nothing here any more, in the inbox or by mail.
        if not address or not message.recipient.is_active:
            return
        subject, body = import_string(settings.NOTICE_WORDS)(message)
        if self._backend is None:
            backend = mail.get_connection(fail_silently=False)
            backend.open()
            self._backend = backend
        letter = mail.EmailMessage(
            # A header has one line.
            " ".join(subject.split()),
            body,
            settings.DEFAULT_FROM_EMAIL,
            [address],
            headers={"Auto-Submitted": "auto-generated"},
        )
        try:
            self._backend.send_messages([letter])
        except Exception:
            broken, self._backend = self._backend, None
            broken.close()
            raise


def _take(message: OutboxMessage, now: datetime) -> bool:
    """Whether it is ours: of two processes that see it due, one gets it."""
    seen = OutboxMessage.objects.filter(pk=message.pk, mailed_at=None, try_at=message.try_at)
    return seen.update(try_at=now + TAKEN) == 1


def _put_back(message: OutboxMessage, error: Exception, now: datetime) -> None:
    after = min(RETRY * 2 ** min(message.tries, 12), MOST_RETRY)
    text = f"{type(error).__name__}: {error}".replace("\0", "")[:200]
    _write(message, tries=message.tries + 1, try_at=now + after, error=text)


def _write(message: OutboxMessage, **values: object) -> int:
    return OutboxMessage.objects.filter(pk=message.pk).update(**values)
