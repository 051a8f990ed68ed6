"""Reports of nodes: one transaction each, and the answer that carries the node's open commands.

An ordinary report writes the node's row and the live states of its GPUs.
Only one that changes what the pool can give, or settles something, takes the
pool's lock; it is found out without the lock and then done anew under it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F

from pool.core import health, observed, wire
from pool.core.errors import Code, Refusal
from pool.models import Node
from pool.queries import clock, stays
from pool.services import (
    broker,
    commands,
    events,
    locks,
    telemetry_happened,
    telemetry_inventory,
    telemetry_node,
    telemetry_settle,
)
from pool.services.telemetry_desk import Desk, NeedsPool

#: While Redis cannot be reached, and while a node is coming back, reports are the faster way.
SOON_S = 3.0
#: A report of another boot counts as newer by its time, or when the node was silent for so long:
#: a clock may be wrong after a boot.
BOOT_GAP = timedelta(seconds=20)


def record(
    *, node: Node, report: wire.Report, received: datetime, now: datetime | None = None
) -> wire.Answer:
    """Take a report of `node`, which its token has named. `received` is real time, `now` the portal's clock.

    An older report, or the same once more, changes nothing and is answered all
    the same. An agent whose version is too old is noted and sent nothing.
    Refuses whole with WRONG_NODE, UNSUPPORTED_WIRE (too new), MALFORMED,
    NAIVE_TIME; BUSY when a lock was not given in time.
    """
    _check(node, report)
    if report.wire < min(wire.ACCEPTED):
        _note_old(node.pk, report)
        return wire.Answer(accepted_seq=report.seq, next_report_s=float(settings.REPORT_SECONDS))
    seen, dropped = observed.clean(report.gpus)
    desk = Desk(report=report, seen=seen, dropped=dropped, received=received, now=now or clock.now())
    try:
        return _record(node.pk, None, desk)
    except NeedsPool:
        return _record(node.pk, node.pool_id, desk)


@locks.use_case
def mark_silent(*, pool_id: int, received: datetime) -> int:
    """Set unknown the GPUs of the pool's nodes that have missed three reports; returns how many. Real time.

    The due lane calls this. A node that was never heard has no GPUs to mark.
    """
    last = received - timedelta(seconds=settings.REPORT_SECONDS * health.MISSED)
    silent = Node.objects.filter(pool=pool_id, unknown_since=None, received_at__lt=last)
    if not silent.exists():
        return 0
    locks.changed(locks.pool(pool_id))
    # Asked again in the statement: a report may have come between the two.
    return silent.update(unknown_since=F("received_at"), good_reports=0)


def _check(node: Node, report: wire.Report) -> None:
    if report.node != node.name or (node.machine_id and report.machine_id != node.machine_id):
        raise Refusal(Code.WRONG_NODE)
    if report.wire > max(wire.ACCEPTED):
        raise Refusal(Code.UNSUPPORTED_WIRE, wire=report.wire, accepted=list(wire.ACCEPTED))
    if report.sampled_at.tzinfo is None:
        raise Refusal(Code.NAIVE_TIME, pointer="/sampled_at")
    if not 0 <= report.seq < 2**62:
        raise Refusal(Code.MALFORMED, pointer="/seq", why="out of range")
    if not 0 < len(report.boot_id) <= 64 or not report.boot_id.isprintable():
        raise Refusal(Code.MALFORMED, pointer="/boot_id", why="not an id")


@locks.use_case
def _note_old(node_id: int, report: wire.Report) -> None:
    telemetry_node.note_old_agent(node_id, report)


@locks.use_case
def _record(node_id: int, pool_id: int | None, desk: Desk) -> wire.Answer:
    pool = locks.pool(pool_id) if pool_id is not None else None
    node = locks.node(node_id)
    if pool is not None and node.pool_id != pool.pk:  # it has joined another pool meanwhile
        raise Refusal(Code.BUSY)
    desk.open(node, pool)
    if _is_newer(desk):
        returned = telemetry_node.note(desk)
        telemetry_inventory.sync(desk)
        telemetry_happened.take(desk)
        telemetry_settle.settle(desk, returned=returned)
        node.dropped_values += desk.dropped + desk.odd
        node.save(update_fields=telemetry_node.WRITTEN)
        if pool is not None:
            locks.changed(pool)
    return _answer(desk)


def _is_newer(desk: Desk) -> bool:
    """Within a boot the number decides; two boots are told apart by time."""
    node, report = desk.node, desk.report
    if node.received_at is None or not node.boot_id:
        return True
    if report.boot_id == node.boot_id:
        return report.seq > node.seq
    last = max((s.sampled_at for s in desk.states.values() if s.sampled_at), default=None)
    return last is None or report.sampled_at > last or desk.received - node.received_at > BOOT_GAP


def _answer(desk: Desk) -> wire.Answer:
    node = desk.node
    knows_stays = desk.report.wire >= telemetry_node.TELLS_MORE
    managed = [gpu for gpu in desk.gpus.values() if desk.ours(gpu) and not gpu.frozen]
    due = commands.resend(telemetry_settle.to_resend(desk), desk.received)
    uuids = {gpu.pk: gpu.uuid for gpu in managed}
    events.write(desk.drafts)
    return wire.Answer(
        wire=desk.report.wire,
        accepted_seq=node.seq,
        commands=tuple(commands.message(row, node.name, uuids[row.gpu_id], node.wire) for row in due),
        next_report_s=_next_report_s(desk),
        manage=tuple(sorted(uuids.values())),
        frozen=node.frozen or node.pool.frozen,
        stays=stays.of_node(node.pk) if knows_stays and any(desk.allocations.values()) else (),
        policy=stays.policy(node.pool),
    )


def _next_report_s(desk: Desk) -> float:
    node = desk.node
    cut_off = bool(node.broker_hash) and not (node.broker_ok and broker.reachable())
    waiting = not node.broker_hash and desk.has_open()
    usual = float(settings.REPORT_SECONDS)
    return min(SOON_S, usual) if cut_off or waiting or node.unknown_since is not None else usual
