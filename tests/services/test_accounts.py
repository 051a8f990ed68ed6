"""services.accounts: one account on the nodes belongs to one holder, and nodes are told of it at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.shapes import MigAsk, ShareAsk
from pool.models import Event, Team, User
from pool.queries import clock
from pool.services import accounts, inventory, reservations
from tests.cast import Cast, SimNode


def put(actor: Any, holder: User | Team, account: str) -> User | Team:
    return accounts.set_account(actor=actor, holder=holder, account=account, now=clock.now())


def book(cast: Cast, ask: Any) -> Any:
    return reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=ask,
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def test_a_person_and_a_team_have_an_account_each(cast: Cast) -> None:
    put(cast.anna, cast.milo, "milo-p")
    put(None, cast.vision, "svc-vision")
    cast.milo.refresh_from_db()
    assert (cast.milo.posix_name, Team.objects.get(name="vision").posix_name) == ("milo-p", "svc-vision")
    event = Event.objects.get(verb="user.account_set")
    assert (event.before, event.after) == ({"account": ""}, {"name": "milo", "account": "milo-p"})


def test_nodes_are_told_at_once_whose_processes_are_a_holders(cast: Cast, node: SimNode) -> None:
    book(cast, MigAsk(profile="1g.10gb"))
    node.follow()
    put(None, cast.milo, "milo-p")
    (command,) = node.carve()
    assert command.layout.held[0].users == ("milo-p",)
    assert node.send().stays[0].users == ("milo-p",)


def test_no_two_have_one_account(cast: Cast) -> None:
    put(None, cast.milo, "shared")
    for holder in (cast.lena, cast.vision):
        with pytest.raises(Refusal) as refused:
            put(None, holder, "shared")
        assert (refused.value.code, refused.value.data["by"]) == (Code.TAKEN, "milo")
    put(None, cast.milo, "")
    put(None, cast.lena, "shared")


@pytest.mark.parametrize("odd", ["root", "nobody", "Milo", "a b", "-milo", "x" * 33, "mi\0lo", "mílo"])
def test_an_account_that_nobody_may_have_is_refused(cast: Cast, odd: str) -> None:
    with pytest.raises(Refusal) as refused:
        put(None, cast.milo, odd)
    assert refused.value.code == Code.INVALID


def test_it_is_an_admins(cast: Cast) -> None:
    for actor in (cast.lena, cast.milo, cast.otto):
        with pytest.raises(Refusal) as refused:
            put(actor, cast.milo, "milo-p")
        assert refused.value.code == Code.FORBIDDEN


def test_it_stays_while_a_share_counts_on_its_mps_server(cast: Cast, node: SimNode) -> None:
    put(None, cast.milo, "milo-p")
    node.send(node.report(sharing=("mps",)))
    inventory.set_use(actor=cast.otto, gpus=[node.gpus[0].uuid], use="share", sharing="mps", now=clock.now())
    book(cast, ShareAsk(memory_mib=4096, guaranteed=20, limit=20))
    with pytest.raises(Refusal) as refused:
        put(None, cast.milo, "milo-q")
    assert refused.value.code == Code.WRONG_STATE
