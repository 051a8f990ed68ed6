"""What the tests of pages share: browsers of the cast, and a booking that is active on its node.

Models are imported where they are used: this file is read before Django is set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django.test import Client

    from pool.models import Reservation, User
    from tests.cast import Cast, SimNode


def _browser(user: User) -> Client:
    from tests.portal.web.people import browser

    return browser(user)


@pytest.fixture
def milos(milo: User) -> Client:
    return _browser(milo)


@pytest.fixture
def lenas(lena: User) -> Client:
    return _browser(lena)


@pytest.fixture
def sams(sam: User) -> Client:
    return _browser(sam)


@pytest.fixture
def ottos(otto: User) -> Client:
    return _browser(otto)


@pytest.fixture
def active(cast: Cast, node: SimNode) -> Reservation:
    """Milo's slice, carved and reported."""
    from tests.portal.web.people import book

    made = book(cast.milo)
    node.follow()
    made.refresh_from_db()
    assert made.state == "active"
    return made
