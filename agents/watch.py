"""The watch: samples the GPUs, reports to the portal, and hands the answer's commands on.

It has a thread of its own, so that no carve and no broker ever silences it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from agents.apply import Applier
from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu, Inventory
from agents.place import Place, write_whole
from agents.post import REPORTS, NoAnswer, Portal, Refused
from agents.record import GpuRecord, Ledger, Record
from agents.report import Counter, Fold, gpu_report
from pool.core.wire import Answer, GpuReport, Report

log = logging.getLogger("agents.watch")

SAMPLE_S = 2.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
SHORTEST_REPORT_S, LONGEST_REPORT_S = 0.5, 300.0
#: So often it is looked until what is seen and what is on record are of one moment.
LOOKS = 3
#: Nodes that were started together shall not report together.
JITTER = 0.1


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
        place: Place,
        driver: Driver,
        ledger: Ledger,
        applier: Applier,
        broker_up: Callable[[], bool],
    ) -> None:
        self._who = who
        self._portal = portal
        self._place = place
        self._driver = driver
        self._ledger = ledger
        self._applier = applier
        self._broker_up = broker_up
        self._boot_id = ledger.record.boot_id
        self._counter = Counter(place)
        self._folds: dict[str, Fold] = {}
        self._seen = Inventory(None, ())
        self._report_s = who.report_s
        self._failures = 0
        self._told = (False, False)
        self._fault = ""
        self._accepted_at: datetime | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._applier.changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

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
            for uuid, readings in self._driver.readings().items():
                self._folds.setdefault(uuid, Fold()).add(readings)
        except DriverRefusal as refusal:
            log.debug("No readings: %s", refusal)

    def _switches(self) -> tuple[bool, bool]:
        """What a person or the broker changes, and the portal should hear of at once."""
        return self._place.is_frozen(), self._broker_up()

    def _notice_boot(self) -> None:
        """A real machine takes the agent down with it; a simulated one boots under it."""
        boot_id = self._who.boot_id()
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self._ledger.notice_boot()
            self._applier.restore()

    def _look(self) -> tuple[Inventory, Record]:
        """What the driver shows, with the record of that moment; while it does not answer, what was
        last seen, as lost.

        A GPU that is being carved may show one moment and its record the next: then its instances count
        as not read, since one of them could pass for another's.
        """
        for _ in range(LOOKS):
            before, seen, record = self._ledger.record, self._ask(), self._ledger.record
            moved = {
                one.uuid for one in seen.gpus if before.gpus.get(one.uuid) is not record.gpus.get(one.uuid)
            }
            if not moved:
                break
        gpus = tuple(replace(one, instances=None) if one.uuid in moved else one for one in seen.gpus)
        return replace(seen, gpus=gpus), record

    def _ask(self) -> Inventory:
        try:
            self._driver.open()
            self._seen = self._driver.look()
        except DriverRefusal as refusal:
            log.error("The driver does not answer: %s", refusal)
            self._driver.close()
            lost = tuple(replace(gpu, lost=True) for gpu in self._seen.gpus)
            self._seen = Inventory(None, lost)
        return self._seen

    def _report(self) -> None:
        seen, record = self._look()
        report = self._compose(seen, record)
        try:
            answer = self._portal.ask(REPORTS, report, Answer, self._who.token)
        except (NoAnswer, Refused) as error:
            self._failures += 1
            self._say_once(str(error))
        else:
            self._failures = 0
            self._say_once("")
            self._accepted_at = report.sampled_at
            self._counter.catch_up(report.boot_id, answer.accepted_seq, report.seq)
            self._folds.clear()
            self._heed(answer)
        self._leave_for_status(report)
        self._applier.compare(seen.gpus)

    def _compose(self, seen: Inventory, record: Record) -> Report:
        boot_id = self._who.boot_id()
        frozen, broker = self._told = self._switches()
        return Report(
            agent=self._who.agent,
            node=self._who.node,
            machine_id=self._who.machine_id,
            boot_id=boot_id,
            seq=self._counter.next(boot_id),
            sampled_at=datetime.now(UTC),
            driver=seen.driver,
            frozen=frozen,
            broker=broker,
            gpus=tuple(self._gpu(gpu, record.gpus.get(gpu.uuid, GpuRecord())) for gpu in seen.gpus),
        )

    def _gpu(self, gpu: Gpu, record: GpuRecord) -> GpuReport:
        windows = self._folds[gpu.uuid].windows() if gpu.uuid in self._folds else {}
        return gpu_report(gpu, record, self._applier.trouble(gpu.uuid), windows)

    def _heed(self, answer: Answer) -> None:
        self._report_s = min(max(answer.next_report_s, SHORTEST_REPORT_S), LONGEST_REPORT_S)
        self._applier.keep_rules(answer.manage, answer.frozen)
        for command in answer.commands:
            self._applier.offer(command)

    def _say_once(self, fault: str) -> None:
        if fault != self._fault:
            if fault:
                log.warning("The report was not taken: %s", fault)
            else:
                log.info("Reports are taken again")
        self._fault = fault

    def _leave_for_status(self, report: Report) -> None:
        last = Last(report=report, fault=self._fault, accepted_at=self._accepted_at)
        write_whole(self._place.last, msgspec.json.encode(last), durable=False)
