"""manage.py demo_seed --out FILE: teams, people, quota, a request, tokens and join codes of the demo.

Running it again keeps everything that is there: only what is missing is made.
FILE (0600) holds the secrets that cannot be read back from the database.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from pool.core.roles import GlobalRole, TeamRole
from pool.management import demo_work
from pool.management.shell import refusals_are_sentences
from pool.models import Pool, QuotaLine, Team, User
from pool.queries import clock
from pool.services import inventory, quota, teams, tokens

POOL = "main"
#: Node -> the GPUs that it has, so that a tool can wait for all.
NODES = {"dgx-h100-01": 8, "dgx-a100-01": 8, "gb200-01": 4, "gb200-02": 4, "rtx-01": 2}
#: Team -> guaranteed and cap, in GPUs.
TEAMS = {"vision": (8, 16), "speech": (4, 8), demo_work.BORROWER: (0, 8)}
#: Login -> full name, global roles, team, role in it.
PEOPLE: dict[str, tuple[str, tuple[GlobalRole, ...], str | None, TeamRole | None]] = {
    "lead": ("Lena Lead", (), "vision", TeamRole.LEAD),
    "member": ("Milo Member", (), "vision", TeamRole.MEMBER),
    "approver": ("Ada Approver", (GlobalRole.APPROVER,), None, None),
    "operator": ("Otto Operator", (GlobalRole.OPERATOR,), None, None),
    "admin": ("Anna Admin", (GlobalRole.ADMIN,), None, None),
    "stranger": ("Sam Stranger", (), "speech", TeamRole.LEAD),
}
#: Who leads another team, too.
ALSO_LEADS = {"stranger": demo_work.BORROWER}
TOKENS = ("lead", "admin")


class Command(BaseCommand):
    help = "Fill the demo's database; safe to run again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, required=True, help="where the secrets are kept (JSON, 0600)")

    def handle(self, *, out: Path, **_: Any) -> None:
        kept = _read(out)
        known = {login["username"]: login for login in kept.get("logins", ())}
        with refusals_are_sentences():
            _make_places()
            passwords = {name: _person(name, known.get(name)) for name in PEOPLE}
            _lead_more()
            made = {name: _token(name, kept.get("tokens", {}).get(name)) for name in TOKENS}
            # One for each node, also for one that has joined: its agent may have lost what it was told.
            codes = {name: _code(name) for name in NODES}
        logins = [
            {"username": name, "password": password, "role": _role(name), "proof": _proof(name)}
            for name, password in passwords.items()
        ]
        _write(out, {"logins": logins, "tokens": made, "join_codes": codes})
        for login in logins:
            self.stdout.write(
                "  ".join(f"{login[key]:<18}" for key in ("username", "password", "role")).rstrip()
            )


def _make_places() -> None:
    now = clock.now()
    pool = Pool.objects.filter(name=POOL).first()
    if pool is None:
        pool = inventory.make_pool(actor=None, name=POOL, title="Main pool", now=now)
    for name, (guaranteed, cap) in TEAMS.items():
        team = Team.objects.filter(name=name).first()
        if team is None:
            team = teams.make_team(actor=None, name=name, title=name.capitalize(), now=now)
        if not QuotaLine.objects.filter(team=team, pool=pool).exists():
            quota.set_line(
                actor=None,
                team=team,
                pool=pool,
                guaranteed_milli=guaranteed * 1000,
                cap_milli=cap * 1000,
                now=now,
            )


def _lead_more() -> None:
    """Who leads a second team; and what the first asks for."""
    now = clock.now()
    for name, other in ALSO_LEADS.items():
        user = User.objects.get(username=name)
        teams.set_member(
            actor=None, team=Team.objects.get(name=other), user=user, role=TeamRole.LEAD, now=now
        )
    team, lead = Team.objects.get(name="vision"), User.objects.get(username="lead")
    demo_work.ask_for_more(Pool.objects.get(name=POOL), team, lead, now)


def _person(name: str, kept: dict[str, str] | None) -> str:
    """The login's password: the kept one while it is right, else a new one."""
    full_name, roles, team, role = PEOPLE[name]
    now = clock.now()
    user = User.objects.filter(username=name).first()
    # Checking six passwords takes seconds, seeing that they are unchanged does not.
    if user is not None and kept is not None and kept.get("proof") == _proof(name):
        return kept["password"]
    password = (kept or {}).get("password") or f"{name}-{secrets.token_hex(4)}"
    if user is None:
        user = teams.make_user(
            actor=None, username=name, password=password, roles=roles, full_name=full_name, now=now
        )
        if team is not None:
            teams.set_member(actor=None, team=Team.objects.get(name=team), user=user, role=role, now=now)
    else:
        teams.set_password(actor=None, user=user, password=password, now=now)
    return password


def _proof(name: str) -> str:
    """What changes with the stored password, and tells nothing about it."""
    return hashlib.sha256(User.objects.get(username=name).password.encode()).hexdigest()


def _token(name: str, raw: str | None) -> str:
    if raw is not None and tokens.authenticate(raw, clock.real_now()) is not None:
        return raw
    user = User.objects.get(username=name)
    return tokens.make(actor=None, user=user, team=None, name="demo", days=365, now=clock.real_now())[1]


def _role(name: str) -> str:
    _full_name, roles, team, role = PEOPLE[name]
    return f"{role} of {team}" if team else ", ".join(roles)


def _code(name: str) -> str:
    return inventory.make_join_code(actor=None, pool=POOL, name=name, now=clock.now())


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(path: Path, values: dict[str, Any]) -> None:
    """Replace the file as a whole; nobody else may read it at any moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(values, file, indent=2)
        file.write("\n")
    draft.replace(path)
