"""The part of a report that closes loops: commands seen done, refused, or to be given once more.

All functions are steps of telemetry.record, after telemetry_inventory.sync:
the rows on the desk are current, `states` is what was known before.
"""

from __future__ import annotations

import msgspec

from pool.core import observed, wire
from pool.core.observed import Seen
from pool.core.states import State
from pool.models import Blocker, Command, Gpu
from pool.services import commands, settling
from pool.services.telemetry_desk import Desk, layout_of
from pool.services.telemetry_node import TELLS_MORE


def settle(desk: Desk, *, returned: bool) -> None:
    """Settle what is seen done, keep what was refused, and command anew what is seen to differ.

    `returned`: the node is back, was booted or has reached Redis again, so what
    was refused before is tried at once.
    """
    for one in desk.seen:
        gpu = desk.gpus.get(one.uuid)
        if gpu is None:
            continue
        command = desk.commands.get(gpu.pk)
        if command is not None and _is_done(desk, command, one):
            desk.need_pool()
            commands.settle([desk.commands.pop(gpu.pk).pk], desk.now)
        elif command is not None:
            _note_trouble(desk, gpu, command, one, returned=returned)
        if not _settle_allocations(desk, gpu, one):
            _repair(desk, gpu, one)


def _is_done(desk: Desk, command: Command, one: Seen) -> bool:
    return _settled(desk, msgspec.convert(command.layout, wire.Layout), command.generation, one)


def _settled(desk: Desk, layout: wire.Layout, generation: int, one: Seen) -> bool:
    """An agent whose wire knows of no resets is not waited for."""
    return observed.settled(layout, generation, one, resets=desk.report.wire >= TELLS_MORE)


def _note_trouble(desk: Desk, gpu: Gpu, command: Command, one: Seen, *, returned: bool) -> None:
    told = None if one.trouble is None else observed.plain(one.trouble)
    commands.note_trouble(command, one.trouble, told, desk.received)
    if command.trouble is not None and (returned or _way_is_free(desk, gpu, command, one)):
        commands.hasten([command], desk.received)


def _way_is_free(desk: Desk, gpu: Gpu, command: Command, one: Seen) -> bool:
    """Whether what stood in the way is gone since the last report."""
    trouble = command.trouble or {}
    if trouble.get("code") == "foreign":
        return not _foreign(desk, gpu)
    before = desk.states.get(gpu.pk)
    if trouble.get("code") != "in_use" or before is None or not before.instances:
        return False
    had = any(instance["processes"] for instance in before.instances)
    return had and observed.nobody_left(layout_of(gpu), one)


def _foreign(desk: Desk, gpu: Gpu) -> bool:
    return any(blocker.kind == Blocker.Kind.FOREIGN for blocker in desk.blockers[gpu.pk])


def _settle_allocations(desk: Desk, gpu: Gpu, one: Seen) -> bool:
    """Tell reservations what is in force on this GPU and what has left it; True if that commanded it anew."""
    if not _is_news(desk, gpu, one):
        return False
    desk.need_pool()
    assert desk.pool is not None
    before = gpu.generation
    label = f"node:{desk.node.name}"
    settling.settle_gpu(pool=desk.pool, gpu=gpu, seen=one, now=desk.now, label=label)
    return gpu.generation != before


def _is_news(desk: Desk, gpu: Gpu, one: Seen) -> bool:
    """Whether the report says anything about allocations that the rows do not say yet."""
    rows = desk.allocations[gpu.pk]
    layout = layout_of(gpu)
    ending = [str(row.pk) for row in rows if row.reservation.state == State.ENDING]
    if ending and observed.gone(ending, gpu.generation, one):
        return True
    if layout is not None and settling.unsaid(rows, gpu, layout, one):
        return True
    staying = [row for row in rows if row.reservation.state != State.ENDING]
    if not staying or layout is None or not observed.readable(layout, one):
        return False
    in_force = observed.in_force(layout, one)
    now = [in_force.get(str(row.pk)) for row in staying]
    then = [None if row.ready_at is None else row.mig_uuid for row in staying]
    return now != then or (None in now and _new_trouble(desk, gpu, one))


def _new_trouble(desk: Desk, gpu: Gpu, one: Seen) -> bool:
    if one.trouble is None or one.trouble.generation < gpu.generation:
        return False
    before = desk.states.get(gpu.pk)
    return before is None or before.trouble != observed.plain(one.trouble)


def _repair(desk: Desk, gpu: Gpu, one: Seen) -> None:
    """With nothing open, what is seen must be what is wanted; else it is commanded once more.

    So is what the agent will not take from us, because it had another of that number.
    """
    layout = layout_of(gpu)
    if layout is None or not desk.commandable(gpu):
        return
    command = desk.commands.get(gpu.pk)
    if command is not None and not _is_not_taken(command, layout, one):
        return
    if not observed.readable(layout, one) or _settled(desk, layout, gpu.generation, one):
        return
    desk.need_pool()
    for anew in commands.reissue([gpu], desk.now):
        desk.commands[gpu.pk] = anew
        anew.next_at = desk.received  # this very answer carries it, too


def _is_not_taken(command: Command, layout: wire.Layout, one: Seen) -> bool:
    """Sent with an answer before, and still the agent holds something else to be done."""
    return command.sent_at is not None and observed.contradicts(layout, command.generation, one)


def to_resend(desk: Desk) -> list[Command]:
    """Open commands that may be sent, and that the agent understands.

    Not where a freeze or a known foreign instance stands against it.
    """
    reported = {one.uuid for one in desk.seen}
    found = []
    for gpu in desk.gpus.values():
        command = desk.commands.get(gpu.pk)
        if command is None or gpu.uuid not in reported or not desk.commandable(gpu):
            continue
        if not commands.understood(gpu.use, desk.node.wire):
            continue
        if (command.trouble or {}).get("code") == "foreign" and _foreign(desk, gpu):
            continue
        found.append(command)
    return found
