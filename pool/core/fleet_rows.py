"""What is on the GPUs of a fleet, as rectangles in time: columns that are read by every decision.

`Rows` never change; `replaced` gives the next ones. What a decision looks at of
every row lies in columns of its own, the rest in a book that is only added to
and that successive rows share.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from pool.core.mig import Media

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Records = NDArray[np.void]

#: The end of what has none, and the start of what was always there, in microseconds.
NEVER = 2**63 - 1
ALWAYS = -(2**63)

#: One thing on a GPU. Times are microseconds since 1970 (`micros`), half-open. `start` to `end` is what the
#: GPU is blocked for, `since` to `until` when it counts in quota: its own period, up to its recall.
#: `mask` is its span.
#: `profile` -1: not an instance; `media` is a code of MEDIA; `memory` and `compute` are what a share
#: takes (MiB, percent; memory 0: no share) and `limit` its most; `account` is a number for whose MPS
#: server it needs (`Fleet.accounts`; 0: anybody's). `cpu` and `ram` are of the node (thousandths, MiB).
#: `charge` is in thousandths of a GPU. `reservation` is two halves of its id. `klass` is a code of CLASSES.
#: `created` is when it was booked; `firm`: what of it is borrowed cannot be taken back.
#: `moved`: it may still go elsewhere, because it has not been on the GPU, and its reservation is scheduled.
ROW = np.dtype(
    [
        ("gpu", "i8"),  # the GPU's id
        ("start", "i8"),
        ("end", "i8"),
        ("mask", "i8"),
        ("since", "i8"),
        ("until", "i8"),
        ("profile", "i4"),
        ("media", "i1"),
        ("klass", "i1"),
        ("moved", "?"),
        ("blocker", "?"),
        ("memory", "i4"),
        ("compute", "i2"),
        ("limit", "i2"),
        ("account", "i8"),
        ("cpu", "i4"),
        ("ram", "i4"),
        ("charge", "i4"),
        ("owner", "i8"),
        ("team", "i8"),
        ("reservation", "i8", (2,)),
        ("created", "i8"),
        ("firm", "?"),
        ("priority", "i2"),
    ]
)
#: What the code in `media` means: a mig.Media, or (0) that it takes part in no media rule.
MEDIA: tuple[Media | None, ...] = (None, Media.DEFAULT, Media.EXT, Media.ALL, Media.NONE)
#: What the code in `klass` means: a shapes.Class, or (0) that there is none.
CLASSES: tuple[str, ...] = ("", "online", "interactive", "batch")

#: The least room in a book for what comes.
_SPARE = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def micros(instant: datetime | None) -> int:
    """Microseconds since 1970; None, which is no end, is `NEVER`."""
    return NEVER if instant is None else (instant - _EPOCH) // _TICK


def instant(microseconds: int) -> datetime | None:
    """The reverse of `micros`; `NEVER` is None."""
    return None if microseconds == NEVER else _EPOCH + timedelta(microseconds=microseconds)


def halves(reservation: UUID) -> Ints:
    """The id as it is in `reservation`."""
    return np.frombuffer(reservation.bytes, dtype=">i8").astype(np.int64)


def whole_id(two: Ints) -> UUID:
    """The reverse of `halves`."""
    return UUID(bytes=two.astype(">i8").tobytes())


def masks(starts: Ints, sizes: Ints) -> Ints:
    """Spans as bit masks, also on a grid of 64."""
    ones = np.uint64(2**64 - 1) >> (64 - sizes).astype(np.uint64)
    return (ones << starts.astype(np.uint64)).view(np.int64)


def as_mask(number: int) -> int:
    """A mask of a column as Python counts: without a sign."""
    return int(number) & (2**64 - 1)


def span_of(number: int) -> tuple[int, int]:
    """(first slice, how many) of a mask without gaps."""
    mask = as_mask(number)
    return (mask & -mask).bit_length() - 1, mask.bit_count()


class _Book:
    """Records by number: only added to, so that whoever knows a number can read on without a lock.

    It begins with room for as many again: what is not written yet costs no memory.
    """

    def __init__(self, records: Records) -> None:
        self._lock = Lock()
        self.used = len(records)
        self.records = np.empty(2 * len(records) + _SPARE, dtype=ROW)
        self.records[: self.used] = records
        self._columns: dict[str, tuple[int, NDArray[np.generic]]] = {}

    def add(self, records: Records) -> int:
        """The number of the first of these; what a reader knows of older ones stays as it was."""
        with self._lock:
            first, needed = self.used, self.used + len(records)
            if needed > len(self.records):
                grown = np.empty(2 * needed, dtype=ROW)
                grown[:first] = self.records[:first]
                self.records = grown
            self.records[first:needed] = records
            self.used = needed
            return first

    def column(self, name: str) -> NDArray[np.generic]:
        """One field of all records, in a column of its own: read many times as fast as out of them."""
        with self._lock:
            filled, column = self._columns.get(name, (0, None))
            if column is None or len(column) < self.used:
                field = self.records[name]
                grown = np.empty(field.shape, dtype=field.dtype)
                if column is not None:
                    grown[:filled] = column[:filled]
                column = grown
            column[filled : self.used] = self.records[name][filled : self.used]
            self._columns[name] = (self.used, column)
            return column

    def is_full(self) -> bool:
        """Whether it is time for a new one, with only what is still in use."""
        return len(self.records) - self.used < _SPARE // 2


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """In the order of places, then starts, then spans. `at` is the place of each row's GPU."""

    at: Ints
    start: Ints
    end: Ints
    mask: Ints
    _number: Ints
    _book: _Book

    @classmethod
    def of(cls, at: Ints, records: Records) -> Rows:
        """These records, each on the GPU at that place."""
        order = _ordered(at, records)
        records = records[order]
        return cls(at[order], *_hot(records), np.arange(len(records)), _Book(records))

    def __len__(self) -> int:
        return len(self.at)

    def records(self, which: Ints | slice) -> Records:
        """All that is known of these rows."""
        records = self._book.records[self._number[which]]
        # The book does not know who `ended` earlier.
        records["end"] = self.end[which]
        return records

    def field(self, name: str, which: Ints | Bools | slice) -> NDArray[np.generic]:
        """One field of ROW of these rows."""
        return self._book.column(name)[self._number[which]]

    def on(self, place: int) -> slice:
        """Which rows are on the GPU at this place."""
        first, last = np.searchsorted(self.at, (place, place + 1))
        return slice(int(first), int(last))

    def replaced(self, places: Ints, at: Ints, records: Records) -> Rows:
        """What is on the GPUs at `places` is now `records`, each at the place in `at`; the rest stays."""
        places = np.unique(places)
        order = _ordered(at, records)
        at, records = at[order], records[order]
        fresh = np.arange(len(at)) + self._book.add(records)
        # Whole stretches are copied: the places are few, and the rows many.
        gaps = np.searchsorted(self.at, places), np.searchsorted(self.at, places, side="right")
        parts = np.searchsorted(at, places), np.searchsorted(at, places, side="right")
        cuts = [*zip(*(one.tolist() for one in (*gaps, *parts)), strict=True)]
        old = (self.at, self.start, self.end, self.mask, self._number)
        new = (at, *_hot(records), fresh)
        place, start, end, mask, number = (
            _spliced(was, now, cuts) for was, now in zip(old, new, strict=True)
        )
        rows = Rows(place, start, end, mask, number, self._book)
        return rows._afresh() if self._book.is_full() else rows

    def ended(self, which: Bools, at: int) -> Rows:
        """These end at that instant, or are not there at all when they begin no earlier."""
        end = np.where(which, np.minimum(self.end, at), self.end)
        keep = ~which | (self.start < at)
        return Rows(
            self.at[keep], self.start[keep], end[keep], self.mask[keep], self._number[keep], self._book
        )

    def moved(self, to: Ints) -> Rows:
        """The same when the GPU at each place is at another (-1: it has gone)."""
        keep = np.flatnonzero(to[self.at] >= 0)
        keep = keep[np.argsort(to[self.at[keep]], kind="stable")]
        at, number = to[self.at[keep]], self._number[keep]
        return Rows(at, self.start[keep], self.end[keep], self.mask[keep], number, self._book)

    def _afresh(self) -> Rows:
        """The same with a book that holds nothing else."""
        records = self.records(slice(None))
        return Rows(self.at, self.start, self.end, self.mask, np.arange(len(records)), _Book(records))


def _ordered(at: Ints, records: Records) -> Ints:
    return np.lexsort((records["mask"], records["start"], at))


def _hot(records: Records) -> tuple[Ints, Ints, Ints]:
    return records["start"].copy(), records["end"].copy(), records["mask"].copy()


def _spliced(old: Ints, new: Ints, cuts: list[tuple[int, int, int, int]]) -> Ints:
    """`old`, in which from..until of each cut is replaced by that part of `new`."""
    pieces: list[Ints] = []
    done = 0
    for since, until, first, last in cuts:
        pieces += (old[done:since], new[first:last])
        done = until
    return np.concatenate((*pieces, old[done:]))
