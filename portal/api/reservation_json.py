"""A reservation, its places and its events as REST shows them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pool.core.admission import Loan
from pool.core.period import duration_text
from pool.core.shapes import Sharing
from pool.core.shares import ISOLATION
from pool.queries import reservations as queries
from portal.api.times import instant, loans

if TYPE_CHECKING:
    from pool.models import Reservation as Row
    from pool.queries.reservations import AllocationView, ReservationView, ShareView
    from pool.queries.troubles import Process
    from pool.queries.waiting import Wait


def resource(view: ReservationView, borrowed: Iterable[Loan] | None = None) -> dict[str, Any]:
    """A reservation as REST shows it; times in UTC.

    `unknown_since`: those of its nodes that are not heard from, null for one that never was.
    `trouble` of an allocation: gpu_lost, gpu_unknown (its node does not report it), gpu_faulty (`xid`, and
    what is done about it: `action`), share_degraded, share_over, or in_use (it is to go, and a process
    still runs); before its start gpu_lost, gpu_faulty and gpu_unknown alone, and then it is placed elsewhere
    as soon as something fits; `trouble_since` when that is known, `trouble_until` when the booking fails if
    it stays so. `processes` null: not known, or not to be told to the caller.
    Of one that waits `start` and `end` say only for how long it is wanted.
    `hold_until`: when it is let go, of one that is held; `approve_by`: when one lapses that nobody approved.
    `continues` is the booking whose rest this is, `continued_by` the rest of this one.
    `recall_at`: when it is taken back, once that is settled. `retained_milli_hours`: what giving it back
    late has cost. `justification` is told to the team alone. `wait`: the window of one that waits or has an
    offer from the wait list.
    """
    return {
        "id": str(view.id),
        "state": view.state,
        "state_reason": view.state_reason,
        "start": instant(view.start),
        "end": instant(view.end),
        "version": view.version,
        "team": view.team,
        "pool": view.pool,
        "title": view.title,
        "class": view.klass,
        "restartable": view.restartable,
        "owner": view.owner,
        "booked_by": view.booked_by,
        "ask": view.ask,
        "continues": str(view.continues) if view.continues else None,
        "continued_by": str(view.continued_by) if view.continued_by else None,
        "notice_until": instant(view.notice_until),
        "hold_until": instant(view.hold_until),
        **_terms(view, borrowed),
        "wait": _wait(view.wait) if view.wait else None,
        "unknown_since": {node: instant(since) for node, since in view.unknown_since.items()},
        "allocations": [_allocation(a) for a in view.allocations],
    }


def _terms(view: ReservationView, borrowed: Iterable[Loan] | None) -> dict[str, Any]:
    """On what terms it is booked, and what may become of it by them."""
    return {
        "preemptible": view.preemptible,
        "priority": view.priority,
        "preempt": _preempt(view),
        "justification": view.justification,
        "approve_by": instant(view.approve_by),
        "recall_at": instant(view.recall_at),
        "retained_milli_hours": view.retained_milli_hours,
        "reclaimable": None if borrowed is None else loans(borrowed),
    }


def _preempt(view: ReservationView) -> dict[str, Any] | None:
    """The word before it is taken back, as its body asked for it."""
    if not view.preempt_signal:
        return None
    grace = timedelta(seconds=view.preempt_grace_s or 0)
    return {"signal": view.preempt_signal, "grace": duration_text(grace)}


def _wait(wait: Wait) -> dict[str, Any]:
    return {
        "since": instant(wait.since),
        "earliest": instant(wait.earliest),
        "latest": instant(wait.latest),
        "partial_ok": wait.partial_ok,
        "asks_first": wait.asks_first,
    }


def _allocation(view: AllocationView) -> dict[str, Any]:
    trouble = view.trouble
    processes = trouble.processes if trouble else None
    return {
        "id": str(view.id),
        "node": view.node,
        "gpu": view.gpu,
        "gpu_uuid": view.gpu_uuid,
        "kind": view.kind,
        "model": view.model,
        "profile": view.profile or None,
        "span": {"start": view.start, "size": view.size},
        "mig_uuid": view.mig_uuid or None,
        "share": _share(view.share) if view.share else None,
        "env": view.env,
        "trouble": trouble.code if trouble else None,
        "trouble_since": instant(trouble.since) if trouble else None,
        "trouble_until": instant(trouble.until) if trouble else None,
        "xid": trouble.xid if trouble else None,
        "action": (trouble.action or None) if trouble else None,
        "processes": None if processes is None else [_process(one) for one in processes],
    }


def _share(share: ShareView) -> dict[str, Any]:
    """`isolation`: what keeps it apart from the others on the GPU: driver, library or none."""
    return {
        "memory_mib": share.memory_mib,
        "compute": {"guaranteed": share.guaranteed, "limit": share.limit},
        "sharing": share.sharing,
        "isolation": ISOLATION[Sharing(share.sharing)],
    }


def _process(one: Process) -> dict[str, Any]:
    return {"pid": one.pid, "name": one.name or None, "user": one.user or None}


def event_json(event: Any, row: Row) -> dict[str, Any]:
    return {
        "id": event.pk,
        "at": instant(event.at),
        "actor": event.actor_label,
        "verb": event.verb,
        "request_id": event.request_id,
        "before": event.before,
        "after": queries.facts_of(event, row),
    }
