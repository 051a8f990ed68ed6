"""Clients of the REST door, each with a token of one of the cast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def api(db: None) -> Callable[..., Any]:
    """`api(lena)` asks as Lena; `api(lena, team=vision)` with a token that is bound to a team."""
    # Read before Django is set up, so what needs it is imported here.
    from pool.queries import clock
    from pool.services import tokens
    from tests.portal.api.asking import Api

    def make(user: Any, team: Any = None) -> Api:
        _, raw = tokens.make(actor=None, user=user, team=team, name="test", now=clock.real_now())
        return Api(raw)

    return make


@pytest.fixture
def nothing_written(db: None) -> Iterator[None]:
    """After the test there is no reservation, no event of one, no key."""
    from pool.models import Event, IdempotencyKey, Reservation

    yield
    assert not Reservation.objects.exists()
    assert not Event.objects.filter(verb__startswith="reservation.").exists()
    assert not IdempotencyKey.objects.exists()
