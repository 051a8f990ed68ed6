"""queries.access: the getter is the permission."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser

from pool.core.errors import Code, Refusal
from pool.core.roles import Action
from pool.core.shapes import MigAsk
from pool.models import Reservation, Team, User
from pool.queries import access, clock
from pool.services import reservations
from tests.cast import Cast, SimNode


@pytest.fixture
def booked(cast: Cast, node: SimNode) -> Reservation:
    return reservations.book(
        actor=cast.milo,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def refusal(getter: Any, *args: Any) -> Code:
    with pytest.raises(Refusal) as refused:
        getter(*args)
    return refused.value.code


@pytest.mark.parametrize("who", ["milo", "lena", "otto", "anna"])
def test_a_reservation_is_for_its_team_and_for_those_who_see_all(
    cast: Cast, booked: Reservation, who: str
) -> None:
    assert access.reservation(getattr(cast, who), booked.pk) == booked
    assert access.reservation(getattr(cast, who), str(booked.pk)) == booked


@pytest.mark.parametrize("who", ["sam", "ada"])
def test_to_a_stranger_it_does_not_exist(cast: Cast, booked: Reservation, who: str) -> None:
    assert refusal(access.reservation, getattr(cast, who), booked.pk) == Code.NOT_FOUND
    assert refusal(access.reservation, AnonymousUser(), booked.pk) == Code.NOT_FOUND


@pytest.mark.parametrize("pk", ["", "x", "../1", "0", "0d5f1c7e-6a52-4b0e-9d3c-2f8a4e61b7c9", "\0"])
def test_what_is_no_id_is_not_found(cast: Cast, pk: str) -> None:
    assert refusal(access.reservation, cast.anna, pk) == Code.NOT_FOUND


def test_everybody_signed_in_sees_pools_nodes_and_gpus(cast: Cast, node: SimNode) -> None:
    for user in (cast.sam, cast.robot, cast.ada):
        assert access.pool(user, "main") == cast.main
        assert access.node(user, "node-1") == node.row
        assert access.gpu(user, node.gpus[0].uuid).node_id == node.row.pk


def test_nobody_else_sees_them(cast: Cast, node: SimNode) -> None:
    User.objects.filter(pk=cast.sam.pk).update(is_active=False)
    for user in (AnonymousUser(), User.objects.get(pk=cast.sam.pk)):
        assert refusal(access.pool, user, "main") == Code.NOT_FOUND
        assert refusal(access.node, user, "node-1") == Code.NOT_FOUND
        assert refusal(access.gpu, user, node.gpus[0].uuid) == Code.NOT_FOUND


@pytest.mark.parametrize("getter", [access.pool, access.node, access.gpu, access.team, access.team_to_book])
@pytest.mark.parametrize("name", ["", "none", "\0", "main\0x"])
def test_a_name_that_is_not_there_is_not_found(cast: Cast, getter: Any, name: str) -> None:
    assert refusal(getter, cast.milo, name) == Code.NOT_FOUND


def test_one_books_for_ones_own_team_and_below(cast: Cast) -> None:
    below = Team.objects.create(name="vision-lab", parent=cast.vision)
    assert access.team_to_book(cast.milo, "vision") == cast.vision
    assert access.team_to_book(cast.milo, "vision-lab") == below


def test_a_team_that_one_does_not_see_is_not_found_and_one_that_is_only_seen_is_forbidden(cast: Cast) -> None:
    assert refusal(access.team_to_book, cast.sam, "vision") == Code.NOT_FOUND
    assert refusal(access.team_to_book, cast.otto, "vision") == Code.FORBIDDEN
    assert refusal(access.team_to_book, cast.anna, "vision") == Code.FORBIDDEN


def test_a_right_is_asked_for_the_team_concerned(cast: Cast) -> None:
    assert access.can(cast.lena, Action.MANAGE_MEMBERS, cast.vision)
    assert not access.can(cast.lena, Action.MANAGE_MEMBERS, cast.speech)
    assert not access.can(cast.lena, Action.MANAGE_MEMBERS)
    assert access.can(cast.anna, Action.MANAGE_MEMBERS)
    assert not access.can(AnonymousUser(), Action.BOOK, cast.vision)


def test_what_may_not_be_done_is_forbidden_by_its_name(cast: Cast) -> None:
    with pytest.raises(Refusal) as refused:
        access.require(cast.milo, Action.SET_QUOTA)
    assert (refused.value.code, refused.value.data) == (Code.FORBIDDEN, {"action": "set_quota"})
    access.require(cast.ada, Action.SET_QUOTA)


def test_the_portal_itself_may_do_everything(cast: Cast) -> None:
    assert all(access.can(None, action) for action in Action)
