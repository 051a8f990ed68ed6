"""Commands: what a GPU shall look like is computed here, from the allocations that are wanted now.

The row is the truth, the message that `broker` sends is a nudge. All functions
are steps: the caller has the transaction and the locks on pool and GPUs.
Settling reservations is not done here.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import F

from pool.core import wire
from pool.core.shapes import ALL_PCT, Class
from pool.core.states import State
from pool.models import Allocation, Command, Gpu, Pool, Reservation
from pool.queries import clock, stays
from pool.queries import commands as queries
from pool.services import broker, modes

#: A report carries a command again when it has been open for longer than this.
UNSETTLED = timedelta(seconds=1)
#: After refusals that the agent reported, each wait doubles between these.
LEAST_WAIT = timedelta(seconds=15)
MOST_WAIT = timedelta(minutes=10)
#: The agent did not try: it had not heard yet that it may. Sent again at once.
NOT_TRIED = frozenset({"observe", "frozen"})

#: What a layout tells of an allocation: rows are wide, and here many are read under the pool's lock.
_HELD = (
    *("gpu", "kind", "profile", "profile_id", "span", "adopted"),
    *("share_memory_mib", "share_compute_pct", "share_limit_pct"),
    *(
        f"reservation__{name}"
        for name in ("ask", "klass", "imex_channel", "recall_at", "preempt_signal", "preempt_grace_s")
    ),
    *("reservation__team__name", "reservation__team__posix_name", "reservation__owner__posix_name"),
)


def issue(gpus: Iterable[Gpu], now: datetime) -> list[Command]:
    """Command each GPU whose wanted layout has changed; the rest is left alone.

    The rows are locked and as in the database. A GPU that is frozen (itself,
    its node or pool) or not managed gets nothing: call this again when that is
    lifted. Sent after commit.
    """
    return _issue(list(gpus), now, again=False)


def reissue(gpus: Iterable[Gpu], now: datetime) -> list[Command]:
    """As `issue`, also where nothing changed: what is seen differs from what is wanted."""
    return _issue(list(gpus), now, again=True)


def _issue(gpus: list[Gpu], now: datetime, *, again: bool) -> list[Command]:
    may = queries.commandable(gpu.pk for gpu in gpus)
    gpus = [gpu for gpu in gpus if gpu.pk in may and understood(gpu.use, may[gpu.pk].wire)]
    wanted = layouts(gpus, now)
    todo = [gpu for gpu in gpus if again or builtins(wanted[gpu.pk]) != gpu.wanted]
    if not todo:
        return []
    supersede(gpu.pk for gpu in todo)
    for gpu in todo:
        gpu.generation += 1
        gpu.wanted = builtins(wanted[gpu.pk])
    Gpu.objects.bulk_update(todo, ["generation", "wanted"])
    soon = clock.real_now() + UNSETTLED
    made = Command.objects.bulk_create(
        Command(
            gpu=gpu,
            node_id=gpu.node_id,
            generation=gpu.generation,
            layout=gpu.wanted,
            issued_at=now,
            next_at=soon,
        )
        for gpu in todo
    )
    _nudge(((one, one.gpu.uuid) for one in made), may)
    return made


def layouts(gpus: Collection[Gpu], now: datetime) -> dict[int, wire.Layout]:
    """By GPU id, what each shall look like at `now`: all wanted allocations that are starting or active.

    A managed MIG GPU is in MIG mode even when it is empty. Where the node keeps
    others off what is held (DESIGN 3), a GPU without MIG takes no process while
    nobody holds it. Takes GPUs with their nodes.
    """
    rows = Allocation.objects.filter(
        gpu__in=[gpu.pk for gpu in gpus],
        holds=True,
        wanted_at__isnull=False,
        reservation__state__in=(State.STARTING, State.ACTIVE),
    )
    held: dict[int, list[wire.Held]] = defaultdict(list)
    whole = rows.select_related("reservation__team", "reservation__owner").only(*_HELD)
    for row in whole.order_by("span", "id"):
        held[row.gpu_id].append(_held(row, now))
    several = _several_users(gpus)
    any_use = [gpu.pk for gpu in gpus if gpu.use == Gpu.Use.AUTO]
    ahead = modes.ahead(any_use, now) if any_use else {}
    return {gpu.pk: _layout(gpu, tuple(held.get(gpu.pk, ())), several, ahead.get(gpu.pk)) for gpu in gpus}


def _layout(
    gpu: Gpu, held: tuple[wire.Held, ...], several: Collection[int], ahead: bool | None
) -> wire.Layout:
    is_mig = _is_mig(gpu, held, ahead)
    shared = gpu.use == Gpu.Use.SHARE or any(one.share is not None for one in held)
    return wire.Layout(
        mig=is_mig,
        held=held,
        sharing=cast(wire.Sharing, gpu.sharing) if shared else None,
        multi_user=gpu.node.pool_id in several,
        access=cast(wire.Access, gpu.node.access),
        prohibited=not is_mig and gpu.node.access != "advisory",
        reset=gpu.reset,
    )


def _is_mig(gpu: Gpu, held: tuple[wire.Held, ...], ahead: bool | None) -> bool:
    """The mode it shall be in: of any use, that of who holds it, or for whom it is blocked (`ahead`).

    While nobody is, it stays as it is.
    """
    if gpu.use != Gpu.Use.AUTO:
        return bool(gpu.use == Gpu.Use.MIG)
    if held:
        return any(one.profile_id is not None for one in held)
    return bool((gpu.wanted or {}).get("mig")) if ahead is None else ahead


def _several_users(gpus: Collection[Gpu]) -> set[int]:
    """The pools of GPUs with MPS that let one server serve several accounts."""
    asked = {gpu.node.pool_id for gpu in gpus if gpu.sharing == Gpu.Sharing.MPS}
    if not asked:
        return set()
    return set(Pool.objects.filter(pk__in=asked, mps_multi_user=True).values_list("pk", flat=True))


def _held(row: Allocation, now: datetime) -> wire.Held:
    is_slice = row.kind == Allocation.Kind.MIG
    booked = row.reservation
    warned = is_warned(booked, now)
    return wire.Held(
        allocation=str(row.pk),
        owner=chain(row),
        profile=row.profile if is_slice else None,
        profile_id=row.profile_id if is_slice else None,
        start=row.span.lower,
        size=row.span.upper - row.span.lower,
        share=_share(row) if row.kind == Allocation.Kind.SHARE else None,
        reservation=str(booked.pk),
        team=booked.team.name,
        users=stays.accounts(booked.owner.posix_name, booked.team.posix_name),
        adopt=row.adopted,
        phase="checkpoint" if warned else "run",
        signal=booked.preempt_signal if warned else "",
        imex=booked.imex_channel,
    )


def is_warned(row: Reservation, now: datetime) -> bool:
    """Whether it is time for the signal that its owner asked for: so long before it is taken back."""
    if row.recall_at is None or not row.preempt_signal:
        return False
    return bool(row.recall_at - timedelta(seconds=row.preempt_grace_s or 0) <= now)


def _share(row: Allocation) -> wire.Share:
    """A share as its node enforces it; batch work yields."""
    assert row.share_memory_mib is not None
    return wire.Share(
        memory_mib=row.share_memory_mib,
        compute_pct=row.share_compute_pct or 0,
        limit_pct=row.share_limit_pct or ALL_PCT,
        batch=row.reservation.klass == Class.BATCH,
    )


def chain(row: Allocation) -> str:
    """Who keeps the instance: the same team, owner and ask, so that back-to-back is one stay."""
    ask = json.dumps(row.reservation.ask, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(ask.encode()).hexdigest()[:16]
    return f"{row.reservation.team_id}:{row.reservation.owner_id}:{digest}"


def builtins(layout: wire.Layout) -> dict[str, Any]:
    """The layout as the JSON value that rows keep."""
    value: dict[str, Any] = json.loads(msgspec.json.encode(layout))
    return value


def understood(use: str, spoken: int) -> bool:
    """Whether an agent that speaks this version can be told what a GPU of this use shall look like.

    One before version 2 knows no shares and would take each for the whole GPU.
    """
    return use != Gpu.Use.SHARE or spoken not in wire.ACCEPTED or spoken >= wire.SHARES_SINCE


def message(row: Command, node: str, uuid: str, spoken: int = wire.WIRE) -> wire.Command:
    """The row as it travels to `node`, whose agent speaks version `spoken`."""
    return wire.Command(
        wire=spoken if spoken in wire.ACCEPTED else wire.WIRE,
        id=str(row.pk),
        node=node,
        gpu=uuid,
        generation=row.generation,
        layout=msgspec.convert(row.layout, wire.Layout),
    )


def supersede(gpu_ids: Iterable[int]) -> None:
    """Close the open commands of these GPUs: something newer, or nothing at all, is wanted."""
    Command.objects.filter(gpu__in=list(gpu_ids), state=Command.State.OPEN).update(
        state=Command.State.SUPERSEDED, next_at=None
    )


def settle(command_ids: Collection[UUID], now: datetime) -> None:
    """Close commands whose layout has been seen."""
    if command_ids:
        Command.objects.filter(pk__in=command_ids, state=Command.State.OPEN).update(
            state=Command.State.SETTLED, settled_at=now, next_at=None
        )


def note_trouble(row: Command, trouble: wire.Trouble | None, told: Any, received: datetime) -> None:
    """Keep what the agent said about this open command; `told` is its JSON. Real time.

    A refusal that is new starts the wait, one that stays does not prolong it.
    """
    if trouble is None or trouble.generation != row.generation or trouble.code in NOT_TRIED:
        changed = row.trouble is not None
        row.trouble = None
        if trouble is not None and trouble.code in NOT_TRIED:
            changed, row.next_at = True, received
    else:
        changed = row.trouble != told
        if row.trouble is None:
            row.attempts = 0  # from here on they count refusals
            row.next_at = received + _wait(row.attempts)
        row.trouble = told
    if changed:
        row.save(update_fields=["trouble", "attempts", "next_at"])


def hasten(rows: Collection[Command], received: datetime) -> None:
    """Forget earlier refusals, because what caused them may be over; sent with the next answer."""
    for row in rows:
        row.attempts, row.trouble, row.next_at = 0, None, received
    Command.objects.filter(pk__in=[row.pk for row in rows]).update(attempts=0, trouble=None, next_at=received)


def resend(rows: Collection[Command], received: datetime) -> list[Command]:
    """Those of the open commands that the answer to this report shall carry; counts them. Real time."""
    due = [row for row in rows if row.next_at is None or row.next_at <= received]
    for row in due:
        row.attempts += 1
        row.sent_at = received
        row.next_at = received + (_wait(row.attempts) if row.trouble else timedelta())
    if due:
        Command.objects.bulk_update(due, ["attempts", "sent_at", "next_at"])
    return due


def _wait(attempts: int) -> timedelta:
    doublings: int = 2 ** min(attempts, 10)
    return min(LEAST_WAIT * doublings, MOST_WAIT)


def nudge_open(gpu_ids: Iterable[int]) -> None:
    """Send what is open once more after commit: it was held back by a freeze that is over."""
    may = queries.commandable(gpu_ids)
    rows = Command.objects.filter(gpu__in=list(may), state=Command.State.OPEN)
    rows = rows.annotate(uuid=F("gpu__uuid"), use=F("gpu__use"))
    _nudge(((row, row.uuid) for row in rows if understood(row.use, may[row.gpu_id].wire)), may)


def _nudge(rows: Iterable[tuple[Command, str]], may: Mapping[int, queries.Addressee]) -> None:
    """Send these after commit. A node that is not heard from gets its commands with the answer to its report.

    That is looked at first: its agent may know more than a database that was restored.
    """
    to = [(row, uuid, may[row.gpu_id]) for row, uuid in rows]
    messages = [message(row, one.node, uuid, one.wire) for row, uuid, one in to if one.heard]
    if messages:
        transaction.on_commit(partial(broker.nudge, messages), robust=True)
