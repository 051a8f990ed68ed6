"""What of a booking may be taken back, as pages tell it before it is confirmed and while it lasts."""

from __future__ import annotations

from collections.abc import Iterable

from pool.core.admission import Loan
from pool.core.period import Period


def spells(loans: Iterable[Loan]) -> tuple[Loan, ...]:
    """When something may be taken back, in order; what follows on one another is one, with the most of it."""
    found: list[Loan] = []
    for one in sorted(loans, key=lambda loan: loan.period.start):
        last = found[-1] if found else None
        if last is None or (last.period.end is not None and one.period.start > last.period.end):
            found.append(one)
            continue
        ends = (last.period.end, one.period.end)
        end = None if None in ends else max(at for at in ends if at is not None)
        found[-1] = last._replace(period=Period(last.period.start, end), milli=max(last.milli, one.milli))
    return tuple(found)
