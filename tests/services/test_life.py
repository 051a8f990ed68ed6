"""Any order of booking, extending, releasing, lanes, reports and time keeps what must always hold."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pool.core.errors import Refusal
from pool.core.period import Period
from pool.core.quota import peak
from pool.core.shapes import Ask, GpuAsk, MigAsk
from pool.core.states import HOLDING, State
from pool.models import Allocation, Event, Gpu, Pool, Reservation
from pool.services import lanes, reservations
from tests.scene import NOON, Scene, add_node, make_scene, seen, settle

CAP = 1500
STEP = timedelta(minutes=10)
ASKS: tuple[Ask, ...] = (
    MigAsk(profile="1g.10gb", count=2),
    MigAsk(profile="3g.40gb"),
    MigAsk(profile="1g.10gb+me"),
    MigAsk(profile="7g.80gb"),
    GpuAsk(),
)
WRITTEN = (Reservation, Allocation, Event)


class Life(RuleBasedStateMachine):
    """Two GPUs, two teams with a cap, a clock that moves in steps of ten minutes."""

    scene: Scene
    now: datetime

    def __init__(self) -> None:
        super().__init__()
        self.outer = transaction.atomic()
        self.outer._from_testcase = True  # type: ignore[attr-defined]  # use cases are durable
        self.outer.__enter__()
        self.scene = make_scene(cap=CAP, guaranteed=0)
        add_node(self.scene.pool, mig_gpus=1, whole_gpus=1)
        self.now = NOON

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.outer.__exit__(None, None, None)

    # --- What people do ---

    @rule(ask=st.sampled_from(ASKS), start=st.integers(0, 6), steps=st.integers(1, 6), ours=st.booleans())
    def book(self, ask: Ask, start: int, steps: int, ours: bool) -> None:
        self._attempt(
            lambda: self.scene.book(
                ask,
                actor=self.scene.lena if ours else self.scene.sam,
                team="vision" if ours else "speech",
                start=self.now + start * STEP if start else None,
                duration=steps * STEP,
                now=self.now,
            )
        )

    @precondition(lambda self: Reservation.objects.exists())
    @rule(data=st.data(), steps=st.integers(1, 4))
    def extend(self, data: st.DataObject, steps: int) -> None:
        row = self._some(data)
        self._attempt(
            lambda: reservations.extend(
                actor=row.owner, reservation_id=row.pk, duration=steps * STEP, now=self.now
            )
        )

    @precondition(lambda self: Reservation.objects.exists())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self._some(data)
        self._attempt(lambda: reservations.release(actor=row.owner, reservation_id=row.pk, now=self.now))

    # --- What happens by itself ---

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps: int) -> None:
        self.now += steps * STEP

    @rule()
    def lane_runs(self) -> None:
        lanes.due(now=self.now)
        before = self._written()
        lanes.due(now=self.now)
        assert self._written() == before, "a lane did something twice"

    @rule(index=st.integers(0, 1))
    def node_reports(self, index: int) -> None:
        gpu = Gpu.objects.get(index=index)
        report = seen(gpu)
        settle(self.scene.pool, gpu, report, now=self.now)
        before = self._written()
        settle(self.scene.pool, gpu, report, now=self.now)
        assert self._written() == before, "the same report did something twice"

    @rule(index=st.integers(0, 1))
    def node_could_not(self, index: int) -> None:
        gpu = Gpu.objects.get(index=index)
        settle(self.scene.pool, gpu, seen(gpu, held=[], generation=gpu.generation - 1), now=self.now)

    # --- What always holds ---

    @invariant()
    def what_must_hold_holds(self) -> None:
        slices = list(Allocation.objects.select_related("reservation"))
        held = [one for one in slices if one.holds]
        assert not [(one, other) for one, other in combinations(held, 2) if _overlap(one, other)]
        for team in (self.scene.vision, self.scene.speech):
            uses = [(_period(one), one.charge_milli) for one in held if one.reservation.team_id == team.pk]
            assert peak(uses, Period(NOON - STEP, None)) <= CAP
        for one in slices:
            # What holds is of a state that holds; what is clean is early only while the rest is cleaned.
            holding = State(one.reservation.state) in HOLDING
            assert holding if one.holds else not holding or one.reservation.state == State.ENDING
        self._every_change_has_its_event()
        self._no_gpu_is_told_to_hold_a_slice_twice()

    def _every_change_has_its_event(self) -> None:
        lines: dict[object, list[Any]] = defaultdict(list)
        for pk, after in Event.objects.order_by("pk").values_list("reservation_id", "after"):
            lines[pk].append(after)
        for pk, version, state in Reservation.objects.values_list("pk", "version", "state"):
            assert len(lines[pk]) == version
            assert [after["state"] for after in lines[pk] if "state" in after][-1] == state

    def _no_gpu_is_told_to_hold_a_slice_twice(self) -> None:
        for wanted in Gpu.objects.exclude(wanted=None).values_list("wanted", flat=True):
            taken = [at for one in wanted["held"] for at in range(one["start"], one["start"] + one["size"])]
            assert len(taken) == len(set(taken))

    # --- Ways and means ---

    def _some(self, data: st.DataObject) -> Reservation:
        number = data.draw(st.integers(0, Reservation.objects.count() - 1))
        return Reservation.objects.order_by("created_at", "pk")[number]

    def _attempt(self, call: Any) -> None:
        before = self._written()
        try:
            call()
        except Refusal:
            assert self._written() == before, "a refusal wrote something"

    def _written(self) -> tuple[object, ...]:
        versions = sorted(Reservation.objects.values_list("pk", "version"))
        return (*(model.objects.count() for model in WRITTEN), versions, Pool.objects.get().change)


def _period(one: Allocation) -> Period:
    return Period(one.reservation.period.lower, one.reservation.period.upper)


def _overlap(one: Allocation, other: Allocation) -> bool:
    return (
        one.gpu_id == other.gpu_id
        and one.span.lower < other.span.upper
        and other.span.lower < one.span.upper
        and one.blocked.lower < other.blocked.upper
        and other.blocked.lower < one.blocked.upper
    )


@pytest.mark.django_db
def test_any_order_of_steps_keeps_what_must_hold() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=8,
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
