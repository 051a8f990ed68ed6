"""The first look of guarantees: all that is ever in a window, and all plans, at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from pool.core.fleet import of_views
from pool.core.guarantees import Claim, Claims, Guarantees, Takeable
from pool.core.period import Period
from pool.core.placement import GpuView, Pick
from tests.core.worlds import DAWN, gpu, profile, span, taken

H100, OTHER, SMALL = "H100-80GB", 2, "1g.10gb"
DAY, HALF = span(0, 24), timedelta(minutes=30)


def small(view: GpuView, start: int) -> Pick:
    p = profile(view.model, SMALL)
    return Pick(view.id, view.model, p, start, p.size, 125)


def guarded(view: GpuView, milli: int) -> Guarantees:
    known = of_views([view])
    claims = Claims.of(known, [Claim(OTHER, H100, milli, DAY, "slots")])
    return Guarantees(known, DAY, DAWN, claims, Takeable.none())


def test_a_slice_that_is_booked_very_often_counts_as_taken_and_no_other_does() -> None:
    often = [
        taken(profile(H100, SMALL), 0, Period(DAY.start + n * HALF, DAY.start + (n + 1) * HALF))
        for n in range(32)
    ]
    view = replace(gpu(1), busy=tuple(often))
    assert guarded(view, 750).allow_at_once([small(view, 1)])
    assert not guarded(view, 751).allow_at_once([small(view, 1)])


def test_where_all_plans_together_leave_enough_each_does() -> None:
    view = gpu(1)
    others, two = guarded(view, 500), [small(view, 0), small(view, 1)]
    assert others.allow_at_once(two * 40)
    assert all(others.allow([pick]) for pick in two)
    assert not others.allow_at_once([small(view, start) for start in range(7)])
    assert others.allow_at_once([])
