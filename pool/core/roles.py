"""Who may do what: one table of actions against team and global roles.

A role in a team also counts in its subteams; finding out which role somebody
has in a team is the queries' work. Which rows are seen is decided there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class TeamRole(StrEnum):
    MEMBER = "member"
    LEAD = "lead"


class GlobalRole(StrEnum):
    #: Inventory: nodes, GPUs, what physically occupies them.
    OPERATOR = "operator"
    #: Quota.
    APPROVER = "approver"
    ADMIN = "admin"


class Action(StrEnum):
    """What somebody does; the first ten concern one team."""

    BOOK = "book"
    #: Book with another member or a service account of the team as owner.
    BOOK_FOR_OTHERS = "book_for_others"
    RELEASE_OWN = "release_own"
    RELEASE_TEAM = "release_team"
    EXTEND_OWN = "extend_own"
    EXTEND_TEAM = "extend_team"
    VIEW_TEAM = "view_team"
    MANAGE_MEMBERS = "manage_members"
    MANAGE_TOKENS = "manage_tokens"
    #: Ask for more quota for the team, and take that back.
    REQUEST_QUOTA = "request_quota"
    #: See the team's requests for quota and say something about them.
    COMMENT_REQUEST = "comment_request"
    SET_QUOTA = "set_quota"
    #: Decide on requests for quota, and on bookings that need approval; never on one's own.
    DECIDE = "decide"
    #: Enrol, observe -> manage, use, freeze, retire.
    MANAGE_NODE = "manage_node"
    #: Make a pool, freeze it or everything.
    MANAGE_POOL = "manage_pool"
    #: See every team's reservations.
    VIEW_ALL = "view_all"


_Grant = tuple[frozenset[TeamRole], frozenset[GlobalRole]]

_MEMBERS = frozenset({TeamRole.MEMBER, TeamRole.LEAD})
_LEADS = frozenset({TeamRole.LEAD})
_NOBODY_HERE: frozenset[TeamRole] = frozenset()

_ADMIN = frozenset({GlobalRole.ADMIN})
_OPERATORS = frozenset({GlobalRole.OPERATOR, GlobalRole.ADMIN})
_APPROVERS = frozenset({GlobalRole.APPROVER, GlobalRole.ADMIN})
_NOBODY: frozenset[GlobalRole] = frozenset()

#: Action -> the team roles, and the global roles, either of which is enough.
#: What spends a team's quota takes a role in that team, an admin's too.
TABLE: Mapping[Action, _Grant] = MappingProxyType(
    {
        Action.BOOK: (_MEMBERS, _NOBODY),
        Action.BOOK_FOR_OTHERS: (_LEADS, _NOBODY),
        Action.RELEASE_OWN: (_MEMBERS, _NOBODY),
        Action.RELEASE_TEAM: (_LEADS, _OPERATORS),
        Action.EXTEND_OWN: (_MEMBERS, _NOBODY),
        Action.EXTEND_TEAM: (_LEADS, _NOBODY),
        Action.VIEW_TEAM: (_MEMBERS, _OPERATORS),
        Action.MANAGE_MEMBERS: (_LEADS, _ADMIN),
        Action.MANAGE_TOKENS: (_LEADS, _ADMIN),
        Action.REQUEST_QUOTA: (_LEADS, _NOBODY),
        Action.COMMENT_REQUEST: (_MEMBERS, _APPROVERS),
        Action.SET_QUOTA: (_NOBODY_HERE, _APPROVERS),
        Action.DECIDE: (_NOBODY_HERE, _APPROVERS),
        Action.MANAGE_NODE: (_NOBODY_HERE, _OPERATORS),
        Action.MANAGE_POOL: (_NOBODY_HERE, _OPERATORS),
        Action.VIEW_ALL: (_NOBODY_HERE, _OPERATORS),
    }
)


def allows(action: Action, team: TeamRole | None, roles: frozenset[GlobalRole]) -> bool:
    """Whether a role in the team concerned (None: none) or a global role permits it."""
    team_roles, global_roles = TABLE[action]
    return team in team_roles or not roles.isdisjoint(global_roles)
