"""pool.admin: admins look at the tables, and nobody changes them there."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from pool.models import Node, Token, User
from pool.queries import clock
from pool.services import tokens
from tests.cast import Cast, SimNode


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def addresses() -> list[str]:
    return [
        f"admin:{m._meta.app_label}_{m._meta.model_name}"
        for m in admin.site._registry
        if m._meta.app_label == "pool"
    ]


def test_an_admin_sees_every_table(cast: Cast, node: SimNode) -> None:
    client = client_of(cast.anna)
    for address in addresses():
        assert client.get(reverse(f"{address}_changelist")).status_code == 200, address


@pytest.mark.parametrize("who", ["lena", "otto", "ada", "sam"])
def test_nobody_else_sees_any(cast: Cast, who: str) -> None:
    User.objects.update(is_staff=True)
    client = client_of(User.objects.get(username=who))
    for address in addresses():
        assert client.get(reverse(f"{address}_changelist")).status_code == 403, address


def test_nothing_is_added_changed_or_deleted(cast: Cast, node: SimNode) -> None:
    client = client_of(cast.anna)
    for address in addresses():
        assert client.get(reverse(f"{address}_add")).status_code == 403, address
    row = Node.objects.get()
    change = reverse("admin:pool_node_change", args=[row.pk])
    assert client.get(change).status_code == 200
    assert client.post(change, {"name": "other"}).status_code == 403
    assert client.post(reverse("admin:pool_node_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert Node.objects.get().name == "node-1"


def test_no_hash_of_a_secret_is_shown(cast: Cast) -> None:
    token, _raw = tokens.make(actor=cast.milo, user=cast.milo, team=None, name="ci", now=clock.real_now())
    client = client_of(cast.anna)
    for address, row in (("admin:pool_token_change", token), ("admin:pool_user_change", cast.milo)):
        page = client.get(reverse(address, args=[row.pk])).content.decode()
        assert Token.objects.get().secret_hash not in page
        assert cast.milo.password not in page
