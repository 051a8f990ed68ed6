"""Every address below /api/v1/, walked as a stranger, a member of the team, its lead, and who decides.

For what is one team's: to a stranger it is not there; a member sees it and may not decide; nobody
reads another's messages; and a token of another team finds nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from pool.models import Membership, OutboxMessage, Pool, QuotaRequest, Reservation
from tests.portal.api.asking import BODY, later, problem, tomorrow
from tests.portal.api.test_matrix import USERS, is_action

REQUEST = {"team": "vision", "pool": "main", "cap_milli": 2000, "justification": "A paper of vision"}
#: What belongs to a team, by the part of its address that names it.
OWN = [one for one in USERS if "<uuid:pk>" in one or "<int:pk>" in one]
#: Only for who decides on quota and bookings.
DECIDERS = ["approvals", r"^pools/(?P<name>[a-z0-9-]{1,63})/promised$"]
#: Only for who runs the pool.
OPERATORS = [r"^pools/(?P<name>[a-z0-9-]{1,63})/defragmentation$", r"^pools/(?P<name>[a-z0-9-]{1,63})/room$"]
BODIES = {
    "/extend": {"duration": "PT1H"},
    "/deny": {"answer": "no"},
    "/room$": {"team": "vision", "duration": "PT1H", "ask": BODY["ask"]},
}


@pytest.fixture
def owned(api: Any, cast: Any, node: Any) -> dict[str, Any]:
    """A pending booking and a request of vision, and the message about each to the approver."""
    Pool.objects.update(approve_above_milli=100)
    booked = api(cast.lena).book(tomorrow(title="Plan of vision")).json()["id"]
    end = {"start": later(hours=-1), "end": later(days=30)}
    asked = api(cast.lena).post("/api/v1/quota/requests", REQUEST | end).json()["id"]
    message = OutboxMessage.objects.filter(recipient=cast.ada).latest("pk").pk
    return {"reservations": booked, "quota": asked, "inbox": message}


def address(pattern: str, owned: dict[str, Any]) -> str:
    kind = pattern.split("/", 1)[0]
    filled = pattern.replace("<uuid:pk>", str(owned.get(kind))).replace("<int:pk>", str(owned.get(kind)))
    return "/api/v1/" + filled.replace("(?P<name>[a-z0-9-]{1,63})", "main").strip("^$")


def ask(client: Any, pattern: str, owned: dict[str, Any]) -> Any:
    body = next((said for end, said in BODIES.items() if pattern.endswith(end)), {})
    at = address(pattern, owned)
    return client.post(at, body) if is_action(pattern) else client.get(at)


def unchanged() -> bool:
    return (Reservation.objects.get().state, QuotaRequest.objects.get().state) == (
        "pending_approval",
        "submitted",
    )


def test_what_a_team_has_is_walked_in_full() -> None:
    assert len(OWN) == 14


def test_to_a_stranger_and_to_a_token_of_another_team_nothing_is_there(
    api: Any, cast: Any, owned: dict[str, Any]
) -> None:
    Membership.objects.create(user=cast.lena, team=cast.speech, role="lead")
    for client in (api(cast.sam), api(cast.lena, team=cast.speech)):
        for pattern in OWN:
            problem(ask(client, pattern, owned), 404, "not_found")
    assert unchanged()


def test_lists_of_a_stranger_say_nothing_of_it(api: Any, cast: Any, owned: dict[str, Any]) -> None:
    lists = [one for one in USERS if "pk" not in one and "(?P" not in one and not is_action(one)]
    assert {"quota", "quota/requests", "waiting", "approvals", "inbox", "reservations"} <= set(lists)
    for pattern in lists:
        answer = api(cast.sam).get(address(pattern, owned))
        assert answer.status_code in (200, 403, 405), pattern
        for secret in (b"vision", b"lena", str(owned["reservations"]).encode()):
            assert secret not in answer.content, pattern


@pytest.mark.parametrize("who", ["milo", "lena"])
def test_members_and_leads_see_what_is_theirs_and_decide_nothing(
    api: Any, cast: Any, owned: dict[str, Any], who: str
) -> None:
    client = api(getattr(cast, who))
    for pattern in [one for one in OWN if not is_action(one)]:
        assert ask(client, pattern, owned).status_code == 200, pattern
    for pattern in [one for one in OWN if one.endswith(("/approve", "/deny"))]:
        problem(ask(client, pattern, owned), 403, "forbidden")
    for pattern in (*DECIDERS, *OPERATORS):
        problem(ask(client, pattern, owned), 403, "forbidden")
    problem(ask(client, "inbox/<int:pk>/read", owned), 404, "not_found")
    assert unchanged()


def test_a_member_takes_back_no_request_of_the_lead(api: Any, cast: Any, owned: dict[str, Any]) -> None:
    problem(ask(api(cast.milo), "quota/requests/<int:pk>/withdraw", owned), 403, "forbidden")
    assert unchanged()


def test_an_approver_decides_but_neither_runs_the_pool_nor_takes_what_is_the_teams(
    api: Any, cast: Any, owned: dict[str, Any]
) -> None:
    client = api(cast.ada)
    for pattern in DECIDERS:
        assert ask(client, pattern, owned).status_code == 200
    for pattern in OPERATORS:
        problem(ask(client, pattern, owned), 403, "forbidden")
    problem(ask(client, "quota/requests/<int:pk>/withdraw", owned), 403, "forbidden")
    for end in ("", "/events", "/explanation", "/extend", "/release", "/confirm"):
        problem(ask(client, f"reservations/<uuid:pk>{end}", owned), 404, "not_found")
    assert unchanged()


def test_a_token_of_the_own_team_decides_nothing_even_of_an_approver(
    api: Any, cast: Any, owned: dict[str, Any]
) -> None:
    Membership.objects.create(user=cast.ada, team=cast.vision, role="lead")
    client = api(cast.ada, team=cast.vision)
    for pattern in [one for one in OWN if one.endswith(("/approve", "/deny"))]:
        problem(ask(client, pattern, owned), 403, "forbidden")
    for pattern in (*DECIDERS, *OPERATORS):
        problem(ask(client, pattern, owned), 403, "forbidden")
    problem(client.post("/api/v1/quota", {}), 403, "forbidden")
    assert unchanged()


def test_ids_that_cannot_be_are_not_found(api: Any, cast: Any, owned: dict[str, Any]) -> None:
    absurd = dict.fromkeys(owned, 10**30) | {"reservations": owned["reservations"]}
    for pattern in [one for one in OWN if "<int:pk>" in one]:
        problem(ask(api(cast.ada), pattern, absurd), 404, "not_found")
