"""What the commands share: refusals in words, rows by name, a secret that is asked for or made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.core.management.base import CommandError
from django.utils.module_loading import import_string

from pool.core.errors import Refusal
from pool.models import Pool, Team, User


@contextmanager
def refusals_are_sentences() -> Iterator[None]:
    """Whoever sits at the shell gets what both doors say, and the numbers; no trace.

    The words are the portal's, which the settings name: this package knows no door.
    """
    try:
        yield
    except Refusal as refusal:
        said = import_string(settings.REFUSAL_WORDS)(refusal)
        numbers = f"\n{json.dumps(refusal.data, default=str)}" if refusal.data else ""
        told = f"Refused ({refusal.code.value}): {said.detail} {said.next_step}{numbers}"
        raise CommandError(told) from refusal


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
