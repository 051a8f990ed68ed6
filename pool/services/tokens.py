"""API tokens of people and service accounts, and the check of a node's token.

How long a token lives goes by real time: `now` in here is `clock.real_now()`.
Node tokens are made where a node joins (inventory).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.models import Node, NodeToken, Team, Token, User
from pool.queries import access, teams
from pool.services import events, locks, secrets

DEFAULT_DAYS = 90
MOST_DAYS = 365
#: `last_used_at` is no finer than this, so that reading does not mean writing.
USED_EVERY = timedelta(minutes=1)


@locks.use_case
def make(
    *,
    actor: User | None,
    user: User,
    team: Team | None,
    name: str,
    days: int = DEFAULT_DAYS,
    now: datetime,
) -> tuple[Token, str]:
    """A token with which `user` acts, bound to `team` or not; the text is shown this once.

    A person's token is made by that person alone, or somebody could act in
    their name. One for a service account of `team` takes the right to manage
    the team's tokens. `days` is 1 to 365. Refuses with INVALID, FORBIDDEN.
    """
    if not 1 <= days <= MOST_DAYS:
        raise invalid("/days", "too_small" if days < 1 else "too_large", min=1, max=MOST_DAYS)
    if not name.strip() or len(name) > 80:
        raise invalid("/name", "too_long" if name.strip() else "required", max=80)
    if team is not None and team.pk not in teams.reach(user):
        raise invalid("/team", "not_a_member")
    if actor is not None and actor.pk != user.pk:
        if user.kind != User.Kind.SERVICE or team is None:
            raise Refusal(Code.FORBIDDEN, action=Action.MANAGE_TOKENS.value)
        access.require(actor, Action.MANAGE_TOKENS, team)
    parts = secrets.make(secrets.USER)
    token = Token.objects.create(
        public_id=parts.public_id,
        secret_hash=secrets.peppered(parts.secret),
        user=user,
        team=team,
        name=name.strip(),
        created_at=now,
        expires_at=now + timedelta(days=days),
    )
    events.record("token.made", actor=actor, now=now, team_id=token.team_id, after=_told(token))
    return token, str(parts)


@locks.use_case
def revoke(*, actor: User | None, public_id: str, now: datetime) -> Token:
    """End a token at once; ending it again changes nothing. NOT_FOUND when it is not the actor's to end."""
    token = Token.objects.select_related("user", "team").filter(public_id=public_id).first()
    if token is None or not _may_revoke(actor, token):
        raise Refusal(Code.NOT_FOUND)
    if token.revoked_at is None:
        token.revoked_at = now
        token.save(update_fields=["revoked_at"])
        events.record("token.revoked", actor=actor, now=now, team_id=token.team_id, after=_told(token))
    return token


def authenticate(raw: str, now: datetime) -> Token | None:
    """The token (with its user and team) that `raw` proves; None for any other text.

    Also None when it has expired or was revoked, or its user is inactive.
    """
    parts = secrets.parse(raw, secrets.USER)
    if parts is None:
        return None
    token = Token.objects.select_related("user", "team").filter(public_id=parts.public_id).first()
    known = token.secret_hash if token else ""
    if not secrets.same(secrets.peppered(parts.secret), known) or token is None:
        return None
    if token.revoked_at is not None or token.expires_at <= now or not token.user.is_active:
        return None
    _note_use(token, now)
    return token


def authenticate_node(raw: str) -> Node | None:
    """The node (with its pool) whose unrevoked token `raw` is; None for any other text."""
    parts = secrets.parse(raw, secrets.NODE)
    if parts is None:
        return None
    found = NodeToken.objects.select_related("node__pool").filter(public_id=parts.public_id).first()
    known = found.secret_hash if found else ""
    if not secrets.same(secrets.plain(parts.secret), known) or found is None or found.revoked_at is not None:
        return None
    return found.node


def _may_revoke(actor: User | None, token: Token) -> bool:
    own = actor is not None and actor.pk == token.user_id
    return own or access.can(actor, Action.MANAGE_TOKENS, token.team)


def _note_use(token: Token, now: datetime) -> None:
    if token.last_used_at is not None and now - token.last_used_at < USED_EVERY:
        return
    # Asked again in the statement: of many requests at once, one writes.
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USED_EVERY)
    if Token.objects.filter(stale, pk=token.pk).update(last_used_at=now):
        token.last_used_at = now


def _told(token: Token) -> dict[str, str]:
    return {
        "token": token.public_id,
        "user": token.user.get_username(),
        "name": token.name,
        "expires_at": token.expires_at.isoformat(),
    }
