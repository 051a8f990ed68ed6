"""Any order of what people, lanes, nodes and time do to a pool with quota keeps what must always hold.

On a real PostgreSQL. What must hold is recomputed from the rows (queries.consistency), which knows
nothing of the code that decides. GPUPOOL_DEEP=300 looks at so many long lives, not always the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pool.core.errors import Code, Refusal
from pool.core.period import Period
from pool.core.quota_uses import Uses
from pool.core.shapes import Ask, Class, GpuAsk, MigAsk
from pool.core.terms import Terms
from pool.models import Allocation, Event, Gpu, Pool, QuotaLine, Reservation, SetAside, Team, User
from pool.queries import consistency, fleets
from pool.queries.consistency_quota import Moment
from pool.queries.consistency_rows import Book, book
from pool.services import approvals, lanes, quota, reservations
from pool.services.wishes import Asked
from tests.scene import NOON, add_node, make_scene, seen, settle

DEEP = int(os.environ.get("GPUPOOL_DEEP", "0"))
STEP = timedelta(minutes=10)
#: Recall time is an hour at most; what is to come back has this long.
RECALL = timedelta(hours=1)
WRITTEN = (Reservation, Allocation, Event)
ROUNDS = 5


class Crash(BaseException):
    """The process died here: nothing catches it, and its transaction is gone."""


class Life(RuleBasedStateMachine):
    """Vision with its subteam video, and speech, in a pool of four GPUs; a clock in steps of ten minutes."""

    #: What may be asked, and whether all GPUs are given as a whole.
    asks: tuple[Ask, ...] = ()
    slices = False

    def __init__(self) -> None:
        super().__init__()
        self.outer = transaction.atomic()
        self.outer._from_testcase = True  # type: ignore[attr-defined]  # use cases are durable
        self.outer.__enter__()
        self.scene = make_scene(cap=3000, guaranteed=0)
        self.now = NOON
        self.failed = False
        self.ada = User.objects.create(username="ada", roles=["approver"])
        pool = self.scene.pool
        Pool.objects.filter(pk=pool.pk).update(approve_above_milli=2500, notice_seconds=300)
        self.video = Team.objects.create(name="video", parent=self.scene.vision)
        QuotaLine.objects.filter(team=self.scene.vision).update(guaranteed_milli=2000)
        QuotaLine.objects.filter(team=self.scene.speech).update(guaranteed_milli=1000, lend_milli=0)
        QuotaLine.objects.create(team=self.video, pool=pool, guaranteed_milli=1000, cap_milli=2000)
        QuotaLine.objects.update(unit="slots" if self.slices else "gpu")
        add_node(pool, mig_gpus=2 if self.slices else 0, whole_gpus=2 if self.slices else 4)

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.outer.__exit__(None, None, None)

    # --- What people do ---

    @rule(
        data=st.data(),
        team=st.sampled_from(("vision", "video", "speech")),
        start=st.sampled_from((0, 0, 1, 2, 3, 6, 13, 18)),
        steps=st.integers(1, 6),
        klass=st.sampled_from(Class),
        firm=st.booleans(),
        only_held=st.booleans(),
    )
    def book(
        self,
        data: st.DataObject,
        team: str,
        start: int,
        steps: int,
        klass: Class,
        firm: bool,
        only_held: bool,
    ) -> None:
        ask = data.draw(st.sampled_from(self.asks))
        found = self._attempt(
            lambda: (reservations.hold if only_held else reservations.book)(
                actor=self.scene.sam if team == "speech" else self.scene.lena,
                team=team,
                pool=self.scene.pool.name,
                ask=ask,
                start=self.now + start * STEP if start else None,
                duration=steps * STEP,
                klass=klass,
                terms=Terms(preemptible=False if firm else None),
                now=self.now,
            )
        )
        self._nothing_is_lent_that_is_kept(found)

    @rule(team=st.sampled_from(("vision", "video")), count=st.integers(2, 3), steps=st.integers(6, 12))
    def borrow(self, team: str, count: int, steps: int) -> None:
        """Much, and for long, so that somebody has to take it back."""
        found = self._attempt(
            lambda: self.scene.book(
                self.asks[0] if self.slices else GpuAsk(count=count),
                team=team,
                duration=steps * STEP,
                klass=Class.BATCH,
                now=self.now,
            )
        )
        self._nothing_is_lent_that_is_kept(found)

    @precondition(lambda self: self._rows("held"))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        row = self._some(data, "held")
        self._attempt(lambda: reservations.confirm(actor=row.owner, reservation_id=row.pk, now=self.now))

    @precondition(lambda self: self._rows())
    @rule(data=st.data(), steps=st.integers(1, 4))
    def extend(self, data: st.DataObject, steps: int) -> None:
        row = self._some(data)
        self._attempt(
            lambda: reservations.extend(
                actor=row.owner, reservation_id=row.pk, duration=steps * STEP, now=self.now
            )
        )

    @precondition(lambda self: self._rows())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self._some(data)
        self._attempt(lambda: reservations.release(actor=row.owner, reservation_id=row.pk, now=self.now))

    @rule(
        data=st.data(),
        team=st.sampled_from(("vision", "video", "speech")),
        steps=st.integers(1, 6),
        asks_first=st.booleans(),
        partial_ok=st.booleans(),
    )
    def wait(self, data: st.DataObject, team: str, steps: int, asks_first: bool, partial_ok: bool) -> None:
        asked = Asked(
            actor=self.scene.sam if team == "speech" else self.scene.lena,
            team=team,
            pool=self.scene.pool.name,
            title="",
            ask=data.draw(st.sampled_from(self.asks)),
            start=None,
            end=None,
            duration=steps * STEP,
            klass=Class.BATCH,
            owner=None,
            visibility=Reservation.Visibility.TEAM,
            restartable=None,
            now=self.now,
        )
        self._attempt(lambda: reservations.join(asked=asked, partial_ok=partial_ok, asks_first=asks_first))

    @precondition(lambda self: self._rows("pending_approval"))
    @rule(data=st.data(), yes=st.booleans())
    def decide(self, data: st.DataObject, yes: bool) -> None:
        pk = self._some(data, "pending_approval").pk
        if yes:
            self._attempt(lambda: approvals.approve(actor=self.ada, reservation_id=pk, now=self.now))
        else:
            self._attempt(
                lambda: approvals.deny(actor=self.ada, reservation_id=pk, answer="no", now=self.now)
            )

    @rule(team=st.sampled_from(("vision", "speech")), cap=st.sampled_from((2000, 3000)))
    def set_a_cap(self, team: str, cap: int) -> None:
        """What is above it stays; nothing new is granted there."""
        row = Team.objects.get(name=team)
        line = QuotaLine.objects.get(team=row)
        self._attempt(
            lambda: quota.set_line(
                actor=None,
                team=row,
                pool=self.scene.pool,
                guaranteed_milli=line.guaranteed_milli,
                cap_milli=cap,
                now=self.now,
            )
        )

    @rule(team=st.sampled_from(("vision", "video", "speech")), steps=st.integers(1, 3))
    def what_is_guaranteed_is_obtained(self, team: str, steps: int) -> None:
        """Ask for all that the team is guaranteed and does not use: there within the recall time."""
        count = self._obtainable(team, STEP * steps)
        if not count or self.slices:
            return
        found = self._attempt(
            lambda: self.scene.book(
                GpuAsk(count=count),
                actor=self.scene.sam if team == "speech" else self.scene.lena,
                team=team,
                duration=STEP * steps,
                now=self.now,
            )
        )
        assert isinstance(found, Reservation), f"{team} is guaranteed {count} GPUs: {found!r} {found.data}"
        assert found.period.lower <= self.now + RECALL

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

    @rule(index=st.integers(0, 3))
    def node_reports(self, index: int) -> None:
        gpu = Gpu.objects.get(index=index)
        report = seen(gpu)
        settle(self.scene.pool, gpu, report, now=self.now)
        before = self._written()
        settle(self.scene.pool, gpu, report, now=self.now)
        assert self._written() == before, "the same report did something twice"

    @precondition(lambda self: self._rows())
    @rule(data=st.data(), statement=st.integers(1, 25), what=st.sampled_from(("release", "lane", "book")))
    def crash(self, data: st.DataObject, statement: int, what: str) -> None:
        """The process dies at some statement: what it had not committed has not happened."""
        row, before = self._some(data), self._written()
        calls: dict[str, Callable[[], Any]] = {
            "release": lambda: reservations.release(actor=row.owner, reservation_id=row.pk, now=self.now),
            "book": lambda: self.scene.book(data.draw(st.sampled_from(self.asks)), now=self.now),
            "lane": lambda: lanes.due(now=self.now),
        }
        if _dies(statement, calls[what]) and what != "lane":
            assert self._written() == before, "something of a transaction that died was kept"

    # --- What always holds ---

    @invariant()
    def what_must_hold_holds(self) -> None:
        # Who is inside may take what others keep (test_orders): so that is looked at when something is lent.
        assert [one for one in self._differences() if one.rule != "not_lent"] == []
        self._sums_equal_the_rows()
        assert not SetAside.objects.exists(), SetAside.objects.values_list("error", flat=True)

    def _sums_equal_the_rows(self) -> None:
        """What decisions and pages count in columns is what the rows say."""
        pool = self.scene.pool.pk
        fleet = fleets.current(pool)
        uses = Uses.of(fleet, Period(self.now, None))
        counted: Counter[tuple[int, str]] = Counter()
        for team, model, milli in zip(uses.team, uses.model, uses.milli, strict=True):
            counted[int(team), fleet.models[model]] += int(milli)
        said: Counter[tuple[int, str]] = Counter()
        for use in book(pool, "main", self.now).uses:
            if use.until is None or use.until > max(use.since, self.now):
                said[use.team, use.model] += use.milli
        assert counted == said

    def _nothing_is_lent_that_is_kept(self, found: Any) -> None:
        """What has just been granted, and is borrowed, leaves what others keep for themselves."""
        if not isinstance(found, Reservation) or not found.allocations.exists():
            return
        read = book(self.scene.pool.pk, "main", self.now)
        at = max(self.now, found.period.lower)
        moment = Moment(read, at, [use for use in read.uses if use.at(at)])
        if any(use.reservation == found.pk for use in moment.borrowed):
            told = [one for one in self._differences() if one.rule == "not_lent"]
            assert not [one for one in told if one.data["at"] == at.isoformat()]

    def _differences(self) -> list[consistency.Difference]:
        return [one for one in consistency.differences(self.now) if not one.kept]

    # --- Ways and means ---

    def _rows(self, state: str | None = None) -> int:
        rows = Reservation.objects.filter(state=state) if state else Reservation.objects.all()
        return int(rows.count())

    def _some(self, data: st.DataObject, state: str | None = None) -> Reservation:
        rows = Reservation.objects.filter(state=state) if state else Reservation.objects.all()
        return rows.order_by("created_at", "pk")[data.draw(st.integers(0, rows.count() - 1))]

    def _attempt(self, call: Callable[[], Any]) -> Any:
        before = self._written()
        try:
            return call()
        except Refusal as refusal:
            said = refusal
        assert said.code != Code.BUSY, "nobody else is there"
        assert self._written() == before, "a refusal wrote something"
        return said

    def _written(self) -> tuple[object, ...]:
        versions = sorted(Reservation.objects.values_list("pk", "version", "recall_at"))
        return (*(model.objects.count() for model in WRITTEN), versions, Pool.objects.get().change)

    def _obtainable(self, name: str, length: timedelta) -> int:
        """Whole GPUs that the team is guaranteed, does not use and may still have, by the rows alone."""
        read = book(self.scene.pool.pk, "main", self.now)
        team = Team.objects.get(name=name).pk
        until = self.now + RECALL + length
        edges = {self.now} | {use.since for use in read.uses} | {use.until for use in read.uses}
        moments = [
            Moment(read, at, [use for use in read.uses if use.at(at)])
            for at in edges
            if at is not None and self.now <= at < until
        ]
        unused = min(sum(left for line, left in moment.unused if line.team == team) for moment in moments)
        room = min(_headroom(read, moment, team) for moment in moments)
        most = Pool.objects.get().approve_above_milli or 0
        return min(unused, room, most) // 1000


def _headroom(read: Book, moment: Moment, team: int) -> int:
    """What the caps of the team and of those above it leave."""
    left = []
    for one in read.path(team):
        cap = read.limit(one, "", "cap", moment.instant)
        if cap is not None:
            left.append(cap - sum(milli for (its, _), milli in moment.used.items() if its == one))
    return max(0, min(left))


def _dies(statement: int, call: Callable[[], Any]) -> bool:
    """Whether the process died: at this statement, if it comes to it."""
    number = 0

    def counted(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal number
        number += 1
        if number >= statement and "SAVEPOINT" not in sql:
            raise Crash
        return execute(sql, params, many, context)

    try:
        with connection.execute_wrapper(counted):
            call()
    except Crash:
        return True
    except Refusal:
        return False
    return False


class Whole(Life):
    asks = (GpuAsk(), GpuAsk(count=2), GpuAsk(count=3))


class Slices(Life):
    asks = (
        MigAsk(profile="1g.10gb", count=2),
        MigAsk(profile="3g.40gb"),
        MigAsk(profile="7g.80gb"),
        GpuAsk(),
    )
    slices = True


@pytest.mark.django_db
@pytest.mark.timeout(3600 if DEEP else 180)
@pytest.mark.parametrize("machine", [Whole, Slices])
def test_any_order_of_steps_keeps_what_must_hold(machine: type[Life]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=DEEP or ROUNDS,
            stateful_step_count=40 if DEEP else 25,
            derandomize=not DEEP,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
