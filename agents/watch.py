"""The watch: samples the GPUs, reports to the portal, and hands the answer on to the other parts.

It has a thread of its own, so that no carve and no broker ever silences it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from agents.alarms import Alarms
from agents.apply import Applier
from agents.exporter import Exporter, Latest
from agents.gpu import DriverRefusal, Readings, Xid
from agents.managed_by import managed_by
from agents.observe import Card, Observer, Seen
from agents.parts import Parts
from agents.place import write_whole
from agents.post import REPORTS, NoAnswer, Portal, Refused
from agents.record import Made
from agents.report import Counter, Fold, gpu_report
from pool.core.health import Action, action
from pool.core.wire import Answer, GpuReport, Report

log = logging.getLogger("agents.watch")

SAMPLE_S = 2.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
SHORTEST_REPORT_S, LONGEST_REPORT_S = 0.5, 300.0
#: Nodes that were started together shall not report together.
JITTER = 0.1
#: Who else gives out the GPUs changes seldom, and to find out costs a walk over all processes.
MANAGERS_S = 60.0


@dataclass(frozen=True, slots=True)
class Who:
    """The node as it names itself. `boot_id` is asked each time: simulated machines boot under the agent."""

    agent: str  # this program's version
    node: str
    token: str
    machine_id: str
    boot_id: Callable[[], str]
    report_s: float


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """What `status` shows: the last report and what became of it ("" when it was accepted)."""

    report: Report
    fault: str = ""
    accepted_at: datetime | None = None


class Watch:
    def __init__(
        self,
        who: Who,
        portal: Portal,
        parts: Parts,
        applier: Applier,
        broker_up: Callable[[], bool],
        exporter_port: int = 0,
    ) -> None:
        self._who = who
        self._portal = portal
        self._parts = parts
        self._applier = applier
        self._broker_up = broker_up
        self._boot_id = parts.ledger.record.boot_id
        self._counter = Counter(parts.place)
        self._observer = Observer(parts)
        self._folds: dict[str, Fold] = {}
        self._made: dict[str, tuple[Made, ...]] = {}
        self._readings: dict[str, Readings] = {}
        self._last_xids: dict[str, int] = {}
        self._managers: tuple[str, ...] = ()
        self._managers_at = float("-inf")
        self._report_s = who.report_s
        self._failures = 0
        self._dropped = 0
        self._told = (False, False)
        self._fault = ""
        self._failing: set[str] = set()
        self._accepted_at: datetime | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._alarms = Alarms(parts.driver, applier.changed.set)
        self._exporter = Exporter(parts.place, exporter_port, self.latest, who.node, who.agent)

    def start(self) -> None:
        self._exporter.start()
        self._thread.start()
        self._alarms.start()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._alarms.stop(0.0)  # it ends meanwhile
        self._applier.changed.set()
        self._exporter.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._alarms.stop(timeout_s)

    def latest(self) -> Latest | None:
        """What was seen and measured last; None before the first look."""
        seen = self._observer.last
        if seen is None:
            return None
        return Latest(
            inventory=seen.inventory,
            readings=self._readings,
            record=seen.record,
            stays=self._parts.stays.all(),
            xids={**dict.fromkeys(self._parts.driver.watched(), 0), **self._last_xids},
            dropped=self._dropped,
            up=not self._failures,
            held=seen.held,
        )

    def _run(self) -> None:
        sample_at = report_at = time.monotonic()
        while not self._stopping.is_set():
            news = self._applier.changed.wait(max(0.0, min(sample_at, report_at) - time.monotonic()))
            if time.monotonic() >= sample_at:
                self._guarded(self._sample)
                sample_at = time.monotonic() + SAMPLE_S
            if not self._stopping.is_set() and (news or time.monotonic() >= report_at):
                self._applier.changed.clear()
                self._guarded(self._report)
                report_at = time.monotonic() + self._pause_s()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # a full disk, say: the thread must live on
            self._failures += 1
            log.exception("The watch stumbled")

    def _pause_s(self) -> float:
        wait_s = self._report_s
        if self._failures:
            wait_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE_S)
        return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311

    def _sample(self) -> None:
        self._notice_boot()
        switches = self._switches()
        if switches != self._told:
            self._applier.changed.set()
        try:
            self._readings = self._parts.driver.readings()
        except DriverRefusal as refusal:
            self._readings = {}
            log.debug("No readings: %s", refusal)
        for uuid, readings in self._readings.items():
            self._fold(uuid).add(readings)
        self._parts.busy.note(self._readings)
        self._beside("the exporter", self._exporter.refresh)

    def _fold(self, uuid: str) -> Fold:
        fold = self._folds.setdefault(uuid, Fold())
        made = self._parts.ledger.gpu(uuid).made
        if self._made.get(uuid) != made:
            self._made[uuid] = made
            fold.forget_instances()
        return fold

    def _switches(self) -> tuple[bool, bool]:
        """What a person or the broker changes, and the portal should hear of at once."""
        return self._parts.place.is_frozen(), self._broker_up()

    def _notice_boot(self) -> None:
        """A real machine takes the agent down with it; a simulated one boots under it."""
        boot_id = self._who.boot_id()
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self._parts.ledger.notice_boot()
            self._applier.restore()

    def _report(self) -> None:
        seen = self._observer.look()
        self._note_xids(seen)
        report = self._compose(seen)
        try:
            answer = self._portal.ask(REPORTS, report, Answer, self._who.token)
        except (NoAnswer, Refused) as error:
            # The next report says all that this one did, and more: none is kept to be sent again.
            self._failures += 1
            self._dropped += 1
            self._say_once(str(error))
            self._beside("lines", partial(self._parts.lines.step, seen.inventory.gpus, seen.shares))
        else:
            self._failures = 0
            self._say_once("")
            self._accepted(report, answer)
            self._follow(self._observer.again(seen))
        self._leave_for_status(report)
        self._applier.compare(self._observer.last.cards if self._observer.last else ())

    def _compose(self, seen: Seen) -> Report:
        boot_id = self._who.boot_id()
        frozen, broker = self._told = self._switches()
        return Report(
            agent=self._who.agent,
            node=self._who.node,
            machine_id=self._who.machine_id,
            boot_id=boot_id,
            seq=self._counter.next(boot_id),
            sampled_at=datetime.now(UTC),
            driver=seen.inventory.driver,
            frozen=frozen,
            broker=broker,
            gpus=tuple(self._gpu(card) for card in seen.cards),
            happened=self._parts.log.pending(),
            managed_by=self._managed_by(),
            sharing=self._parts.sharing.offered(),
            access=self._parts.access.offered(),
            imex=seen.inventory.imex,
            exporter=self._exporter.port,
            run=str(self._parts.place.run_at) if self._parts.place.run_at else None,
            dropped=self._dropped,
        )

    def _gpu(self, card: Card) -> GpuReport:
        uuid = card.gpu.uuid
        return gpu_report(card, self._applier.trouble(uuid), self._folds.get(uuid, Fold()))

    def _managed_by(self) -> tuple[str, ...]:
        if time.monotonic() - self._managers_at >= MANAGERS_S:
            self._managers = managed_by(self._parts.place.root)
            self._managers_at = time.monotonic()
        return self._managers

    def _note_xids(self, seen: Seen) -> None:
        for xid in self._alarms.take():
            self._last_xids = {**self._last_xids, xid.gpu: xid.number}
            log.warning("%s: Xid %d", xid.gpu, xid.number)
            whose = self._observer.whose(xid.gpu, xid.gi)
            self._parts.log.add("xid", gpu=xid.gpu, allocation=whose, xid=xid.number, gi=xid.gi, ci=xid.ci)
            if action(xid.number) is Action.END:
                self._beside("ending", partial(self._end_application, seen, xid))

    def _end_application(self, seen: Seen, xid: Xid) -> None:
        for card in seen.cards:
            if card.gpu.uuid == xid.gpu:
                self._parts.ending.end_application(card.gpu, xid.gi)

    def _accepted(self, report: Report, answer: Answer) -> None:
        self._accepted_at = report.sampled_at
        self._counter.catch_up(report.boot_id, answer.accepted_seq, report.seq)
        if report.happened:
            self._parts.log.told(report.happened[-1].n)
        self._folds.clear()
        self._report_s = min(max(answer.next_report_s, SHORTEST_REPORT_S), LONGEST_REPORT_S)
        self._applier.heed(answer, self._report_s)

    def _follow(self, seen: Seen) -> None:
        """What the stays ask for now, each part on its own."""
        gpus = seen.inventory.gpus
        self._beside("hooks", lambda: self._parts.hooks.notice(seen.in_force))
        self._beside("ending", lambda: self._parts.ending.step(gpus, seen.shares))
        self._beside("lines", lambda: self._parts.lines.step(gpus, seen.shares))

    def _beside(self, name: str, step: Callable[[], None]) -> None:
        """A part that fails silences no report, and fills no log: it is told when it begins."""
        try:
            step()
        except Exception as error:
            if name in self._failing:
                log.debug("Part of the agent: %s: %r", name, error)
            else:
                log.exception("A part of the agent fails: %s", name)
            self._failing.add(name)
        else:
            self._failing.discard(name)

    def _say_once(self, fault: str) -> None:
        if fault != self._fault:
            if fault:
                log.warning("The report was not taken: %s", fault)
            else:
                log.info("Reports are taken again")
        self._fault = fault

    def _leave_for_status(self, report: Report) -> None:
        last = Last(report=report, fault=self._fault, accepted_at=self._accepted_at)
        write_whole(self._parts.place.last, msgspec.json.encode(last), durable=False)
