"""The watch against a portal that only listens: when it reports, what it heeds, what it survives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from agents import simulator_world as world
from agents import watch
from agents.apply import Applier
from agents.driver import Driver
from agents.gpu import Gpu
from agents.place import Place
from agents.post import portal
from agents.simulator_state import Store, boot_id
from agents.watch import Watch, Who
from pool.core.wire import Policy, Stay
from tests.agents.stand_in import TOKEN, WAIT_S, StandIn, command, gpu_of, parts_of, slice_

Open = Callable[..., tuple[Driver, Path]]
A = slice_("a", 0)


class Bench:
    """A node of two GPUs in one process: applier, watch and the portal's stand-in."""

    def __init__(self, stand_in: StandIn, driver: Driver, folder: Path) -> None:
        self.portal = stand_in
        self.driver = driver
        self.folder = folder
        self.place = Place(folder)
        self.broker_up = False
        self.uuid, self.other = (gpu.uuid for gpu in driver.look().gpus)
        self.begin()

    def begin(self, run_at: Path | None = None) -> None:
        parts = parts_of(self.driver, self.folder, lambda: boot_id(self.folder))
        self.parts = replace(parts, place=replace(parts.place, run_at=run_at))
        self.ledger = self.parts.ledger
        self.applier = Applier("node-1", self.parts)
        who = Who(
            agent="1.2",
            node="node-1",
            token=TOKEN,
            machine_id="machine",
            boot_id=lambda: boot_id(self.folder),
            report_s=0.5,
        )
        door = portal(self.portal.url)
        self.watch = Watch(who, door, self.parts, self.applier, lambda: self.broker_up)

    def start(self) -> None:
        self.applier.start()
        self.watch.start()

    def stop(self) -> None:
        self.watch.stop(WAIT_S)
        self.applier.stop(WAIT_S)


@pytest.fixture
def bench(driver: Open, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(watch, "SAMPLE_S", 0.1)
    monkeypatch.setattr(watch, "FIRST_PAUSE_S", 0.1)
    with StandIn() as stand_in:
        one = Bench(stand_in, *driver("2xH100-80GB", mig=(0,)))
        yield one
        one.stop()


class TestReports:
    def test_it_tells_who_and_what_it_is(self, bench: Bench) -> None:
        bench.start()
        report = bench.portal.await_report(lambda report: True)
        assert (report.agent, report.node, report.machine_id) == ("1.2", "node-1", "machine")
        assert report.boot_id == boot_id(bench.folder)
        assert report.driver
        assert [gpu.mig for gpu in report.gpus] == [True, False]
        assert not report.frozen

    @pytest.mark.parametrize("moved", [None, "/srv/gpupool"])
    def test_a_folder_for_holders_that_was_moved_is_told(self, bench: Bench, moved: str | None) -> None:
        bench.begin(Path(moved) if moved else None)
        bench.start()
        assert bench.portal.await_report(lambda report: True).run == moved

    def test_readings_are_folded_over_the_time_between_reports(self, bench: Bench) -> None:
        world.busy(bench.folder, bench.other, 40)
        bench.start()
        bench.portal.await_gpu(
            bench.other, lambda gpu: bool(gpu.utilization_pct and gpu.utilization_pct["max"] == 40)
        )
        world.busy(bench.folder, bench.other, 90)
        gpu = bench.portal.await_gpu(
            bench.other, lambda gpu: bool(gpu.utilization_pct and gpu.utilization_pct["min"] == 90)
        )
        assert gpu.power_w is not None
        assert gpu.temperature_c is not None

    def test_utilization_in_mig_mode_is_not_measured(self, bench: Bench) -> None:
        bench.start()
        gpu = bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.memory_used_mib is not None)
        assert gpu.utilization_pct is None

    def test_the_portal_sets_the_pace(self, bench: Bench) -> None:
        bench.portal.say(next_report_s=200.0)
        bench.start()
        bench.portal.await_report(lambda report: report.seq == 1)
        bench.place.frozen.touch()
        assert bench.portal.await_report(lambda report: report.frozen).seq == 2

    def test_numbers_go_on_after_a_restart(self, bench: Bench) -> None:
        bench.start()
        last = bench.portal.await_report(lambda report: report.seq >= 2).seq
        bench.stop()
        bench.begin()
        bench.start()
        newest = bench.portal.await_report(lambda report: report.seq > last)
        assert newest.boot_id == boot_id(bench.folder)
        seqs = [report.seq for report in bench.portal.reports]
        assert seqs == sorted(set(seqs))

    def test_numbers_that_were_lost_go_on_behind_what_the_portal_has(self, bench: Bench) -> None:
        bench.portal.seq = 1000
        bench.start()
        newest = bench.portal.await_report(lambda report: report.seq > 1)
        assert newest.seq == 1001

    def test_a_lost_gpu_is_reported_as_lost_and_not_measured(self, bench: Bench) -> None:
        bench.start()
        bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.power_w is not None)
        world.lose(bench.folder, 0)
        gpu = bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.lost)
        assert gpu.power_w is None
        assert not gpu_of(bench.portal.reports[-1], bench.other).lost

    def test_a_driver_that_does_not_answer_makes_all_gpus_lost_until_it_does(self, bench: Bench) -> None:
        bench.start()
        bench.portal.await_report(lambda report: len(report.gpus) == 2)
        world.fail_next(bench.folder, "nvmlDeviceGetCount_v2", *[pynvml.NVML_ERROR_DRIVER_NOT_LOADED] * 12)
        report = bench.portal.await_report(lambda report: report.driver is None)
        assert [gpu.lost for gpu in report.gpus] == [True, True]
        report = bench.portal.await_report(lambda report: report.driver is not None)
        assert [gpu.lost for gpu in report.gpus] == [False, False]

    def test_the_brokers_state_is_told_at_once(self, bench: Bench) -> None:
        bench.portal.say(next_report_s=200.0)
        bench.start()
        bench.portal.await_report(lambda report: not report.broker)
        bench.broker_up = True
        bench.portal.await_report(lambda report: report.broker)


class TestAnswers:
    def test_a_command_in_the_answer_is_carried_out_and_reported_at_once(self, bench: Bench) -> None:
        bench.portal.say(next_report_s=200.0, manage=(bench.uuid,), commands=(command(bench.uuid, 3, A),))
        bench.start()
        gpu = bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.generation == 3)
        assert gpu.held == ("a",)
        assert gpu.instances is not None
        assert [(one.owned, one.allocation, one.start) for one in gpu.instances] == [(True, "a", 0)]
        assert gpu.instances[0].mig_uuid

    def test_an_open_command_that_comes_with_every_answer_is_done_once(self, bench: Bench) -> None:
        bench.portal.say(manage=(bench.uuid,), commands=(command(bench.uuid, 3, A),))
        bench.start()
        bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.generation == 3)
        first = [one.serial for one in Store(bench.folder).read().gpus[0].instances]
        seen = len(bench.portal.reports)
        bench.portal.await_report(lambda report: len(bench.portal.reports) > seen + 1)
        assert [one.serial for one in Store(bench.folder).read().gpus[0].instances] == first

    def test_gpus_that_are_not_managed_are_only_looked_at(self, bench: Bench) -> None:
        bench.portal.say(manage=(bench.other,), commands=(command(bench.uuid, 3, A),))
        bench.start()
        gpu = bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.trouble is not None)
        assert gpu.trouble is not None
        assert (gpu.trouble.code, gpu.trouble.generation) == ("observe", 3)
        assert gpu.instances == ()

    def test_the_portals_freeze_is_heeded_also_by_the_next_start(self, bench: Bench) -> None:
        bench.portal.say(manage=(bench.uuid,), frozen=True, commands=(command(bench.uuid, 3, A),))
        bench.start()
        bench.portal.await_gpu(
            bench.uuid, lambda gpu: gpu.trouble is not None and gpu.trouble.code == "frozen"
        )
        bench.stop()
        bench.begin()
        assert bench.ledger.forbidden(bench.uuid) == "frozen"


class TestOutages:
    def test_it_goes_on_reporting_when_the_portal_is_back(self, bench: Bench) -> None:
        bench.portal.status = 503
        bench.start()
        bench.portal.await_refused(lambda report: report.seq == 3)
        assert bench.portal.reports == []
        bench.portal.status = 200
        bench.portal.await_report(lambda report: report.seq > 3)

    def test_readings_of_the_outage_are_in_the_first_report_after_it(self, bench: Bench) -> None:
        world.busy(bench.folder, bench.other, 70)
        bench.portal.status = 503
        bench.start()
        bench.portal.await_refused(lambda report: report.seq == 2)
        world.busy(bench.folder, bench.other, 10)
        bench.portal.status = 200
        gpu = gpu_of(bench.portal.await_report(lambda report: True), bench.other)
        assert gpu.utilization_pct is not None
        assert gpu.utilization_pct["max"] == 70

    def test_it_survives_a_disk_that_cannot_be_written(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = threading.Event()

        def full(*args: object, **more: object) -> None:
            tried.set()
            raise OSError("no space left")

        with monkeypatch.context() as disk:
            disk.setattr("agents.report.write_whole", full)
            bench.start()
            assert tried.wait(WAIT_S)
        bench.portal.await_report(lambda report: True)

    @pytest.mark.parametrize(("failures", "longest"), [(1, 1.1), (4, 8.8), (50, 16.5)])
    def test_it_backs_off_and_not_for_long(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, failures: int, longest: float
    ) -> None:
        monkeypatch.setattr(watch, "FIRST_PAUSE_S", 1.0)
        bench.watch._failures = failures
        pauses = [bench.watch._pause_s() for _ in range(50)]
        assert longest * 0.8 <= min(pauses) <= max(pauses) <= longest

    def test_reports_are_spread(self, bench: Bench) -> None:
        assert len({bench.watch._pause_s() for _ in range(10)}) > 5

    def test_reports_that_were_not_taken_are_counted(self, bench: Bench) -> None:
        bench.portal.status = 503
        bench.start()
        bench.portal.await_refused(lambda report: report.dropped == 3)
        bench.portal.status = 200
        report = bench.portal.await_report(lambda report: True)
        assert report.dropped == len(bench.portal.refused)

    def test_holders_are_told_of_their_end_meanwhile(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reached = threading.Event()
        monkeypatch.setattr(bench.parts.lines, "step", lambda gpus, shares: reached.set())
        bench.portal.status = 503
        bench.start()
        bench.portal.await_refused(lambda report: report.seq == 2)
        assert reached.is_set()

    def test_the_portal_counts_as_away_until_its_first_answer(self, bench: Bench) -> None:
        bench.parts.stays.heed((), Policy(), -1.0)
        bench.portal.status = 503
        bench.start()
        bench.portal.await_refused(lambda report: report.seq == 2)
        assert not bench.parts.stays.here()
        bench.portal.status = 200
        bench.portal.await_report(lambda report: report.seq > 3)
        assert bench.parts.stays.here()


class TestHappened:
    def test_it_is_told_until_a_report_with_it_is_accepted_and_never_again(self, bench: Bench) -> None:
        bench.portal.status = 503
        bench.parts.log.add("line", "first")
        bench.start()
        bench.portal.await_refused(lambda report: report.seq == 2)
        assert all(len(report.happened) == 1 for report in bench.portal.refused)
        bench.portal.status = 200
        report = bench.portal.await_report(lambda report: bool(report.happened))
        assert [one.text for one in report.happened] == ["first"]
        bench.portal.await_report(lambda later: later.seq > report.seq and not later.happened)

    def test_an_error_of_a_gpu_is_told_at_once_with_whose_it_was(self, bench: Bench) -> None:
        bench.portal.say(manage=(bench.uuid,), commands=(command(bench.uuid, 3, A),))
        bench.start()
        bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.held == ("a",))
        bench.portal.say(next_report_s=200.0)
        seen = len(bench.portal.reports)
        bench.portal.await_report(lambda report: len(bench.portal.reports) > seen)
        world.xid(bench.folder, 0, 43, 0)
        told = lambda: [one for report in bench.portal.reports for one in report.happened]  # noqa: E731
        bench.portal.await_report(lambda report: bool(told()))
        (one,) = told()
        assert (one.kind, one.gpu, one.allocation, one.data["xid"]) == ("xid", bench.uuid, "a", 43)
        latest = bench.watch.latest()
        assert latest is not None
        assert latest.xids == {bench.uuid: 43, bench.other: 0}

    def test_an_application_that_lost_its_memory_is_told_to_go_and_others_are_not(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended: list[tuple[str, int | None]] = []
        told = threading.Event()

        def end_application(gpu: Gpu, gi: int | None) -> None:
            ended.append((gpu.uuid, gi))
            told.set()

        monkeypatch.setattr(bench.parts.ending, "end_application", end_application)
        bench.start()
        bench.portal.await_report(lambda report: report.seq >= 2)
        world.xid(bench.folder, 1, 31)
        world.xid(bench.folder, 1, 94)
        assert told.wait(WAIT_S)
        assert ended == [(bench.other, None)]


class TestParts:
    """What comes with the answers reaches the other parts; one that fails silences no report."""

    def test_stays_and_policy_are_heeded_and_each_part_gets_its_step(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: dict[str, object] = {}
        parts = bench.parts
        monkeypatch.setattr(parts.hooks, "notice", lambda held: steps.update(hooks=set(held)))
        monkeypatch.setattr(parts.lines, "step", lambda gpus, shares: steps.update(lines=len(gpus)))
        monkeypatch.setattr(parts.ending, "step", lambda gpus, shares: steps.update(ending=len(gpus)))
        stay = Stay(
            allocation="a", reservation="r", gpu=bench.uuid, team="t", owner="o", start=datetime.now(UTC)
        )
        bench.portal.say(
            manage=(bench.uuid,),
            commands=(command(bench.uuid, 3, A),),
            stays=(stay,),
            policy=Policy(kill=True),
        )
        bench.start()
        bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.held == ("a",))
        seen = len(bench.portal.reports)
        bench.portal.await_report(lambda report: len(bench.portal.reports) > seen)
        assert steps == {"hooks": {"a"}, "lines": 2, "ending": 2}
        assert parts.stays.of("a") == stay
        assert parts.stays.policy.kill

    def test_one_that_fails_silences_no_report_and_says_so_once(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        reached = threading.Event()

        def broken(held: object) -> None:
            raise RuntimeError("a hook's folder is odd")

        monkeypatch.setattr(bench.parts.hooks, "notice", broken)
        monkeypatch.setattr(bench.parts.lines, "step", lambda gpus, shares: reached.set())
        bench.start()
        bench.portal.await_report(lambda report: report.seq >= 3)
        assert reached.is_set()
        assert bench.watch._failures == 0
        said = [record for record in caplog.records if "hooks" in record.getMessage()]
        assert len(said) == 1

    def test_what_works_here_and_who_else_manages_it_is_told(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench.parts.sharing, "offered", lambda: ("mps", "timeslice"))
        monkeypatch.setattr(bench.parts.access, "offered", lambda: ("advisory", "cdi"))
        monkeypatch.setattr(watch, "managed_by", lambda root: ("slurmd",))
        bench.start()
        report = bench.portal.await_report(lambda report: True)
        assert (report.sharing, report.access) == (("mps", "timeslice"), ("advisory", "cdi"))
        assert report.managed_by == ("slurmd",)
        assert report.exporter is None

    def test_nobody_walks_over_all_processes_with_each_report(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Path] = []
        monkeypatch.setattr(watch, "managed_by", lambda root: (asked.append(root), ())[1])
        bench.start()
        bench.portal.await_report(lambda report: report.seq >= 4)
        assert asked == [bench.place.root]


class TestSimulatedBoots:
    def test_a_boot_under_the_agent_is_noticed_and_everything_restored(self, bench: Bench) -> None:
        bench.portal.say(manage=(bench.uuid,), commands=(command(bench.uuid, 3, A),))
        bench.start()
        bench.portal.await_gpu(bench.uuid, lambda gpu: gpu.generation == 3)
        bench.portal.say(commands=())
        old = boot_id(bench.folder)
        world.reboot(bench.folder)
        report = bench.portal.await_report(
            lambda report: report.boot_id != old and gpu_of(report, bench.uuid).held == ("a",)
        )
        assert gpu_of(report, bench.uuid).generation == 3
        assert gpu_of(report, bench.uuid).mig
