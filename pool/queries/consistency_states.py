"""Whether states, holds, times and the audit agree, and GPUs are told what the allocations say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from pool.core.states import HOLDING, TERMINAL, TRANSITIONS, State
from pool.queries.consistency_rows import Book, Difference, rows

# Each: what must not be, of one reservation with its allocations.
_HOLDS = """
SELECT booked.id, booked.state,
    count(alloc.id) FILTER (WHERE alloc.holds),
    count(alloc.id) FILTER (WHERE NOT alloc.holds AND alloc.left_at IS NULL AND alloc.cleaned_at IS NULL),
    count(alloc.id) FILTER (WHERE alloc.holds AND alloc.period <> booked.period),
    count(alloc.id) FILTER (WHERE alloc.holds AND NOT alloc.blocked @> alloc.period AND NOT (
        booked.recall_at IS NOT NULL AND alloc.blocked @> tstzrange(lower(alloc.period),
            least(upper(alloc.period), booked.recall_at)))),
    coalesce(sum(alloc.charge_milli) FILTER (WHERE alloc.left_at IS NULL), 0), booked.charge_milli,
    booked.ended_at IS NOT NULL, booked.started_at IS NOT NULL, booked.hold_until IS NOT NULL,
    booked.approve_by IS NOT NULL
FROM pool_reservation booked LEFT JOIN pool_allocation alloc ON alloc.reservation_id = booked.id
WHERE booked.pool_id = %s GROUP BY booked.id ORDER BY booked.id
"""

_EVENTS = """
SELECT event.reservation_id, event.verb, event.before->>'state', event.after->>'state',
    (event.after->>'version')::int
FROM pool_event event JOIN pool_reservation booked ON booked.id = event.reservation_id
WHERE booked.pool_id = %s ORDER BY event.reservation_id, event.id
"""

_RESERVATIONS = "SELECT id, state, version FROM pool_reservation WHERE pool_id = %s ORDER BY id"

_RECALLS = """
SELECT booked.id, booked.state, booked.preemptible AND booked.klass <> 'online',
    taker.state, lower(taker.period) >= booked.recall_at
FROM pool_reservation booked LEFT JOIN pool_reservation taker ON taker.id = booked.recall_for_id
WHERE booked.pool_id = %s AND booked.recall_at IS NOT NULL AND booked.state = ANY(%s) ORDER BY booked.id
"""

_PENDING = """
SELECT team.name, count(*) FROM pool_reservation booked JOIN pool_team team ON team.id = booked.team_id
WHERE booked.pool_id = %s AND booked.state = 'pending_approval' GROUP BY team.name HAVING count(*) > 3
"""

_REQUESTS = """
SELECT request.id, request.state, "grant".id IS NOT NULL
FROM pool_quotarequest request LEFT JOIN pool_quotagrant "grant" ON "grant".request_id = request.id
WHERE request.pool_id = %s
    AND (request.state IN ('approved', 'active', 'expired')) <> ("grant".id IS NOT NULL) ORDER BY request.id
"""

# Only where somebody may be told: the others hear it when the freeze is lifted.
_LAYOUTS = """
SELECT node.name || '/' || gpu.index,
    (SELECT jsonb_agg(jsonb_build_array(told->>'allocation', (told->>'start')::int, (told->>'size')::int)
        ORDER BY told->>'allocation') FROM jsonb_array_elements(gpu.wanted->'held') told),
    (SELECT jsonb_agg(jsonb_build_array(alloc.id::text, lower(alloc.span),
        upper(alloc.span) - lower(alloc.span)) ORDER BY alloc.id::text)
     FROM pool_allocation alloc JOIN pool_reservation booked ON booked.id = alloc.reservation_id
     WHERE alloc.gpu_id = gpu.id AND alloc.holds AND alloc.wanted_at IS NOT NULL
        AND booked.state IN ('starting', 'active'))
FROM pool_gpu gpu JOIN pool_node node ON node.id = gpu.node_id JOIN pool_pool pool ON pool.id = node.pool_id
WHERE pool.id = %s AND gpu.managed AND gpu.retired_at IS NULL AND NOT gpu.frozen AND NOT node.frozen
    AND NOT node.agent_frozen AND NOT pool.frozen AND (gpu.excluded OR node.managed_by = '[]'::jsonb)
ORDER BY gpu.id
"""

#: Stands for what is before the first event.
_NOTHING = ""


def differences(book: Book) -> list[Difference]:
    """Every state that does not agree with what it has, or that came without an event."""
    checks = (_holds, _events, _recalls, _pending, _requests, _layouts)
    return [one for check in checks for one in check(book)]


def _holds(book: Book) -> Iterator[Difference]:
    for pk, state, *numbers in rows(_HOLDS, book.pool):
        for rule in _wrong(State(state), numbers):
            yield Difference(rule, book.name, str(pk), {"state": state})


def _wrong(state: State, numbers: list[Any]) -> Iterator[str]:
    held, uncleaned, other_time, unblocked, counted, charge, ended, started, hold_until, approve_by = numbers
    if state not in HOLDING and held:
        yield "holds_without_a_state_that_does"
    if state in HOLDING and not held:
        yield "holds_nothing"
    if state in HOLDING - {State.ENDING}:
        if other_time or unblocked:
            yield "other_time_than_booked"
        if counted != charge:
            yield "charges_do_not_add_up"
        if held and uncleaned:
            yield "holds_only_a_part"
    if (state in TERMINAL) != ended:
        yield "end_is_missing" if state in TERMINAL else "ended_and_goes_on"
    if state is State.ACTIVE and not started:
        yield "start_is_missing"
    if (state is State.HELD and not hold_until) or (state is State.PENDING_APPROVAL and not approve_by):
        yield "limit_in_time_is_missing"


def _events(book: Book) -> Iterator[Difference]:
    """Each change of state may be, follows the one before, and has an event for its version."""
    lines: dict[UUID, list[tuple[Any, ...]]] = defaultdict(list)
    for pk, *line in rows(_EVENTS, book.pool):
        lines[pk].append(tuple(line))
    for pk, state, version in rows(_RESERVATIONS, book.pool):
        known = _NOTHING
        versions = set()
        for verb, before, after, number in lines[pk]:
            versions.add(number)
            if before is not None and before != known:
                yield Difference("event_is_missing", book.name, str(pk), {"verb": verb, "from": before})
            if after is not None:
                if known not in (_NOTHING, after) and State(after) not in TRANSITIONS[State(known)]:
                    told = {"verb": verb, "from": known, "to": after}
                    yield Difference("change_that_may_not_be", book.name, str(pk), told)
                known = after
        if known != state:
            told = {"state": state, "in_events": known or None}
            yield Difference("state_without_event", book.name, str(pk), told)
        missing = sorted(set(range(1, version + 1)) - versions)
        if missing:
            yield Difference("version_without_event", book.name, str(pk), {"versions": missing[:10]})


def _recalls(book: Book) -> Iterator[Difference]:
    """What is taken back may be, is for somebody who holds a place, and not before that is taken."""
    for pk, state, may, taker, in_time in rows(_RECALLS, book.pool, sorted(one.value for one in HOLDING)):
        data = {"state": state, "for": taker}
        if not may:
            yield Difference("recalled_although_it_stays", book.name, str(pk), data)
        elif state != State.ENDING and (taker is None or State(taker) not in HOLDING):
            yield Difference("recalled_for_nobody", book.name, str(pk), data)
        elif state != State.ENDING and not in_time:
            yield Difference("recalled_too_late", book.name, str(pk), data)


def _pending(book: Book) -> Iterator[Difference]:
    for team, number in rows(_PENDING, book.pool):
        yield Difference("too_many_pending", book.name, team, {"number": number})


def _requests(book: Book) -> Iterator[Difference]:
    for pk, state, granted in rows(_REQUESTS, book.pool):
        yield Difference("request_and_grant_differ", book.name, str(pk), {"state": state, "granted": granted})


def _layouts(book: Book) -> Iterator[Difference]:
    for gpu, *texts in rows(_LAYOUTS, book.pool):
        told, wanted = (json.loads(text) if text else [] for text in texts)
        if told != wanted:
            yield Difference("layout_differs", book.name, gpu, {"told": told, "wanted": wanted})
        taken = [at for _, start, size in told for at in range(start, start + size)]
        if len(taken) != len(set(taken)) and not _are_shares(book, told):
            yield Difference("layout_overlaps", book.name, gpu, {"told": told})


def _are_shares(book: Book, told: list[list[Any]]) -> bool:
    """Shares of one GPU all have all of its slices."""
    ids = [UUID(one[0]) for one in told]
    found = rows("SELECT count(*) FROM pool_allocation WHERE id = ANY(%s) AND kind = 'share'", ids)
    return bool(found[0][0] == len(ids))
