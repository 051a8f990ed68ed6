"""The only way to a row on somebody's behalf: the getter is the permission.

What a user may not see does not exist for them (NOT_FOUND); what they see but
may not do is FORBIDDEN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.db.models import Model, QuerySet

from pool.core.errors import Code, Refusal
from pool.core.roles import Action, allows
from pool.models import Gpu, Node, Pool, Reservation, Team, User
from pool.queries import inventory, reservations, teams

if TYPE_CHECKING:
    from typing import TypeVar

    from django.contrib.auth.models import AnonymousUser

    Row = TypeVar("Row", bound=Model)

#: None is the portal itself: lanes, and commands typed on its own machine.
Actor = User | None


def reservation(user: User | AnonymousUser, pk: UUID | str) -> Reservation:
    """The reservation, if `user` may see it."""
    try:
        key = pk if isinstance(pk, UUID) else UUID(pk)
    except ValueError:
        raise Refusal(Code.NOT_FOUND) from None
    return _only(reservations.visible_to(user).filter(pk=key))


def pool(user: User | AnonymousUser, name: str) -> Pool:
    """The pool of that name; everybody who is signed in sees every pool."""
    return _only(inventory.pools_visible_to(user).filter(name=_text(name)))


def node(user: User | AnonymousUser, name: str) -> Node:
    """The node of that name; everybody who is signed in sees every node."""
    return _only(inventory.nodes_visible_to(user).filter(name=_text(name)))


def gpu(user: User | AnonymousUser, uuid: str) -> Gpu:
    """The GPU of that UUID; everybody who is signed in sees every GPU."""
    return _only(inventory.gpus_visible_to(user).filter(uuid=_text(uuid)))


def team(user: User | AnonymousUser, name: str) -> Team:
    """The team of that name, if `user` is in it, above it, or sees all."""
    return _only(teams.visible_to(user).filter(name=_text(name)))


def team_to_book(user: User | AnonymousUser, name: str) -> Team:
    """The team, if `user` may book for it; NOT_FOUND when unseen, FORBIDDEN when only seen."""
    # Every booking passes here, so the roles are read once.
    found = Team.objects.select_related("parent").filter(name=_text(name)).first()
    role = None if found is None else teams.reach(user).get(found.pk)
    if found is None or not allows(Action.BOOK, role, teams.global_roles(user)):
        team(user, name)
        raise Refusal(Code.FORBIDDEN, action=Action.BOOK.value)
    return found


def can(user: User | AnonymousUser | None, action: Action, team: Team | None = None) -> bool:
    """Whether `user` may do `action`, for `team` where the action is a team's. None: the portal itself."""
    if user is None:
        return True
    role = teams.reach(user).get(team.pk) if team is not None else None
    return allows(action, role, teams.global_roles(user))


def require(user: User | AnonymousUser | None, action: Action, team: Team | None = None) -> None:
    """Raise FORBIDDEN unless `can`."""
    if not can(user, action, team):
        raise Refusal(Code.FORBIDDEN, action=action.value)


def _only(rows: QuerySet[Row]) -> Row:
    row = rows.first()
    if row is None:
        raise Refusal(Code.NOT_FOUND)
    return row


def _text(name: str) -> str:
    """Names come from addresses; PostgreSQL takes no NUL."""
    return name.replace("\0", "")
