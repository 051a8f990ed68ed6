"""A booking that ends for two reasons at once, or in two lanes at once, ends once."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.errors import Code
from pool.models import Event, Gpu, Lane, Reservation
from pool.services import lanes, reservations
from pool.services.lanes import Swept
from tests.races.runners import Meeting, codes, together, without_the_lock
from tests.scene import NOON, Scene, add_node, hours, make_scene, settle

pytestmark = pytest.mark.django_db(transaction=True)

END = NOON + hours(1)


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    made.book()
    settle(made.pool, Gpu.objects.get())
    return made


def ends() -> int:
    return Event.objects.filter(verb="reservation.ending").count()


def release(scene: Scene) -> Reservation:
    pk = Reservation.objects.get().pk
    return reservations.release(actor=scene.lena, reservation_id=pk, now=END)


def release_and_sweep(scene: Scene) -> list[Any]:
    return together(lambda: release(scene), lambda: lanes.due(now=END))


def _read_before_either_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(2)
    end = reservations.end

    def when_both_have_read(rows: Any, *args: Any, **kwargs: Any) -> set[int]:
        if rows:
            meeting.wait()
        return end(rows, *args, **kwargs)

    monkeypatch.setattr(reservations, "end", when_both_have_read)


def test_without_the_lock_it_ends_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_lock(monkeypatch, 2)
    _read_before_either_writes(monkeypatch)
    release_and_sweep(scene)
    assert ends() == 2


def test_released_at_the_instant_of_its_end_it_ends_once(scene: Scene) -> None:
    released, swept = release_and_sweep(scene)
    assert ends() == 1
    if isinstance(released, Reservation):
        assert swept in (Swept(), None)
    else:
        assert (released.code, swept) == (Code.WRONG_STATE, Swept(ended=1))
    row = Reservation.objects.get()
    assert (row.state, row.version) == ("ending", 3)


def test_without_lease_and_lock_two_lanes_end_it_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_take", lambda name: True)
    without_the_lock(monkeypatch, 2)
    _read_before_either_writes(monkeypatch)
    together(*[lambda: lanes.due(now=END)] * 2)
    assert ends() == 2


def test_of_two_lanes_one_does_it(scene: Scene) -> None:
    results = together(*[lambda: lanes.due(now=END)] * 2)
    assert ends() == 1
    assert Swept(ended=1) in results


def test_two_lanes_that_both_believe_to_be_alone_end_it_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_take", lambda name: True)
    results = together(*[lambda: lanes.due(now=END)] * 2)
    assert sorted(one.ended for one in results) == [0, 1]
    assert ends() == 1


def test_the_first_two_runs_of_a_lane_ever_agree_on_one_row(scene: Scene) -> None:
    assert codes(together(*[lambda: lanes.due(now=NOON)] * 4)) == {"ok": 4}
    assert Lane.objects.filter(name="due").count() == 1
