"""The only clock of the portal: `now()` for decisions, `real_now()` for receipt and expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.conf import settings

from pool.models import ClockOffset


def real_now() -> datetime:
    """The time of this machine, UTC.

    For what a moved demo clock must not touch: receipt of reports, leases of
    lanes, expiry of tokens and sessions.
    """
    return datetime.now(UTC)


def now() -> datetime:
    """The time that bookings go by, UTC; in a demo the offset row moves it."""
    return real_now() + offset()


def offset() -> timedelta:
    """How far the clock is moved: zero but in the database of a demo."""
    if not settings.DEMO:
        return timedelta()
    seconds = ClockOffset.objects.values_list("seconds", flat=True).first()
    return timedelta(seconds=seconds or 0)
