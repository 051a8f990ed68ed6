"""Faults of GPUs: opened by what reports tell, counted towards their end, closed by policy or an operator.

`listen` is a step of telemetry.record; what a fault calls for is decided in
core.health. A GPU with an open fault has one blocker of kind health over all
of its span, and takes no new booking until it is given back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from django.db.backends.postgresql.psycopg_any import NumericRange

from pool.core import health
from pool.core.errors import Code, Refusal
from pool.core.health import OUT_OF_USE, Action, FaultKind
from pool.core.roles import Action as Doing
from pool.core.states import State
from pool.models import Blocker, Fault, Gpu, Node, Reservation
from pool.queries import access
from pool.services import commands, events, locks, outages

if TYPE_CHECKING:
    from pool.core.observed import Seen
    from pool.models import User
    from pool.services.telemetry_desk import Desk

    class Heard(Protocol):
        """An Xid that is told for the first time."""

        @property
        def xid(self) -> int: ...


Key = tuple[str, int | None]


def listen(desk: Desk, gpu: Gpu, one: Seen, xids: Sequence[Heard]) -> None:
    """Take over what a report says of the health of `gpu`; without a fault and an Xid that costs nothing.

    Opens a fault for what takes it out of use, counts what comes again and the
    good reports since, has it reset when it is empty, and gives it back where
    the pool's policy does that by itself.
    """
    state = _signs(one)
    grave = [heard.xid for heard in xids if health.action(heard.xid) in OUT_OF_USE]
    if not state and not grave and not desk.faults.get(gpu.pk):
        return
    came: dict[Key, tuple[Action, int]] = {(kind, None): (what, 1) for kind, what in state.items()}
    for xid in set(grave):
        came[FaultKind.XID, xid] = (health.action(xid), grave.count(xid))
    _note(desk, gpu, one, came, standing=state)
    faults = desk.faults[gpu.pk]
    _reset(desk, gpu, one, faults)
    pool = desk.node.pool
    if pool.auto_return and faults and all(fault.good >= pool.good_probes for fault in faults):
        desk.need_pool()
        close(gpu, faults, None, desk.now, label=f"node:{desk.node.name}")
        desk.faults[gpu.pk] = []


@locks.use_case
def give_back(*, actor: User | None, gpu: str, now: datetime) -> Gpu:
    """Put a GPU that was faulty into use again; operators may, once it was seen well often enough in a row.

    Refuses with FORBIDDEN, NOT_FOUND, WRONG_STATE (doing) where no fault is
    open, NOT_HEALTHY (good, needed).
    """
    access.require(actor, Doing.MANAGE_NODE)
    found = Gpu.objects.filter(uuid=gpu).values_list("pk", "node__pool").first()
    if found is None:
        raise Refusal(Code.NOT_FOUND)
    pool = locks.pool(found[1])
    (row,) = locks.gpus([found[0]])
    faults = list(Fault.objects.filter(gpu=row, cleared_at=None))
    if not faults:
        raise Refusal(Code.WRONG_STATE, doing="give_back")
    good = min(fault.good for fault in faults)
    if good < pool.good_probes:
        raise Refusal(Code.NOT_HEALTHY, good=good, needed=pool.good_probes)
    close(row, faults, actor, now)
    locks.changed(pool)
    return row


# --- Steps --------------------------------------------------------------------


def close(gpu: Gpu, faults: Sequence[Fault], actor: User | None, now: datetime, *, label: str = "") -> None:
    """All open faults of the GPU are over, and what they kept off it may come. Under the pool's lock."""
    Fault.objects.filter(pk__in=[fault.pk for fault in faults]).update(cleared_at=now, cleared_by=actor)
    Blocker.objects.filter(gpu=gpu, kind=Blocker.Kind.HEALTH).delete()
    events.record(
        "gpu.given_back",
        actor=actor,
        now=now,
        label=label,
        pool_id=gpu.node.pool_id,
        node_id=gpu.node_id,
        gpu_id=gpu.pk,
        after={"gpu": gpu.uuid, "faults": [_said(fault) for fault in faults]},
    )


def _signs(one: Seen) -> Mapping[FaultKind, Action]:
    remapped = one.health.get("remapped") or {}
    return health.signs(
        lost=one.lost, pending=remapped.get("pending") is True, failure=remapped.get("failure") is True
    )


def _note(
    desk: Desk, gpu: Gpu, one: Seen, came: Mapping[Key, tuple[Action, int]], *, standing: Collection[str]
) -> None:
    """Open what is new, count what came again, and how many good reports in a row there were since."""
    known = {(fault.kind, fault.xid): fault for fault in desk.faults[gpu.pk]}
    new = [key for key in came if key not in known]
    if new:
        desk.need_pool()
        desk.faults[gpu.pk] += [_open(desk, gpu, key, came[key]) for key in new]
        _block(gpu, desk.faults[gpu.pk][0], desk.now)
    changed = []
    for key, fault in known.items():
        before = (fault.good, fault.count)
        # A state that stands came once; it comes again after it was well.
        if key in came and (key[0] == FaultKind.XID or fault.good):
            fault.count, fault.last_at = fault.count + came[key][1], desk.now
        fault.good = 0 if came else _good(desk, fault, one, standing)
        if before != (fault.good, fault.count):
            changed.append(fault)
    if changed:
        Fault.objects.bulk_update(changed, ["good", "count", "last_at"])
    again = [fault for fault in changed if (fault.kind, fault.xid) in came]
    if any(came[key][0] == Action.LOST for key in [*new, *((one.kind, one.xid) for one in again)]):
        desk.need_pool()
        outages.begin([gpu.pk], now=desk.now)


def _good(desk: Desk, fault: Fault, one: Seen, standing: Collection[str]) -> int:
    """The good reports in a row with this one; no more are counted than are needed."""
    if not health.is_good(
        Action(fault.action), fault.reset, one.reset, readable=_readable(one), signs=standing
    ):
        return 0
    return min(fault.good + 1, desk.node.pool.good_probes)


def _readable(one: Seen) -> bool:
    """Whether the driver answers for the GPU: a broken one has a handle, and errors for all the rest."""
    known = one.mig is False or one.instances is not None
    return not one.lost and not one.unsure and one.memory_mib is not None and known


def _open(desk: Desk, gpu: Gpu, key: Key, came: tuple[Action, int]) -> Fault:
    kind, xid = key
    fault = Fault(
        gpu=gpu,
        kind=kind,
        xid=xid,
        action=came[0],
        since=desk.now,
        last_at=desk.now,
        count=came[1],
    )
    fault.save(force_insert=True)
    desk.tell("gpu.fault", gpu, after={"gpu": gpu.uuid, **_said(fault)})
    if kind != FaultKind.LOST:  # what that means for them they are told when it is settled
        _tell_holders(desk, gpu, fault)
    return fault


def _tell_holders(desk: Desk, gpu: Gpu, fault: Fault) -> None:
    using = {one.reservation_id for one in desk.allocations[gpu.pk] if one.reservation.state == State.ACTIVE}
    desk.drafts.extend(
        events.draft(
            "reservation.fault",
            actor=None,
            now=desk.now,
            label=f"node:{desk.node.name}",
            team_id=team_id,
            pool_id=desk.node.pool_id,
            node_id=desk.node.pk,
            gpu_id=gpu.pk,
            reservation_id=pk,
            after={"gpu": gpu.uuid, "node": desk.node.name, "index": gpu.index, **_said(fault)},
        )
        for pk, team_id in Reservation.objects.filter(pk__in=using).values_list("pk", "team_id")
    )


def _said(fault: Fault) -> dict[str, str | int | None]:
    return {"kind": str(fault.kind), "xid": fault.xid, "action": str(fault.action)}


def _block(gpu: Gpu, fault: Fault, now: datetime) -> None:
    if not Blocker.objects.filter(gpu=gpu, kind=Blocker.Kind.HEALTH).exists():
        detail = f"Xid {fault.xid}" if fault.xid is not None else str(fault.kind)
        span = NumericRange(0, gpu.grid)
        Blocker.objects.create(gpu=gpu, span=span, since=now, kind=Blocker.Kind.HEALTH, detail=detail)


def _reset(desk: Desk, gpu: Gpu, one: Seen, faults: Sequence[Fault]) -> None:
    """Have the GPU reset once nothing is booked on it any more; a boot of the node is one, too."""
    waiting = [fault for fault in faults if fault.action == Action.RESET and fault.reset is None]
    asked = [fault for fault in faults if fault.reset is not None and fault.reset > one.reset]
    if not waiting and not asked:
        return
    before = Node.objects.values_list("boot_id", flat=True).get(pk=desk.node.pk)
    known = [fault for fault in (*waiting, *asked) if fault.since < desk.now]
    if before not in ("", desk.report.boot_id) and known:
        _was_reset(known)
    elif waiting and not one.lost and desk.commandable(gpu) and not desk.allocations[gpu.pk]:
        desk.need_pool()
        # An agent that outlived a backup of ours has counted further.
        gpu.reset = max(gpu.reset, one.reset) + 1
        gpu.save(update_fields=["reset"])
        Fault.objects.filter(pk__in=[fault.pk for fault in waiting]).update(reset=gpu.reset)
        for fault in waiting:
            fault.reset = gpu.reset
        desk.tell("gpu.reset_wanted", gpu, after={"gpu": gpu.uuid, "reset": gpu.reset})
        for command in commands.issue([gpu], desk.now):
            desk.commands[gpu.pk] = command


def _was_reset(faults: Sequence[Fault]) -> None:
    Fault.objects.filter(pk__in=[fault.pk for fault in faults]).update(reset=health.BY_BOOT)
    for fault in faults:
        fault.reset = health.BY_BOOT
