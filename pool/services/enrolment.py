"""How a node joins: a one-time code becomes a node token and a Redis user of its own.

A node's identity is its machine id: a new code lets the same machine in again
and ends its earlier secrets, another machine only under a name that is free.
Codes expire by real time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F

from pool.core import wire
from pool.core.errors import Code, Refusal, invalid
from pool.core.observed import text
from pool.core.roles import Action
from pool.models import Gpu, JoinCode, Node, NodeToken, Pool, User
from pool.queries import access, clock
from pool.services import broker, events, locks, secrets

CODE_LIVES = timedelta(hours=24)

_NAME = re.compile(wire.NODE_NAME, re.ASCII)
_MACHINE = re.compile(r"[!-~]{8,64}", re.ASCII)


@locks.use_case
def make_join_code(*, actor: User | None, pool: str, name: str, now: datetime) -> str:
    """A code that lets one machine join `pool` as `name`, once, within 24 h; shown this once.

    Refuses with FORBIDDEN, NOT_FOUND (pool), INVALID (name).
    """
    access.require(actor, Action.MANAGE_NODE)
    if not _NAME.fullmatch(name):
        raise invalid("/name", "bad_characters")
    found = Pool.objects.filter(name=pool).first()
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    # The newest code is the one that counts.
    JoinCode.objects.filter(name=name, used_at=None).delete()
    code = secrets.make_code()
    JoinCode.objects.create(
        pool=found,
        name=name,
        code_hash=secrets.plain(code),
        created_by=actor,
        expires_at=clock.real_now() + CODE_LIVES,
    )
    events.record("node.join_code_made", actor=actor, now=now, pool_id=found.pk, after={"node": name})
    return code


def enrol(*, ask: wire.JoinAsk, now: datetime) -> wire.JoinAnswer:
    """Let a machine in. `now` is real time.

    Refuses with UNSUPPORTED_WIRE, INVALID (node, machine_id), BAD_TOKEN (the
    code is unknown, used, expired or for another name), TAKEN (another machine
    has this name). The broker's address is None where Redis users cannot be made.
    """
    _check(ask)
    node, token, secret = _enrol(ask, now)
    url = broker.node_url(node.name, secret)
    if url is not None and broker.acl_set(node) is broker.Acl.REFUSED:
        url = None
        _by_report_only(node)
    return wire.JoinAnswer(
        node=node.name, token=token, broker_url=url, report_s=float(settings.REPORT_SECONDS)
    )


def _check(ask: wire.JoinAsk) -> None:
    if ask.wire not in wire.ACCEPTED:
        raise Refusal(Code.UNSUPPORTED_WIRE, wire=ask.wire, accepted=list(wire.ACCEPTED))
    if not _NAME.fullmatch(ask.node):
        raise invalid("/node", "bad_characters")
    if not _MACHINE.fullmatch(ask.machine_id):
        raise invalid("/machine_id", "bad_characters")


@locks.use_case
def _enrol(ask: wire.JoinAsk, now: datetime) -> tuple[Node, str, str]:
    code = _use_code(ask, now)
    node = _node_for(code, ask)
    NodeToken.objects.filter(node=node, revoked_at=None).update(revoked_at=now)
    parts, secret = secrets.make(secrets.NODE), secrets.make_secret()
    NodeToken.objects.create(
        node=node, public_id=parts.public_id, secret_hash=secrets.plain(parts.secret), created_at=now
    )
    node.broker_hash = secrets.plain(secret) if settings.NODE_BROKER_URL else ""
    node.agent = text(ask.agent, 32)
    node.wire = ask.wire
    # An agent that joins may have lost its numbers; what the one before sent needs a token that has ended.
    node.boot_id, node.seq = "", 0
    node.version += 1
    node.save(update_fields=["broker_hash", "agent", "wire", "boot_id", "seq", "version"])
    events.record(
        "node.joined",
        actor=None,
        now=now,
        label=f"node:{node.name}",
        pool_id=node.pool_id,
        node_id=node.pk,
        after={"node": node.name, "machine_id": node.machine_id, "token": parts.public_id},
    )
    return node, str(parts), secret


def _use_code(ask: wire.JoinAsk, now: datetime) -> JoinCode:
    """The code, used up by this transaction."""
    mine = JoinCode.objects.filter(code_hash=secrets.plain(ask.code), name=ask.node)
    # Of two that come with the same code, one finds it used.
    if not mine.filter(used_at=None, expires_at__gt=now).update(used_at=now):
        raise Refusal(Code.BAD_TOKEN)
    return mine.select_related("pool").get()


def _node_for(code: JoinCode, ask: wire.JoinAsk) -> Node:
    node, new = Node.objects.get_or_create(
        name=ask.node, defaults={"pool": code.pool, "machine_id": ask.machine_id}
    )
    if new:
        return node
    node = locks.node(node.pk)
    same = node.machine_id == ask.machine_id and node.pool_id == code.pool_id
    if not same and Gpu.objects.filter(node=node, retired_at=None).exists():
        raise Refusal(Code.TAKEN, name=node.name)
    if not same:
        node.pool, node.machine_id = code.pool, ask.machine_id
        node.received_at, node.good_reports, node.unknown_since = None, 0, None
        # What happened on the machine before has numbers of its own.
        node.happened_n = 0
        kept = ["pool", "machine_id", "received_at", "good_reports", "unknown_since", "happened_n"]
        node.save(update_fields=kept)
    return node


@locks.use_case
def _by_report_only(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(broker_hash="", version=F("version") + 1)
