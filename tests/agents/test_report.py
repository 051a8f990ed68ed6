"""What goes into a report: folded readings, owned and foreign slices, and a number that never goes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agents.gpu import Gpu, Health, Instance, InstanceReadings, Readings
from agents.observe import Card
from agents.place import Place
from agents.record import GpuRecord, Made
from agents.report import Counter, Fold, gpu_report
from pool.core.wire import ShareSeen, Trouble, Window
from tests.agents.stand_in import command, slice_

OURS = Instance(7, 0, "MIG-1", 19, "1g.10gb", 0, 1, memory_used_mib=3, memory_total_mib=9984, processes=())
THEIRS = Instance(8, 0, "MIG-2", 19, "1g.10gb", 1, 1)
GPU = Gpu(
    uuid="GPU-1", index=3, name="H100", mig_capable=True, mig=True, mig_pending=True, instances=(OURS, THEIRS)
)
RECORD = GpuRecord(
    wanted=command("GPU-1", 5, slice_("a", 0)),
    applied=5,
    made=(Made(profile_id=19, start=0, size=1, allocation="a", owner="o"),),
)


CARD = Card(GPU, RECORD, held=("a",))


def folded(*readings: Readings) -> Fold:
    fold = Fold()
    for one in readings:
        fold.add(one)
    return fold


class TestFold:
    def test_it_keeps_min_mean_max_and_last(self) -> None:
        fold = Fold()
        for value in (10, 40, 25):
            fold.add(Readings(utilization_pct=value, power_w=1.5))
        windows = fold.windows()
        assert windows["utilization_pct"] == Window(min=10, mean=25, max=40, last=25)
        assert windows["power_w"] == Window(min=1.5, mean=1.5, max=1.5, last=1.5)

    def test_what_was_never_read_is_not_zero_but_missing(self) -> None:
        fold = Fold()
        fold.add(Readings(memory_used_mib=0))
        assert fold.windows() == {"memory_used_mib": Window(min=0, mean=0, max=0, last=0)}

    def test_a_reading_that_lacks_at_times_counts_when_it_is_there(self) -> None:
        fold = Fold()
        for value in (None, 10, None, 20):
            fold.add(Readings(temperature_c=value))
        assert fold.windows()["temperature_c"] == Window(min=10, mean=15, max=20, last=20)

    def test_activity_names_its_source_and_the_rest_is_the_drivers(self) -> None:
        windows = folded(Readings(activity_pct=7.0, power_w=2.0, source="dcgm")).windows()
        assert windows["activity_pct"].source == "dcgm"
        assert windows["power_w"].source == "nvml"

    def test_what_was_measured_of_an_instance_is_not_the_next_ones(self) -> None:
        fold = folded(Readings(power_w=2.0, instances={7: InstanceReadings(activity_pct=90.0, source="gpm")}))
        fold.forget_instances()
        assert fold.windows(7) == {}
        assert set(fold.windows()) == {"power_w"}


class TestGpuReport:
    def test_it_tells_ours_from_foreign(self) -> None:
        report = gpu_report(CARD, None, Fold())
        assert report.instances is not None
        ours, theirs = report.instances
        assert (ours.owned, ours.allocation, ours.mig_uuid) == (True, "a", "MIG-1")
        assert (theirs.owned, theirs.allocation) == (False, None)
        assert (report.generation, report.held) == (5, ("a",))

    def test_what_could_not_be_read_stays_unknown(self) -> None:
        unread = replace(GPU, instances=None, mig=None, mig_capable=None)
        report = gpu_report(replace(CARD, gpu=unread), None, Fold())
        assert report.instances is None
        assert report.processes is None
        assert report.utilization_pct is None

    def test_a_lost_gpu_holds_and_measures_nothing(self) -> None:
        lost = replace(CARD, gpu=replace(GPU, lost=True, health=Health(sm_clock_mhz=900)), held=("a",))
        report = gpu_report(lost, None, folded(Readings(power_w=1.0)))
        assert report.lost
        assert report.held == ()
        assert report.power_w is None
        assert report.sm_clock_mhz is None

    def test_trouble_and_windows_are_carried(self) -> None:
        trouble = Trouble(generation=6, code="in_use", nvml=19)
        report = gpu_report(CARD, trouble, folded(Readings(power_w=1.0), Readings(power_w=3.0)))
        assert report.trouble == trouble
        assert report.power_w == Window(min=1, mean=2, max=3, last=3)

    def test_each_instance_has_its_own_activity_with_its_source(self) -> None:
        of = {7: InstanceReadings(activity_pct=40.0, memory_activity_pct=5.0, source="gpm")}
        report = gpu_report(CARD, None, folded(Readings(instances=of)))
        assert report.instances is not None
        ours, theirs = report.instances
        assert ours.activity_pct == Window(min=40, mean=40, max=40, last=40, source="gpm")
        assert ours.memory_activity_pct == Window(min=5, mean=5, max=5, last=5, source="gpm")
        assert theirs.activity_pct is None

    def test_health_shares_and_resets_are_carried(self) -> None:
        share = ShareSeen(allocation="a", state="over", memory_used_mib=10)
        clocks = {"sm_clock_mhz": 1980, "throttle": ("sw_thermal",)}
        health = Health(**clocks, ecc_uncorrected=2, compute_mode="default")
        card = Card(replace(GPU, health=health), GpuRecord(reset=3), (share,), ("a",))
        report = gpu_report(card, None, Fold())
        assert (report.shares, report.held, report.reset) == ((share,), ("a",), 3)
        assert (report.sm_clock_mhz, report.throttle) == (1980, ("sw_thermal",))
        assert (report.ecc_uncorrected, report.compute_mode) == (2, "default")
        assert report.ecc_corrected is None


class TestCounter:
    def test_it_counts_on_after_a_restart(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        assert [Counter(place).next("boot-1") for _ in range(3)] == [1, 2, 3]

    def test_a_new_boot_begins_anew(self, tmp_path: Path) -> None:
        counter = Counter(Place(tmp_path))
        counter.next("boot-1")
        assert counter.next("boot-2") == 1
