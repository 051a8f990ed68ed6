"""services.tokens: who may make them, how long they work, and what ends them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.errors import Code, Refusal
from pool.models import Event, Node, NodeToken, Team, Token, User
from pool.queries import clock
from pool.services import secrets, tokens
from tests.cast import Cast


def make(user: User, team: Team | None = None, actor: User | None = None, **more: Any) -> tuple[Token, str]:
    values: dict[str, Any] = {"name": "ci", "days": 90, "now": clock.real_now()}
    return tokens.make(actor=actor or user, user=user, team=team, **values | more)


def refused(user: User, **more: Any) -> Code:
    with pytest.raises(Refusal) as caught:
        make(user, **more)
    assert not Token.objects.exists()
    return caught.value.code


def test_a_token_proves_its_user(cast: Cast) -> None:
    made, raw = make(cast.milo, cast.vision)
    token = tokens.authenticate(raw, clock.real_now())
    assert token is not None
    assert (token.pk, token.user, token.team) == (made.pk, cast.milo, cast.vision)


def test_only_a_peppered_hash_is_kept(cast: Cast, settings: Any) -> None:
    made, raw = make(cast.milo)
    assert raw.split("_")[2] not in repr([*Token.objects.values(), *Event.objects.values()])
    assert made.secret_hash not in (secrets.plain(raw), secrets.plain(raw.split("_")[2]))
    settings.TOKEN_PEPPER = "another-pepper-that-is-long-enough"
    assert tokens.authenticate(raw, clock.real_now()) is None


def test_another_secret_or_id_proves_nothing(cast: Cast) -> None:
    _made, raw = make(cast.milo)
    kind, public_id, secret = raw.split("_")
    for wrong in (
        f"{kind}_{public_id}_{'0' * 48}",
        f"{kind}_{'0' * 12}_{secret}",
        f"gpn_{public_id}_{secret}",
        raw.upper(),
        f"{raw} ",
        "",
    ):
        assert tokens.authenticate(wrong, clock.real_now()) is None


def test_a_token_ends_at_its_instant(cast: Cast) -> None:
    now = clock.real_now()
    made, raw = make(cast.milo, days=1, now=now)
    assert made.expires_at == now + timedelta(days=1)
    assert tokens.authenticate(raw, made.expires_at - timedelta(microseconds=1)) is not None
    assert tokens.authenticate(raw, made.expires_at) is None


@pytest.mark.parametrize("days", [0, -1, 366, 10**9])
def test_it_lives_from_a_day_to_a_year(cast: Cast, days: int) -> None:
    assert refused(cast.milo, days=days) == Code.INVALID


def test_a_token_of_somebody_who_is_gone_proves_nothing(cast: Cast) -> None:
    _made, raw = make(cast.milo)
    User.objects.filter(pk=cast.milo.pk).update(is_active=False)
    assert tokens.authenticate(raw, clock.real_now()) is None


def test_a_lead_makes_one_for_the_teams_service_account(cast: Cast) -> None:
    _made, raw = make(cast.robot, cast.vision, actor=cast.lena)
    assert tokens.authenticate(raw, clock.real_now()) is not None
    event = Event.objects.get(verb="token.made")
    assert (event.actor, event.team_id, event.after["user"]) == (cast.lena, cast.vision.pk, "robot")


def test_a_member_makes_none_for_another(cast: Cast) -> None:
    assert refused(cast.robot, team=cast.vision, actor=cast.milo) == Code.FORBIDDEN


def test_a_lead_makes_none_that_reaches_beyond_the_team(cast: Cast) -> None:
    assert refused(cast.robot, team=None, actor=cast.lena) == Code.FORBIDDEN
    assert refused(cast.sam, team=cast.vision, actor=cast.lena) == Code.INVALID
    assert refused(cast.sam, team=cast.speech, actor=cast.lena) == Code.FORBIDDEN


def test_nobody_makes_a_persons_token_but_that_person(cast: Cast) -> None:
    """Or a lead could act as an admin who is in the team, and an admin as anybody."""
    assert refused(cast.milo, team=cast.vision, actor=cast.lena) == Code.FORBIDDEN
    assert refused(cast.milo, team=cast.vision, actor=cast.anna) == Code.FORBIDDEN


def test_a_token_is_bound_only_to_a_team_of_its_user(cast: Cast) -> None:
    assert refused(cast.milo, team=cast.speech) == Code.INVALID


@pytest.mark.parametrize("name", ["", "  ", "x" * 81])
def test_a_token_has_a_name(cast: Cast, name: str) -> None:
    assert refused(cast.milo, name=name) == Code.INVALID


def test_use_is_noted_at_most_once_a_minute(cast: Cast) -> None:
    made, raw = make(cast.milo)
    first = clock.real_now()

    def used(seconds: float) -> Any:
        tokens.authenticate(raw, first + timedelta(seconds=seconds))
        return Token.objects.get(pk=made.pk).last_used_at

    assert used(0) == first
    with CaptureQueriesContext(connection) as queries:
        assert used(59) == first
    assert not [query for query in queries if query["sql"].startswith("UPDATE")]
    assert used(60) == first + timedelta(seconds=60)


# --- Revoke ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "may"), [("milo", True), ("lena", True), ("anna", True), ("sam", False), ("otto", False)]
)
def test_owner_lead_and_admin_end_a_token_at_once(cast: Cast, who: str, may: bool) -> None:
    made, raw = make(cast.milo, cast.vision)
    actor = getattr(cast, who)
    if may:
        tokens.revoke(actor=actor, public_id=made.public_id, now=clock.real_now())
    else:
        with pytest.raises(Refusal) as caught:
            tokens.revoke(actor=actor, public_id=made.public_id, now=clock.real_now())
        assert caught.value.code == Code.NOT_FOUND
    assert (tokens.authenticate(raw, clock.real_now()) is None) == may


def test_ending_it_twice_changes_nothing(cast: Cast) -> None:
    made, _raw = make(cast.milo)
    first = tokens.revoke(actor=cast.milo, public_id=made.public_id, now=clock.real_now())
    second = tokens.revoke(actor=cast.milo, public_id=made.public_id, now=clock.real_now())
    assert first.revoked_at == second.revoked_at
    assert Event.objects.filter(verb="token.revoked").count() == 1


# --- Nodes -----------------------------------------------------------------------


def test_a_nodes_token_proves_its_node_until_it_is_revoked(cast: Cast) -> None:
    node = Node.objects.create(pool=cast.main, name="n1", machine_id="machine-1")
    parts = secrets.make(secrets.NODE)
    row = NodeToken.objects.create(
        node=node, public_id=parts.public_id, secret_hash=secrets.plain(parts.secret), created_at=clock.now()
    )
    assert tokens.authenticate_node(str(parts)) == node
    assert tokens.authenticate_node(f"gpn_{parts.public_id}_{'0' * 48}") is None
    row.revoked_at = clock.now()
    row.save()
    assert tokens.authenticate_node(str(parts)) is None


def test_a_users_token_opens_no_nodes_door_and_the_other_way_round(cast: Cast) -> None:
    _made, raw = make(cast.milo)
    assert tokens.authenticate_node(raw) is None
    assert tokens.authenticate(str(secrets.make(secrets.NODE)), clock.real_now()) is None
