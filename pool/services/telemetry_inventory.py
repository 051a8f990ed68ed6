"""The part of a report that is inventory and live state: GPUs that come, change, go or are blocked.

All functions are steps of telemetry.record.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection
from django.db.backends.postgresql.psycopg_any import NumericRange

from pool.core import observed
from pool.core.observed import Seen
from pool.core.states import State
from pool.models import Allocation, Blocker, Gpu, GpuState
from pool.services import commands
from pool.services.telemetry_desk import Desk, layout_of

log = logging.getLogger(__name__)


def sync(desk: Desk) -> None:
    """Bring GPUs, blockers and live states in line with the report."""
    seen = {one.uuid: one for one in desk.seen}
    _add_new(desk, seen)
    for uuid, gpu in desk.gpus.items():
        one = seen.get(uuid)
        if one is not None and not one.lost:
            _update(desk, gpu, one)
        if one is not None and _knows_more(gpu, one):
            _force_observe(desk, gpu, observed.newest(one))
        _note_loss(desk, gpu, one)
        _sync_blockers(desk, gpu, one)
    _write_states(desk, seen)


def _add_new(desk: Desk, seen: dict[str, Seen]) -> None:
    new = [uuid for uuid in seen if uuid not in desk.gpus]
    if not new:
        return
    desk.need_pool()
    elsewhere = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=new).exclude(node=desk.node)}
    for uuid in new:
        if uuid not in elsewhere:
            gpu = Gpu(node=desk.node, uuid=uuid, profiles=None)
            _fill(gpu, seen[uuid])
            gpu.generation = observed.newest(seen[uuid])
            gpu.save(force_insert=True)
            desk.gpus[uuid] = gpu
            desk.tell("gpu.found", gpu, after={"gpu": uuid, "model": gpu.model})
        elif _may_move(elsewhere[uuid]):
            desk.gpus[uuid] = _move(desk, elsewhere[uuid], seen[uuid])
        else:
            # Two nodes claim one card: the one that has it keeps it.
            log.warning("a GPU of another node was reported", extra={"gpu": uuid, "node": desk.node.name})
            desk.odd += 1


def _may_move(gpu: Gpu) -> bool:
    return gpu.retired_at is not None and not Allocation.objects.filter(gpu=gpu, holds=True).exists()


def _move(desk: Desk, gpu: Gpu, one: Seen) -> Gpu:
    """A card that was retired where it was is taken over, to be observed only."""
    gpu.node, gpu.retired_at, gpu.managed, gpu.frozen, gpu.wanted = desk.node, None, False, False, None
    gpu.generation = max(gpu.generation, observed.newest(one))
    gpu.save()
    desk.tell("gpu.moved_here", gpu, after={"gpu": gpu.uuid})
    return gpu


def _fill(gpu: Gpu, one: Seen) -> list[str]:
    """Set what the report knows; what it does not know stays as it was. Returns what changed."""
    known = gpu.pk is not None
    new: dict[str, Any] = {
        "index": one.index,
        "name": one.name or (None if known else ""),
        "model": None if known and not one.name else one.model,
        "pci_bus_id": one.pci_bus_id,
        "memory_mib": one.memory_mib,
        # 1 is what a report says that knows of no slices.
        "grid": None if known and one.grid == 1 else one.grid,
        "mig_capable": one.mig_capable,
        "profiles": _new_offers(gpu, one),
        "fabric_cluster": one.fabric_cluster,
        "fabric_clique": one.fabric_clique,
        "numa": one.numa,
        "links": None if one.links is None else list(one.links),
    }
    changed = [n for n, value in new.items() if value is not None and value != getattr(gpu, n)]
    for name in changed:
        setattr(gpu, name, new[name])
    return changed


#: What a driver offered, with the mark of what the row has, where both were found to be the same.
_same_offers: set[tuple[bytes, str]] = set()


def _new_offers(gpu: Gpu, one: Seen) -> list[dict[str, Any]] | None:
    """The offers as rows keep them if they are news; None if not.

    With MIG mode off some drivers offer nothing: what was offered before still holds.
    Offers are long and hardly ever change, so the row's are read only for those not met before.
    """
    mark: str | None = getattr(gpu, "offers_mark", None)
    if not one.offers:
        has_none = mark == "" if mark is not None else gpu.profiles is None
        return [] if has_none else None
    pair = (msgspec.json.encode(one.offers), mark or "")
    if pair in _same_offers:
        return None
    offers: list[dict[str, Any]] = observed.plain(one.offers)
    if offers != gpu.profiles:
        return offers
    if pair[1]:
        if len(_same_offers) >= 1024:
            _same_offers.clear()
        _same_offers.add(pair)
    return None


def _update(desk: Desk, gpu: Gpu, one: Seen) -> None:
    before = {name: getattr(gpu, name) for name in ("model", "grid")}
    changed = _fill(gpu, one)
    if not changed:
        return
    desk.need_pool()
    odd = sorted({"model", "grid"} & set(changed))
    if odd and Allocation.objects.filter(gpu=gpu, holds=True).exists():
        # Bookings were made on that grid; a card does not change it.
        for name in odd:
            setattr(gpu, name, before[name])
            changed.remove(name)
        desk.odd += len(odd)
    gpu.save(update_fields=changed)


def _knows_more(gpu: Gpu, one: Seen) -> bool:
    """Whether the agent was told more than we remember: we come from an older backup.

    By a number that we have not given yet, or by bookings that we have never made.
    """
    if observed.newest(one) > gpu.generation:
        return True
    layout = layout_of(gpu)
    strange = observed.unheard_of(layout, gpu.generation, one) if layout is not None else frozenset()
    return bool(strange) and Allocation.objects.filter(pk__in=strange).count() < len(strange)


def _force_observe(desk: Desk, gpu: Gpu, generation: int) -> None:
    """Nothing is wiped: an operator looks at what is there, and manages it anew."""
    desk.need_pool()
    before = {"managed": gpu.managed, "generation": gpu.generation}
    commands.supersede([gpu.pk])
    desk.commands.pop(gpu.pk, None)
    gpu.managed, gpu.wanted, gpu.generation = False, None, generation
    gpu.save(update_fields=["managed", "wanted", "generation"])
    desk.tell("gpu.observe_forced", gpu, before=before, after={"gpu": gpu.uuid, "generation": generation})


def _note_loss(desk: Desk, gpu: Gpu, one: Seen | None) -> None:
    """A GPU that falls off, or comes back, changes what can be booked."""
    state = desk.states.get(gpu.pk)
    if one is None or one.lost == (state is not None and state.lost):
        return
    desk.need_pool()
    desk.tell("gpu.lost" if one.lost else "gpu.found_again", gpu, after={"gpu": gpu.uuid})


def _sync_blockers(desk: Desk, gpu: Gpu, one: Seen | None) -> None:
    if one is None:
        # Neither free nor broken: nobody says what is on it.
        wanted: observed.Blockers | None = {(0, gpu.grid, observed.UNKNOWN): "not in the node's last report"}
    else:
        ending = any(row.reservation.state == State.ENDING for row in desk.allocations[gpu.pk])
        wanted = observed.blockers(layout_of(gpu), replace(one, grid=gpu.grid), ending=ending)
    if wanted is None or gpu.retired_at is not None:
        return
    present = {(b.span.lower, b.span.upper - b.span.lower, b.kind): b for b in desk.blockers[gpu.pk]}
    gone = [row for key, row in present.items() if key not in wanted]
    new = [key for key in wanted if key not in present]
    for key in wanted.keys() & present.keys():
        if present[key].detail != wanted[key]:
            Blocker.objects.filter(pk=present[key].pk).update(detail=wanted[key])
    if not gone and not new:
        return
    desk.need_pool()
    Blocker.objects.filter(pk__in=[row.pk for row in gone]).delete()
    made = [_blocker(gpu, key, wanted[key], desk.now) for key in new]
    Blocker.objects.bulk_create(made)
    desk.blockers[gpu.pk] = [row for row in desk.blockers[gpu.pk] if row not in gone] + made


def _blocker(gpu: Gpu, key: tuple[int, int, str], detail: str, now: datetime) -> Blocker:
    start, size, kind = key
    span = NumericRange(start, start + size)
    return Blocker(gpu=gpu, span=span, since=now, kind=kind, detail=detail)


_COLUMNS = {
    "gpu_id": "bigint",
    "mig": "boolean",
    "mig_pending": "boolean",
    "instances": "jsonb",
    "processes": "jsonb",
    "generation": "bigint",
    "held": "jsonb",
    "trouble": "jsonb",
    "lost": "boolean",
    "readings": "jsonb",
    "shares": "jsonb",
    "health": "jsonb",
    "sampled_at": "timestamptz",
    "received_at": "timestamptz",
}
_NAMES = ", ".join(_COLUMNS)

_UPSERT = f"""
INSERT INTO pool_gpustate ({_NAMES})
SELECT {_NAMES}
FROM jsonb_to_recordset(%s::jsonb) AS row ({", ".join(" ".join(one) for one in _COLUMNS.items())})
ON CONFLICT (gpu_id) DO UPDATE SET {", ".join(f"{name} = EXCLUDED.{name}" for name in list(_COLUMNS)[1:])}
"""  # noqa: S608 - names of our own


def _write_states(desk: Desk, seen: dict[str, Seen]) -> None:
    """All live states of the node in one statement."""
    rows = []
    for uuid, gpu in desk.gpus.items():
        if uuid in seen:
            rows.append(_state(gpu, seen[uuid], desk))
        elif gpu.pk in desk.states:
            rows.append(_absent(desk.states[gpu.pk]))
    if not rows:
        return
    told = msgspec.json.encode(rows)
    if b"\\u0000" in told:  # PostgreSQL takes no NUL
        told = msgspec.json.encode(observed.plain(rows))
    with connection.cursor() as cursor:
        cursor.execute(_UPSERT, [told.decode()])


def _state(gpu: Gpu, one: Seen, desk: Desk) -> dict[str, Any]:
    return {
        "gpu_id": gpu.pk,
        "mig": one.mig,
        "mig_pending": one.mig_pending,
        "instances": one.instances,
        "processes": one.processes,
        "generation": one.generation,
        "held": sorted(one.held),
        "trouble": None if one.trouble is None else observed.plain(one.trouble),
        "lost": one.lost,
        "readings": one.readings,
        "shares": one.shares,
        "health": one.health,
        "sampled_at": desk.report.sampled_at,
        "received_at": desk.received,
    }


def _absent(state: GpuState) -> dict[str, Any]:
    """Nothing is measured any more; when it was last, stays."""
    return {
        "gpu_id": state.gpu_id,
        "generation": state.generation,
        "held": [],
        "lost": state.lost,
        "readings": {},
        "shares": [],
        "health": {},
        "sampled_at": state.sampled_at,
        "received_at": state.received_at,
    }
