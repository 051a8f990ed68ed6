"""Whether what lies on the GPUs may lie there: spans, media, MPS servers, ledgers of shares, charges.

Constraints of the database say some of it, too; here it is counted from the rows without them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pool.queries.consistency_rows import Book, Card, Difference, Line, Use, rows

#: Memory of a GPU that is never given away in shares, and what a share counts at least.
RESERVE_MIB = 1024
LEAST_MIB, LEAST_PCT = 1024, 5
MPS_CLIENTS = 48

# Two that hold and meet: in a slice of memory unless both are shares, in what only one may have of a GPU.
_MEETING = """
SELECT one.id, other.id, node.name || '/' || gpu.index,
    CASE WHEN one.span && other.span AND one.tenancy <> other.tenancy THEN 'span'
         WHEN one.takes_media AND other.takes_media THEN 'media'
         WHEN one.media_group <> other.media_group THEN 'media_group'
         ELSE 'mps_user' END
FROM pool_allocation one
JOIN pool_allocation other ON other.gpu_id = one.gpu_id AND other.id > one.id AND other.holds
    AND other.blocked && one.blocked
JOIN pool_gpu gpu ON gpu.id = one.gpu_id JOIN pool_node node ON node.id = gpu.node_id
WHERE one.holds AND node.pool_id = %s
    AND (one.span && other.span AND one.tenancy <> other.tenancy
         OR one.takes_media AND other.takes_media
         OR one.media_group <> other.media_group
         OR one.mps_user <> other.mps_user)
ORDER BY one.id, other.id
"""

_SHARES = """
SELECT gpu.id, node.name || '/' || gpu.index, gpu.memory_mib, gpu.sharing, pool.most_shares,
    lower(alloc.blocked), upper(alloc.blocked), alloc.share_memory_mib, alloc.share_compute_pct
FROM pool_allocation alloc JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
JOIN pool_node node ON node.id = gpu.node_id JOIN pool_pool pool ON pool.id = node.pool_id
WHERE alloc.holds AND alloc.kind = 'share' AND node.pool_id = %s AND gpu.memory_mib IS NOT NULL
ORDER BY gpu.id, alloc.id
"""

_PIECES = """
SELECT alloc.id, alloc.kind, alloc.charge_milli, upper(alloc.span) - lower(alloc.span), gpu.grid,
    gpu.memory_mib, alloc.share_memory_mib, alloc.share_compute_pct
FROM pool_allocation alloc JOIN pool_gpu gpu ON gpu.id = alloc.gpu_id
JOIN pool_node node ON node.id = gpu.node_id
WHERE alloc.holds AND node.pool_id = %s ORDER BY alloc.id
"""


def differences(book: Book) -> list[Difference]:
    """Everything that lies where it must not, or counts what it should not."""
    return [*_meeting(book), *_ledgers(book), *_charges(book)]


def _meeting(book: Book) -> Iterator[Difference]:
    for one, other, gpu, what in rows(_MEETING, book.pool):
        yield Difference(f"overlap_{what}", book.name, gpu, {"allocations": [str(one), str(other)]})


def _ledgers(book: Book) -> Iterator[Difference]:
    """What is given away of a GPU in shares at the instants at which something more is given away."""
    by_gpu: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows(_SHARES, book.pool):
        by_gpu[row[0]].append(row)
    for there in by_gpu.values():
        _, gpu, memory_mib, sharing, most_shares, *_ = there[0]
        most = {
            "memory_mib": memory_mib - RESERVE_MIB,
            "compute_pct": 100,
            "shares": min(most_shares, MPS_CLIENTS) if sharing == "mps" else most_shares,
        }
        for instant in sorted({row[5] for row in there}):
            now = [row for row in there if row[5] <= instant and (row[6] is None or instant < row[6])]
            given = {
                "memory_mib": sum(row[7] for row in now),
                "compute_pct": sum(row[8] for row in now),
                "shares": len(now),
            }
            full = [name for name in most if given[name] > most[name]]
            if full:
                numbers = {name: [given[name], most[name]] for name in full}
                # The pool's own number may be lowered; what is there stays.
                kept = full == ["shares"] and len(now) <= MPS_CLIENTS
                told = {**numbers, "at": instant.isoformat()}
                yield Difference("ledger_overflows", book.name, gpu, told, kept)
                break


def _charges(book: Book) -> Iterator[Difference]:
    """A piece counts its part of the GPU; a share the larger of its two parts, rounded up."""
    for pk, kind, charge, size, grid, total, memory, compute in rows(_PIECES, book.pool):
        least = most = 1000
        if kind == "mig":
            least, most = 1000 * size // grid, -(-1000 * size // grid)
        elif kind == "share":
            if total is None or total <= RESERVE_MIB:
                continue
            of_memory = -(-1000 * max(memory, LEAST_MIB) // (total - RESERVE_MIB))
            least = most = min(1000, max(of_memory, 10 * max(compute, LEAST_PCT)))
        if not least <= charge <= most:
            yield Difference("wrong_charge", book.name, str(pk), {"charge": charge, "counted": most})


class Ground:
    """What of the cards is free when only `stays` are there; what the most favourable placement could give.

    Only what is certainly missing is said to be: of each size of group its number on every node, of
    whole GPUs, and of everything together, for each model and for all.
    """

    def __init__(self, cards: Sequence[Card], stays: Iterable[Use]) -> None:
        taken: Counter[int] = Counter()
        for use in stays:
            taken[use.gpu] += use.milli
        self.milli: Counter[str] = Counter()
        self.whole: dict[str, Counter[int]] = defaultdict(Counter)
        for card in cards:
            self.milli[card.model] += max(0, 1000 - taken[card.id])
            if not taken[card.id]:
                self.whole[card.model][card.node] += 1

    def missing(self, claims: Sequence[tuple[Line, int]]) -> tuple[Line, int] | None:
        """A claim of those that cannot all be met, and what is missing of them together; None: nothing."""
        # A model of which there is nothing can be promised to nobody.
        claims = [one for one in claims if not one[0].model or one[0].model in self.milli]
        for model in sorted({line.model for line, _ in claims if line.model}):
            found = self._short([one for one in claims if one[0].model == model], [model])
            if found is not None:
                return found
        return self._short(claims, list(self.milli)) if claims else None

    def _short(self, claims: Sequence[tuple[Line, int]], models: Sequence[str]) -> tuple[Line, int] | None:
        asked = sum(milli for _, milli in claims)
        free = sum(self.milli[model] for model in models)
        if asked > free:
            return max(claims, key=lambda one: one[1])[0], asked - free
        for size in sorted({_group(line) for line, _ in claims} - {0}):
            need = sum(milli // (1000 * _group(line)) for line, milli in claims if _group(line) >= size)
            have = sum(number // size for model in models for number in self.whole[model].values())
            if need > have:
                line = max((one for one in claims if _group(one[0]) >= size), key=lambda one: one[1])[0]
                return line, 1000 * size * (need - have)
        return None


def _group(line: Line) -> int:
    """How many whole GPUs of one node a unit of the guarantee is; 0: any slices."""
    return {"slots": 0, "gpu": 1}.get(line.unit, line.size)
