"""Browsers of the cast and bookings for the tests of pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.test import Client

from pool.core.shapes import MigAsk
from pool.models import Reservation, User
from pool.queries import clock
from pool.services import reservations


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def book(
    user: User, *, title: str = "Finetune", profile: str = "1g.10gb", count: int = 1, **over: Any
) -> Reservation:
    """A booking of vision in pool main, from now for two hours unless told otherwise."""
    values: dict[str, Any] = {
        "actor": user,
        "team": "vision",
        "pool": "main",
        "title": title,
        "ask": MigAsk(profile=profile, count=count),
        "duration": timedelta(hours=2),
        "now": clock.now(),
    }
    return reservations.book(**values | over)


def page_of(answer: Any) -> str:
    """The page's markup without runs of white space, which mean nothing in it."""
    return " ".join(answer.content.decode().split())
