"""Accounts on the GPU nodes: whose processes are a person's, and whose a team's.

A process is laid to the holder whose account it runs under (DESIGN 3), so no
two may have one account, and nobody has root's.
"""

from __future__ import annotations

import re
from datetime import datetime

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.core.states import State
from pool.models import Allocation, Team, User
from pool.queries import access
from pool.services import commands, events, locks

#: What useradd takes on the usual distributions; a domain's accounts may have a dot.
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
#: They are the machine's own, or nobody's.
_NOBODYS = frozenset({"root", "nobody", "daemon", "bin", "sys"})


@locks.use_case
def set_account(*, actor: User | None, holder: User | Team, account: str, now: datetime) -> User | Team:
    """Say under which account this person or team is known on the nodes; "" for none. Admins only.

    Nodes are told at once. Refuses with FORBIDDEN, INVALID, TAKEN (by whom), and
    with WRONG_STATE while a share counts on the MPS server of the account it had.
    """
    access.require(actor, Action.MANAGE_MEMBERS)
    if account and (not _ACCOUNT.fullmatch(account) or account in _NOBODYS):
        raise invalid("/account", "bad_characters" if account not in _NOBODYS else "not_a_choice")
    before = holder.posix_name
    if account == before:
        return holder
    is_user = isinstance(holder, User)
    whose = {"reservation__owner" if is_user else "reservation__team": holder.pk}
    mine = Allocation.objects.filter(holds=True, **whose)
    for pool_id in sorted(set(mine.values_list("gpu__node__pool", flat=True))):
        locks.pool(pool_id)
    _refuse_taken(holder, account)
    if before and mine.filter(mps_user=before).exists():
        raise Refusal(Code.WRONG_STATE, state="booked", doing="set_account")
    holder.posix_name = account
    holder.save(update_fields=["posix_name"])
    name = holder.username if isinstance(holder, User) else holder.name
    events.record(
        "user.account_set" if is_user else "team.account_set",
        actor=actor,
        now=now,
        team_id=None if is_user else holder.pk,
        before={"account": before},
        after={"name": name, "account": account},
    )
    there = mine.filter(wanted_at__isnull=False, reservation__state__in=(State.STARTING, State.ACTIVE))
    commands.issue(locks.gpus(there.values_list("gpu_id", flat=True)), now)
    return holder


def _refuse_taken(holder: User | Team, account: str) -> None:
    """Refuses when somebody else has it; two that are set at once are told apart by an advisory lock."""
    if not account:
        return
    locks.alone("accounts")
    users, team_rows = User.objects.filter(posix_name=account), Team.objects.filter(posix_name=account)
    if isinstance(holder, User):
        users = users.exclude(pk=holder.pk)
    else:
        team_rows = team_rows.exclude(pk=holder.pk)
    taken = (
        users.values_list("username", flat=True).first() or team_rows.values_list("name", flat=True).first()
    )
    if taken is not None:
        raise Refusal(Code.TAKEN, name=account, by=taken)
