"""Every page, walked as a stranger, a member of the team, its lead, and who decides or operates.

What is one team's is not there for a stranger; what only some may do is refused to all others;
and what changes something takes a POST with the browser's own token.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from pool.models import OutboxMessage, Pool, QuotaRequest, Reservation
from pool.queries import clock
from portal.web.urls import urlpatterns
from tests.cast import Cast, SimNode
from tests.portal.web.people import book, browser
from tests.portal.web.test_quota import ask, days

pytestmark = pytest.mark.django_db

PAGES = {str(one.pattern): one.name for one in urlpatterns}

#: What belongs to one team or person.
OWN = [
    *("reservation", "explanation", "confirm", "extend", "release", "notice", "quota-request"),
    *("comment-request", "withdraw-request", "approve-request", "deny-request"),
    *("approve-booking", "deny-booking"),
]
DECIDERS = ["find-line", "quota-line", "promised", "approvals"]
OPERATORS = ["defragmentation"]
#: These change something, so that a link never does.
ACTIONS = [
    *("confirm", "extend", "release", "read-all", "comment-request", "withdraw-request"),
    *("approve-request", "deny-request", "approve-booking", "deny-booking"),
]
TYPED = {"text": "x", "answer": "x", "version": "1", "by": "60", "key": "k", "cap": "1"} | days(0, 1)


@pytest.fixture
def owned(cast: Cast, node: SimNode) -> dict[str, Any]:
    """A pending booking and a request of vision, and a message to its lead."""
    Pool.objects.update(approve_above_milli=100)
    row = book(cast.lena, title="Plan of vision", start=clock.now() + timedelta(hours=5))
    asked = ask(browser(cast.lena))
    message = OutboxMessage.objects.create(
        recipient=cast.lena, kind="budget", key="k", created_at=clock.now()
    )
    return {"reservations": row.pk, "approvals": row.pk, "quota": asked.pk, "inbox": message.pk}


def address(name: str, owned: dict[str, Any]) -> str:
    pattern = next(one for one, known in PAGES.items() if known == name)
    pk = str(owned.get(pattern.split("/", 1)[0], ""))
    for part, value in (
        *(("<uuid:pk>", pk), ("<int:pk>", pk), ("<str:pool>", "main"), ("<str:team>", "vision")),
        ("<str:name>", "main"),
    ):
        pattern = pattern.replace(part, value)
    return f"/{pattern}"


def send(client: Client, name: str, owned: dict[str, Any]) -> Any:
    at = address(name, owned)
    return client.post(at, TYPED) if name in ACTIONS else client.get(at)


@pytest.fixture
def unchanged(owned: dict[str, Any]) -> Iterator[None]:
    """After the test nobody has decided, ended or read anything."""
    yield
    assert Reservation.objects.get().state == "pending_approval"
    assert QuotaRequest.objects.get().state == "submitted"
    assert not QuotaRequest.objects.get().comments.exists()
    assert OutboxMessage.objects.get(pk=owned["inbox"]).read_at is None


def test_all_that_is_a_teams_own_is_walked() -> None:
    with_id = {name for pattern, name in PAGES.items() if "<uuid:pk>" in pattern or "<int:pk>" in pattern}
    assert with_id == set(OWN)
    assert {*DECIDERS, *OPERATORS, *ACTIONS} <= set(PAGES.values())


def test_to_a_stranger_nothing_of_it_is_there(cast: Cast, owned: dict[str, Any], unchanged: None) -> None:
    for name in OWN:
        assert send(browser(cast.sam), name, owned).status_code == 404, name


def test_pages_of_a_stranger_do_not_name_it(cast: Cast, owned: dict[str, Any], unchanged: None) -> None:
    pages = [
        name for pattern, name in PAGES.items() if "<" not in pattern and name not in (*ACTIONS, "login")
    ]
    assert {"overview", "reservations", "quota", "quota-requests", "ask-quota", "inbox", "book"} <= set(pages)
    for name in pages:
        answer = browser(cast.sam).get(address(name, owned))
        for secret in (b"Vision", b"of vision", b"lena", str(owned["reservations"]).encode()):
            assert secret not in answer.content, name


@pytest.mark.parametrize("who", ["milo", "lena"])
def test_the_team_sees_it_and_decides_nothing(
    cast: Cast, owned: dict[str, Any], unchanged: None, who: str
) -> None:
    client = browser(getattr(cast, who))
    for name in ("reservation", "explanation", "quota-request"):
        assert send(client, name, owned).status_code == 200, name
    for name in ("approve-request", "deny-request", "approve-booking", "deny-booking", *DECIDERS, *OPERATORS):
        assert send(client, name, owned).status_code == 403, name


def test_a_member_reads_no_message_of_the_lead_and_takes_back_no_request(
    cast: Cast, owned: dict[str, Any], unchanged: None
) -> None:
    assert send(browser(cast.milo), "notice", owned).status_code == 404
    assert send(browser(cast.milo), "withdraw-request", owned).status_code == 403


def test_an_approver_sees_what_is_to_be_decided_and_nothing_more(
    cast: Cast, owned: dict[str, Any], unchanged: None
) -> None:
    client = browser(cast.ada)
    for name in ("quota-request", "quota", "promised", "approvals", "quota-line"):
        assert send(client, name, owned).status_code == 200, name
    for name in ("reservation", "explanation", "confirm", "extend", "release", "notice"):
        assert send(client, name, owned).status_code == 404, name
    for name in ("withdraw-request", *OPERATORS):
        assert send(client, name, owned).status_code == 403, name


def test_no_link_changes_anything(cast: Cast, owned: dict[str, Any], unchanged: None) -> None:
    for who in (cast.lena, cast.ada):
        for name in ACTIONS:
            assert browser(who).get(address(name, owned), TYPED).status_code == 405, name


def test_a_post_without_the_browsers_token_is_refused(
    cast: Cast, owned: dict[str, Any], unchanged: None
) -> None:
    for who in (cast.lena, cast.ada):
        client = Client(enforce_csrf_checks=True)
        client.force_login(who)
        for name in (*ACTIONS, "ask-quota", "quota-line", "make-room", "defragmentation", "book"):
            assert client.post(address(name, owned), TYPED).status_code == 403, name
