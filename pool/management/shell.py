"""What the commands share: refusals as one sentence, rows by name, a secret that is asked for or made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from pool.core.errors import Refusal
from pool.models import Pool, Team, User


@contextmanager
def refusals_are_sentences() -> Iterator[None]:
    """Whoever sits at the shell gets the code and its numbers, no trace."""
    try:
        yield
    except Refusal as refusal:
        told = f": {json.dumps(refusal.data, default=str)}" if refusal.data else ""
        raise CommandError(f"Refused ({refusal.code.value}){told}") from refusal


def team_named(name: str) -> Team:
    found = Team.objects.select_related("parent").filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no team {name}.")
    return found


def user_named(name: str) -> User:
    found = User.objects.filter(username=name).first()
    if found is None:
        raise CommandError(f"There is no user {name}.")
    return found


def pool_named(name: str) -> Pool:
    found = Pool.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no pool {name}.")
    return found
