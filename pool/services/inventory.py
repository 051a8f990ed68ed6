"""Writes of pools and GPUs: what is managed and for what, what is frozen, what is retired.

How nodes join is in enrolment.py, whose use cases doors reach through this
module. What reports change is telemetry's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

from django.db import transaction
from django.db.models import F, Q

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.core.states import State
from pool.models import Allocation, Blocker, Gpu, Node, NodeToken, Pool, User
from pool.queries import access as permissions
from pool.queries.gpus import against_managing, against_use
from pool.queries.inventory import node_unknown
from pool.services import broker, commands, events, locks, reservations
from pool.services.enrolment import enrol, make_join_code
from pool.services.teams import check_slug, check_zone

__all__ = ["enrol", "freeze", "make_join_code", "make_pool", "retire", "set_access", "set_managed", "set_use"]

Target = Literal["gpu", "node", "pool", "everything"]

#: So many bookings are named when they are in the way; all are counted.
NAMED = 20
#: As long as a name of a block may be (Node.block).
BLOCK_LIMIT = 64


@locks.use_case
def make_pool(*, actor: User | None, name: str, title: str = "", zone: str = "UTC", now: datetime) -> Pool:
    """An empty pool. Refuses with FORBIDDEN, INVALID (name, zone), TAKEN."""
    permissions.require(actor, Action.MANAGE_POOL)
    check_slug(name)
    check_zone(zone)
    made, new = Pool.objects.get_or_create(name=name, defaults={"title": title[:120], "zone": zone})
    if not new:
        raise Refusal(Code.TAKEN, name=name)
    events.record("pool.made", actor=actor, now=now, pool_id=made.pk, after={"name": name, "zone": zone})
    return made


@locks.use_case
def set_managed(
    *,
    actor: User | None,
    gpus: Collection[str],
    managed: bool,
    excluded: bool | None = None,
    now: datetime,
) -> list[Gpu]:
    """Let the portal carve these GPUs (by UUID), or only look at them again.

    Managing commands each at once: see queries.inventory.preview_manage. `excluded`
    says that whoever else gives out the node's GPUs leaves these alone from now
    on (or not any more). Refuses with FORBIDDEN, NOT_FOUND, INVALID (not reported,
    lost, retired, managed elsewhere, no MIG, shares not offered), and with
    WRONG_STATE when bookings would lose their GPU.
    """
    permissions.require(actor, Action.MANAGE_NODE)
    rows = _locked(gpus)
    if excluded is not None:
        _exclude([row for row in rows if row.excluded != excluded], excluded, actor, now)
    rows = [row for row in rows if row.managed != managed]
    if managed:
        for row in rows:
            _refuse(row, against_managing(row, row.use))
    else:
        _refuse_booked(rows)
        _let_go(rows)
    for row in rows:
        row.managed = managed
    Gpu.objects.bulk_update(rows, ["managed", "wanted"])
    _tell("gpu.managed" if managed else "gpu.observed", rows, actor, now)
    commands.issue(rows, now)
    return rows


def _exclude(rows: Collection[Gpu], excluded: bool, actor: User | None, now: datetime) -> None:
    """Note that the other manager of the node leaves these GPUs to us, or takes them back."""
    if not excluded:
        _refuse_booked([row for row in rows if row.managed and row.node.managed_by])
    for row in rows:
        row.excluded = excluded
    Gpu.objects.bulk_update(rows, ["excluded"])
    _tell("gpu.excluded" if excluded else "gpu.included", rows, actor, now)
    commands.issue([row for row in rows if row.managed], now)


@locks.use_case
def set_use(
    *, actor: User | None, gpus: Collection[str], use: str, sharing: str = "", now: datetime
) -> list[Gpu]:
    """Offer these GPUs (by UUID) as slices ("mig"), "whole", in shares ("share"), or as is asked ("auto").

    `sharing` says how shares are kept apart: "mps", "hami" or "timeslice"; it is needed for
    them, lets an "auto" one give shares, and goes with nothing else. Refuses with FORBIDDEN, NOT_FOUND,
    INVALID, and with WRONG_STATE when a GPU has bookings, now or later: they were
    made for its present use.
    """
    permissions.require(actor, Action.MANAGE_NODE)
    _check_use(use, sharing)
    rows = [row for row in _locked(gpus) if (row.use, row.sharing) != (use, sharing)]
    for row in rows:
        _refuse(row, _against_use(row, use, sharing))
    _refuse_booked(rows)
    before = {row.pk: _used(row) for row in rows}
    for row in rows:
        row.use, row.sharing = use, sharing
    Gpu.objects.bulk_update(rows, ["use", "sharing"])
    after = {"use": use, "sharing": sharing} if sharing else {"use": use}
    _tell("gpu.use_set", rows, actor, now, before=before, after=after)
    commands.issue(rows, now)
    return rows


def _check_use(use: str, sharing: str) -> None:
    if use not in Gpu.Use.values:
        raise invalid("/use", "not_a_choice", choices=list(Gpu.Use.values))
    if use == Gpu.Use.SHARE and sharing not in Gpu.Sharing.values:
        raise invalid("/sharing", "not_a_choice", choices=list(Gpu.Sharing.values))
    if use not in (Gpu.Use.SHARE, Gpu.Use.AUTO) and sharing:
        raise invalid("/sharing", "not_together", other="use")


def _against_use(row: Gpu, use: str, sharing: str) -> str | None:
    """As for managing it so; that somebody else gives it out matters only then."""
    against = against_managing(row, row.use)
    if against in ("retired", "not_reported", "lost"):
        return against
    return against_use(row, use, sharing)


def _used(row: Gpu) -> dict[str, str]:
    return {"use": row.use, "sharing": row.sharing} if row.sharing else {"use": row.use}


@locks.use_case
def set_access(*, actor: User | None, node: str, access: str, now: datetime) -> Node:
    """How holders on this node get their slice, of what its agent offers; advice only is always possible.

    Refuses with FORBIDDEN, NOT_FOUND, INVALID.
    """
    permissions.require(actor, Action.MANAGE_NODE)
    locked = locks.pool(_pool_of("node", node))
    row = locks.node(Node.objects.get(name=node).pk)
    choices = sorted({"advisory", *row.access_offered})
    if access not in choices:
        raise invalid("/access", "not_a_choice", choices=choices)
    if access == row.access:
        return row
    before, row.access = row.access, access
    row.version += 1
    row.save(update_fields=["access", "version"])
    locks.changed(locked)
    events.record(
        "node.access_set",
        actor=actor,
        now=now,
        pool_id=locked.pk,
        node_id=row.pk,
        before={"access": before},
        after={"node": row.name, "access": access},
    )
    commands.issue(locks.gpus(row.gpus.filter(managed=True).values_list("pk", flat=True)), now)
    return row


@locks.use_case
def set_block(*, actor: User | None, node: str, block: str, now: datetime) -> Node:
    """The rack or block in which the node stands; "": nobody has said.

    Refuses with FORBIDDEN, NOT_FOUND, INVALID.
    """
    permissions.require(actor, Action.MANAGE_NODE)
    block = block.strip()
    if len(block) > BLOCK_LIMIT or not block.isprintable():
        raise invalid("/block", "malformed", max_length=BLOCK_LIMIT)
    locked = locks.pool(_pool_of("node", node))
    row = locks.node(Node.objects.get(name=node).pk)
    if block == row.block:
        return row
    before, row.block = row.block, block
    row.version += 1
    row.save(update_fields=["block", "version"])
    locks.changed(locked)
    events.record(
        "node.block_set",
        actor=actor,
        now=now,
        pool_id=locked.pk,
        node_id=row.pk,
        before={"block": before},
        after={"node": row.name, "block": block},
    )
    return row


@locks.use_case
def set_block_sizes(*, actor: User | None, pool: str, sizes: Sequence[int], now: datetime) -> Pool:
    """How many nodes an aggregate of each level has: the blocks first, then multiples of them; () is no tree.

    Refuses with FORBIDDEN, NOT_FOUND, INVALID.
    """
    permissions.require(actor, Action.MANAGE_POOL)
    levels = [int(size) for size in sizes]
    if any(size < 1 or size % levels[0] for size in levels) or levels != sorted(set(levels)):
        raise invalid("/block_sizes", "malformed", max_length=len(levels))
    row = locks.pool(_pool_of("pool", pool))
    if levels == row.block_sizes:
        return row
    before, row.block_sizes = row.block_sizes, levels
    row.version += 1
    row.save(update_fields=["block_sizes", "version"])
    locks.changed(row)
    events.record(
        "pool.blocks_set",
        actor=actor,
        now=now,
        pool_id=row.pk,
        before={"block_sizes": before},
        after={"pool": row.name, "block_sizes": levels},
    )
    return row


def freeze(*, actor: User | None, target: Target, id: str | None = None, frozen: bool, now: datetime) -> None:
    """Stop commands and starts at once, or lift that; bookings are kept either way.

    `id` is the GPU's UUID or the name of node or pool. "everything" is the flag
    of every pool: lifting it lifts theirs, too, and a pool made later is free.
    Lifting commands what has changed meanwhile. Refuses with FORBIDDEN, NOT_FOUND.
    """
    permissions.require(actor, Action.MANAGE_POOL if target in ("pool", "everything") else Action.MANAGE_NODE)
    if target == "everything":
        for name in Pool.objects.order_by("pk").values_list("name", flat=True):
            _freeze(actor, "pool", name, frozen, now)
    else:
        _freeze(actor, target, id or "", frozen, now)


@locks.use_case
def _freeze(actor: User | None, target: Target, name: str, frozen: bool, now: datetime) -> None:
    rows = {
        "gpu": Gpu.objects.filter(uuid=name),
        "node": Gpu.objects.filter(node__name=name),
        "pool": Gpu.objects.filter(node__pool__name=name),
    }[target]
    pool_id = _pool_of(target, name)
    locked = locks.pool(pool_id)
    if target == "gpu":
        rows.update(frozen=frozen)
    elif target == "node":
        Node.objects.filter(name=name).update(frozen=frozen, version=F("version") + 1)
    else:
        Pool.objects.filter(pk=pool_id).update(frozen=frozen, version=F("version") + 1)
    locks.changed(locked)
    verb = f"{target}.frozen" if frozen else f"{target}.thawed"
    events.record(verb, actor=actor, now=now, pool_id=pool_id, after={target: name, "frozen": frozen})
    if not frozen:
        ids = list(rows.filter(managed=True).values_list("pk", flat=True))
        commands.nudge_open(ids)
        commands.issue(locks.gpus(ids), now)


def _pool_of(target: Target, name: str) -> int:
    found = {
        "gpu": Gpu.objects.filter(uuid=name).values_list("node__pool", flat=True),
        "node": Node.objects.filter(name=name).values_list("pool", flat=True),
        "pool": Pool.objects.filter(name=name).values_list("pk", flat=True),
    }[target].first()
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    return int(found)


@locks.use_case
def retire(
    *, actor: User | None, target: Literal["gpu", "node"], id: str, retired: bool = True, now: datetime
) -> list[Gpu]:
    """Take a GPU, or a node with all its GPUs, out of the inventory; `retired` False brings GPUs back.

    A retired node's tokens and Redis user end, and another machine may join
    under its name. What comes back is only observed. What was ending on a GPU
    that is lost or not heard from is written off. Refuses with FORBIDDEN,
    NOT_FOUND, and with WRONG_STATE while there are other bookings.
    """
    permissions.require(actor, Action.MANAGE_NODE)
    of_target = Gpu.objects.filter(uuid=id) if target == "gpu" else Gpu.objects.filter(node__name=id)
    locked = locks.pool(_pool_of(target, id))
    rows = locks.gpus(of_target.values_list("pk", flat=True))
    rows = [row for row in rows if (row.retired_at is not None) != retired]
    if retired:
        _write_off(rows, now)
        _refuse_booked(rows)
    _let_go(rows)
    for row in rows:
        row.retired_at, row.managed = (now if retired else None), False
    Gpu.objects.bulk_update(rows, ["retired_at", "managed", "wanted"])
    locks.changed(locked)
    _tell("gpu.retired" if retired else "gpu.back", rows, actor, now)
    if target == "node" and retired:
        _end_node(Node.objects.get(name=id), actor, now)
    return rows


def _end_node(node: Node, actor: User | None, now: datetime) -> None:
    NodeToken.objects.filter(node=node, revoked_at=None).update(revoked_at=now)
    Node.objects.filter(pk=node.pk).update(broker_hash="", version=F("version") + 1)
    events.record(
        "node.retired", actor=actor, now=now, pool_id=node.pool_id, node_id=node.pk, after={"node": node.name}
    )
    transaction.on_commit(partial(broker.acl_drop, node), robust=True)


# --- Steps --------------------------------------------------------------------


def _locked(uuids: Collection[str]) -> list[Gpu]:
    """These GPUs under the locks of their pools, whose change numbers are drawn."""
    places = dict(Gpu.objects.filter(uuid__in=uuids).values_list("pk", "node__pool"))
    if len(places) != len(set(uuids)):
        raise Refusal(Code.NOT_FOUND)
    for pool_id in sorted(set(places.values())):
        locks.changed(locks.pool(pool_id))
    return locks.gpus(places)


def _refuse(gpu: Gpu, why: str | None) -> None:
    if why == "managed_elsewhere":
        raise invalid("/gpus", why, gpu=gpu.uuid, managers=gpu.node.managed_by)
    if why is not None:
        raise invalid("/gpus", why, gpu=gpu.uuid)


def _refuse_booked(rows: Collection[Gpu]) -> None:
    """Refuse when anything holds one of these GPUs, now or later: as for a new booking, from the rows."""
    held = Allocation.objects.filter(gpu__in=[row.pk for row in rows], holds=True)
    booked = sorted({str(pk) for pk in held.values_list("reservation_id", flat=True)})
    if booked:
        raise Refusal(Code.WRONG_STATE, state="booked", count=len(booked), reservations=booked[:NAMED])


def _write_off(rows: Collection[Gpu], now: datetime) -> None:
    """End what only waits to be seen clean on GPUs of which no report tells any more.

    Nobody will ever see it, and nothing is placed there before the GPU is back and looked at.
    """
    lost = Q(state=None) | Q(state__lost=True) | Q(blockers__kind=Blocker.Kind.UNKNOWN)
    ids = set(Gpu.objects.filter(lost, pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
    ids |= {row.pk for row in rows if node_unknown(row.node)}
    left = Allocation.objects.filter(gpu__in=ids, holds=True, reservation__state=State.ENDING)
    going = list(left.select_related("reservation"))
    reservations.clean([one.pk for one in going], now=now)
    reservations.close(list(reservations.by_id(going).values()), now=now)


def _let_go(rows: Collection[Gpu]) -> None:
    """Nothing is wanted of these GPUs any more; whatever is on them stays as it is."""
    commands.supersede(row.pk for row in rows)
    for row in rows:
        row.wanted = None


def _tell(
    verb: str,
    rows: Collection[Gpu],
    actor: User | None,
    now: datetime,
    before: dict[int, dict[str, str]] | None = None,
    after: dict[str, str] | None = None,
) -> None:
    events.write(
        events.draft(
            verb,
            actor=actor,
            now=now,
            pool_id=row.node.pool_id,
            node_id=row.node_id,
            gpu_id=row.pk,
            before=before[row.pk] if before else None,
            after={"gpu": row.uuid, **(after or {})},
        )
        for row in rows
    )
