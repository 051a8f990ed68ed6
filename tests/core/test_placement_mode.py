"""GPUs of any use: what they may be at which time, and what a change of mode costs."""

from __future__ import annotations

from dataclasses import replace

from pool.core.period import Period
from pool.core.placement import GpuView, Use, candidates, clash, shortfall
from pool.core.placement_mode import SWITCH, other_mode, switches, wide
from pool.core.placement_room import Busy
from pool.core.shapes import GpuAsk, MigAsk, ShareAsk, Sharing
from tests.core.worlds import at, gpu, profile, span, taken

H100 = "H100-80GB"
SLICE = MigAsk("1g.10gb")


def auto(number: int = 0, *, mig: bool = True, busy: tuple[Busy, ...] = (), **more: object) -> GpuView:
    return replace(gpu(number, use=Use.AUTO, busy=busy), mig_capable=True, mig_now=mig, **more)  # type: ignore[arg-type]


def whole(start: float, end: float | None) -> Busy:
    return Busy(0, 8, span(start, end), None, "booked")


def sliced(start: float, end: float | None) -> Busy:
    return taken(profile(H100, "1g.10gb"), 0, span(start, end))


def test_it_serves_every_use_that_it_can() -> None:
    assert candidates([auto()], SLICE, span(0, 1))
    assert candidates([auto()], GpuAsk(), span(0, 1))
    share = ShareAsk(memory_mib=1024, guaranteed=5, limit=5)
    assert candidates([auto()], share, span(0, 1)) == []
    assert candidates([auto(sharing=Sharing.HAMI, most_shares=4)], share, span(0, 1))
    assert candidates([replace(auto(), mig_capable=None)], SLICE, span(0, 1)) == []


def test_one_mode_at_a_time() -> None:
    assert candidates([auto(busy=(sliced(0, 4),))], GpuAsk(), span(3, 5)) == []
    assert candidates([auto(busy=(whole(0, 4),))], SLICE, span(3, 5)) == []
    assert candidates([auto(busy=(sliced(0, 4),))], SLICE, span(3, 5))


def test_no_change_of_mode_beside_a_neighbouring_booking() -> None:
    for there in (whole(0, 2), whole(3, 4)):
        assert candidates([auto(busy=(there,))], SLICE, span(2, 3)) == []
        assert shortfall([auto(busy=(there,))], SLICE, span(2, 3)).counts == {"other_mode": 1}
    later = Period(at(2) + SWITCH, at(3))
    assert candidates([auto(busy=(whole(0, 2),))], SLICE, later)
    assert not other_mode(auto(busy=(whole(0, 2),)), Use.MIG, later)
    assert wide(later).start == at(2)


def test_a_change_is_told_and_costs_more_than_any_fragmentation() -> None:
    (first, *_) = candidates([auto(0, mig=False), auto(1, mig=True)], SLICE, span(0, 1))
    assert first.picks[0].gpu_id == 1
    assert (first.picks[0].switch, first.why.mode) == (False, 0)
    (alone, *_) = candidates([auto(0, mig=False)], SLICE, span(0, 1))
    assert alone.picks[0].switch
    assert alone.why.mode >= 1000
    used = gpu(1, busy=[taken(profile(H100, "1g.10gb"), n, span(0, 9)) for n in range(6)])
    assert candidates([auto(0, mig=False), used], SLICE, span(0, 1))[0].picks[0].gpu_id == 1


def test_the_mode_is_that_in_which_the_booking_before_leaves_it() -> None:
    assert switches(auto(mig=True, busy=(whole(0, 1),)), Use.MIG, span(3, 4))
    assert not switches(auto(mig=False, busy=(sliced(0, 1),)), Use.MIG, span(3, 4))
    assert switches(auto(mig=True), Use.WHOLE, span(3, 4))
    assert not switches(gpu(use=Use.WHOLE), Use.WHOLE, span(3, 4))
    (found, *_) = candidates([auto(mig=True, busy=(whole(0, 1),))], SLICE, span(3, 4), now=at(0))
    assert found.picks[0].switch


def test_what_was_chosen_is_checked_by_the_same_rules() -> None:
    (found, *_) = candidates([auto()], SLICE, span(2, 3))
    assert clash([auto()], found.picks, span(2, 3)) is None
    assert clash([auto(busy=(whole(3, 4),))], found.picks, span(2, 3)) == "other_mode"
    assert clash([auto(busy=(whole(4, 5),))], found.picks, span(2, 3)) is None


def test_a_blocker_is_of_no_mode() -> None:
    stray = Busy(0, 2, span(0, None), None, "blocker")
    assert candidates([auto(busy=(stray,))], SLICE, span(1, 2))
    assert candidates([auto(busy=(stray,))], GpuAsk(), span(1, 2)) == []
