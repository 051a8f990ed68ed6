"""Fleets drawn by hypothesis: GPUs of every use with slices, shares, whole bookings and blockers on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from pool.core.fleet import Fleet, of_views
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Portion, Use
from pool.core.shapes import Sharing
from tests.core.worlds import Dial, a_gpu, a_period, a_pool, codes, gpu

MODEL = "H100-80GB"
#: Of a GPU for shares.
MOST = 7


def a_share(dial: Dial) -> Busy:
    period = a_period(dial)
    compute = dial.turn([0, 10, 25])
    portion = Portion(dial.turn([1024, 8192]), compute, dial.turn([30, 100]), dial.turn(["user:1", "user:2"]))
    return Busy(0, 8, period, None, "booked", None, portion, dial.turn([0, 500, 4000]), dial.turn([0, 1024]))


def a_share_gpu(number: int, code: int) -> GpuView:
    dial = Dial(code)
    plain = gpu(number, MODEL, node=dial.turn(["node-a", "node-c"]), use=Use.SHARE)
    return replace(
        plain,
        sharing=Sharing.MPS,
        most_shares=MOST,
        one_user=True,
        domain=f"node:{plain.node}",
        busy=tuple(a_share(dial) for _ in range(dial.turn(range(5)))),
    )


def as_known(view: GpuView) -> GpuView:
    """The view as a fleet gives it back: in its own order, and with the words of the snapshot."""
    booked = [b if b.tenancy == "blocker" else replace(b, tenancy="booked") for b in view.busy]
    order = sorted(booked, key=lambda b: (b.period.start, ((1 << b.size) - 1) << b.start))
    return replace(
        view,
        busy=tuple(order),
        most_shares=MOST,
        domain=view.domain or f"node:{view.node}",
        cpu_milli=None,
    )


def same(one: GpuView, other: GpuView) -> bool:
    """Equal but for the order of what begins at once on the same span."""
    return replace(one, busy=()) == replace(other, busy=()) and sorted(map(repr, one.busy)) == sorted(
        map(repr, other.busy)
    )


def views(gpus: Sequence[int], busy: Sequence[int], shares: Sequence[int]) -> list[GpuView]:
    slices = a_pool(MODEL, gpus, busy)
    return slices + [a_share_gpu(len(slices) + n, code) for n, code in enumerate(shares)]


#: A few GPUs of every use.
pools = st.builds(
    views,
    st.lists(codes, min_size=1, max_size=4),
    st.lists(codes, max_size=12),
    st.lists(codes, min_size=1, max_size=2),
)
periods: st.SearchStrategy[Period] = codes.map(lambda code: a_period(Dial(code)))


def rows_of(fleet: Fleet) -> list[bytes]:
    """All that is on it, comparable."""
    return sorted(bytes(row) for row in fleet.rows())


def another(view: GpuView, code: int) -> GpuView:
    """The same GPU with something else on it, and now and then in another state."""
    dial = Dial(code)
    fresh = a_gpu(view.id, dial.number, MODEL)
    busy = a_pool(MODEL, [dial.number], [dial.turn(range(1 << 20)) * 7 for _ in range(dial.turn(range(4)))])[
        0
    ].busy
    if view.use is Use.SHARE or dial.turn([True, True, False]):
        return replace(view, busy=busy if view.use is Use.MIG else view.busy[1:])
    return replace(fresh, busy=busy if fresh.use is Use.MIG else ())


def built(*of: GpuView) -> Fleet:
    return of_views(of)
