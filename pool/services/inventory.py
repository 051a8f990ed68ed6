"""Writes of pools and GPUs: what is managed and for what, what is frozen, what is retired.

How nodes join is in enrolment.py, whose use cases doors reach through this
module. What reports change is telemetry's.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Literal

from django.db import transaction
from django.db.models import F, Q

from pool.core.errors import Code, Refusal, invalid
from pool.core.roles import Action
from pool.core.states import State
from pool.models import Allocation, Blocker, Gpu, Node, NodeToken, Pool, User
from pool.queries import access
from pool.queries.gpus import against_managing
from pool.queries.inventory import node_unknown
from pool.services import broker, commands, events, locks, reservations
from pool.services.enrolment import enrol, make_join_code
from pool.services.teams import check_slug, check_zone

__all__ = ["enrol", "freeze", "make_join_code", "make_pool", "retire", "set_managed", "set_use"]

Target = Literal["gpu", "node", "pool", "everything"]

#: So many bookings are named when they are in the way; all are counted.
NAMED = 20


@locks.use_case
def make_pool(*, actor: User | None, name: str, title: str = "", zone: str = "UTC", now: datetime) -> Pool:
    """An empty pool. Refuses with FORBIDDEN, INVALID (name, zone), TAKEN."""
    access.require(actor, Action.MANAGE_POOL)
    check_slug(name)
    check_zone(zone)
    made, new = Pool.objects.get_or_create(name=name, defaults={"title": title[:120], "zone": zone})
    if not new:
        raise Refusal(Code.TAKEN, name=name)
    events.record("pool.made", actor=actor, now=now, pool_id=made.pk, after={"name": name, "zone": zone})
    return made


@locks.use_case
def set_managed(*, actor: User | None, gpus: Collection[str], managed: bool, now: datetime) -> list[Gpu]:
    """Let the portal carve these GPUs (by UUID), or only look at them again.

    Managing commands each at once: see queries.inventory.preview_manage. Refuses
    with FORBIDDEN, NOT_FOUND, INVALID (not reported, lost, retired, no MIG), and
    with WRONG_STATE when bookings would lose their GPU.
    """
    access.require(actor, Action.MANAGE_NODE)
    rows = [row for row in _locked(gpus) if row.managed != managed]
    if managed:
        for row in rows:
            _refuse_unmanageable(row, row.use)
    else:
        _refuse_booked(rows)
        _let_go(rows)
    for row in rows:
        row.managed = managed
    Gpu.objects.bulk_update(rows, ["managed", "wanted"])
    _tell("gpu.managed" if managed else "gpu.observed", rows, actor, now)
    commands.issue(rows, now)
    return rows


@locks.use_case
def set_use(*, actor: User | None, gpus: Collection[str], use: str, now: datetime) -> list[Gpu]:
    """Offer these GPUs (by UUID) as slices ("mig") or whole ("whole").

    Refuses with FORBIDDEN, NOT_FOUND, INVALID, and with WRONG_STATE when a
    GPU has bookings, now or later: they were made for its present use.
    """
    access.require(actor, Action.MANAGE_NODE)
    if use not in Gpu.Use.values:
        raise invalid("/use", "not_a_choice", choices=list(Gpu.Use.values))
    rows = [row for row in _locked(gpus) if row.use != use]
    for row in rows:
        _refuse_unmanageable(row, use)
    _refuse_booked(rows)
    before = {row.pk: {"use": row.use} for row in rows}
    for row in rows:
        row.use = use
    Gpu.objects.bulk_update(rows, ["use"])
    _tell("gpu.use_set", rows, actor, now, before=before, after={"use": use})
    commands.issue(rows, now)
    return rows


def freeze(*, actor: User | None, target: Target, id: str | None = None, frozen: bool, now: datetime) -> None:
    """Stop commands and starts at once, or lift that; bookings are kept either way.

    `id` is the GPU's UUID or the name of node or pool. "everything" is the flag
    of every pool: lifting it lifts theirs, too, and a pool made later is free.
    Lifting commands what has changed meanwhile. Refuses with FORBIDDEN, NOT_FOUND.
    """
    access.require(actor, Action.MANAGE_POOL if target in ("pool", "everything") else Action.MANAGE_NODE)
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
    access.require(actor, Action.MANAGE_NODE)
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


def _refuse_unmanageable(gpu: Gpu, use: str) -> None:
    why = against_managing(gpu, use)
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
