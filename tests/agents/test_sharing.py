"""Shares brought to a layout, seen, and taken down, with the MPS stand-in and real processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import simulator_world as world
from agents.driver import Driver
from agents.gpu import DriverRefusal
from agents.place import Place
from agents.sharing import Sharing
from pool.core import connect
from pool.core.wire import Process
from tests.agents import mps_stand_in
from tests.agents.mps_stand_in import Program
from tests.agents.shared_gpu import NOTHING, A, B, Bench, share, shared

Open = Callable[..., tuple[Driver, Path]]
#: Above any pid_max, so that nothing is read of it.
GONE = 2**22


@pytest.fixture
def bench(driver: Open) -> Iterator[Bench]:
    one = Bench(*driver("1xH100-80GB"))
    mps_stand_in.install(one.place.root)
    library = one.place.root / "usr/local/vgpu/libvgpu.so"
    library.parent.mkdir(parents=True)
    shutil.copy(_any_library(), library)
    yield one
    mps_stand_in.clear_away(one.place.run)


def _any_library() -> Path:
    """A real library stands in for HAMi-core's: what counts here is that it is loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "/libm" in line and ".so" in line)


def process(pid: int, allocation: str | None, memory_mib: int | None = 1_000, **more: Any) -> Process:
    return Process(pid=pid, allocation=allocation, memory_mib=memory_mib, **more)


class TestOffered:
    def test_it_is_what_is_installed(self, bench: Bench) -> None:
        assert bench.sharing.offered() == ("mps", "hami", "timeslice")

    def test_taking_turns_needs_nothing(self, tmp_path: Path) -> None:
        assert Sharing(Place(tmp_path), Driver()).offered() == ("timeslice",)

    def test_what_is_not_installed_is_refused(self, bench: Bench) -> None:
        shutil.rmtree(bench.place.root / "usr")
        assert "not installed" in bench.refused(shared(A), "sharing").detail

    def test_no_share_stands_in_mig_mode(self, bench: Bench) -> None:
        bench.driver.set_mig_mode(bench.uuid, True)
        assert "MIG" in bench.refused(shared(A), "sharing").detail


class TestMps:
    def test_a_daemon_runs_with_the_largest_limits_and_the_gpu_is_its_own(self, bench: Bench) -> None:
        assert bench.bring(shared(A, B))
        assert bench.daemon.limits() == (20_480, 100)
        assert bench.gpu.health.compute_mode == "exclusive_process"
        assert set(bench.seen(shared(A, B))) == {"a", "b"}

    def test_bringing_the_same_again_changes_nothing(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        assert not bench.bring(shared(A, B))
        bench.again()
        assert not bench.bring(shared(A, B))

    def test_each_holder_is_told_its_own_smaller_limits(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        settings = bench.sharing.environment(bench.gpu, shared(A, B), "b")
        with Program(settings) as program:
            assert program.connected() == {"memory": 8_192, "percent": 100}
        assert settings["CUDA_MPS_CLIENT_PRIORITY"] == "1"
        assert bench.sharing.environment(bench.gpu, shared(A), "unknown") == {}

    def test_a_share_that_joins_leaves_the_others_programs_alone(self, bench: Bench) -> None:
        bench.bring(shared(A))
        settings = bench.sharing.environment(bench.gpu, shared(A), "a")
        with Program(settings) as program:
            program.connected()
            server = bench.daemon.servers()
            assert bench.bring(shared(A, B), bench.used_by(process(program.pid, "a")))
            assert bench.daemon.servers() == server
            assert program.allocates(100)

    def test_the_last_one_out_leaves_the_gpu_as_it_was(self, bench: Bench) -> None:
        bench.bring(shared(A))
        bench.again()
        assert bench.bring(NOTHING)
        assert bench.gpu.health.compute_mode == "default"
        assert not bench.daemon.alive()
        assert bench.seen(shared(A)) == {}
        assert not bench.bring(NOTHING)

    def test_a_mode_of_the_operators_own_comes_back(self, bench: Bench) -> None:
        bench.driver.set_compute_mode(bench.uuid, "exclusive_process")
        bench.bring(shared(A))
        bench.bring(NOTHING)
        assert bench.gpu.health.compute_mode == "exclusive_process"

    def test_a_gpu_that_was_closed_to_all_is_not_closed_again(self, bench: Bench) -> None:
        bench.driver.set_compute_mode(bench.uuid, "prohibited")
        bench.bring(shared(A))
        bench.bring(NOTHING)
        assert bench.gpu.health.compute_mode == "default"

    def test_a_compute_mode_that_somebody_changed_is_set_again(self, bench: Bench) -> None:
        bench.bring(shared(A))
        bench.driver.set_compute_mode(bench.uuid, "default")
        assert bench.bring(shared(A))
        assert bench.gpu.health.compute_mode == "exclusive_process"

    def test_more_than_a_server_can_serve_is_refused(self, bench: Bench) -> None:
        many = [share(f"a{number}") for number in range(49)]
        assert "48" in bench.refused(shared(*many), "sharing").detail

    def test_nothing_is_changed_when_nothing_may_be(self, bench: Bench) -> None:
        def frozen() -> None:
            raise DriverRefusal("frozen")

        with pytest.raises(DriverRefusal, match="frozen"):
            bench.sharing.bring(bench.gpu, shared(A), frozen)
        assert not bench.daemon.alive()
        assert bench.gpu.health.compute_mode == "default"


class TestAccounts:
    def test_holders_without_a_common_account_are_refused(self, bench: Bench) -> None:
        other = share("b", users=("nobody",))
        assert "none in common" in bench.refused(shared(A, other), "sharing").detail
        assert not bench.daemon.alive()

    def test_one_person_in_two_teams_has_a_common_account(self, bench: Bench) -> None:
        one, other = share("a", users=("daemon", "bin")), share("b", users=("daemon", "nobody"))
        assert bench.bring(shared(one, other))

    def test_the_account_that_is_served_stays_when_somebody_joins(self, bench: Bench) -> None:
        bench.bring(shared(share("a", users=("daemon", "bin"))))
        both = shared(share("b", users=("bin", "daemon")), share("a", users=("daemon", "bin")))
        assert bench.bring(both, bench.used_by(process(GONE + 1, "a")))

    def test_a_pool_may_allow_several(self, bench: Bench) -> None:
        assert bench.bring(shared(A, share("b", users=("nobody",)), multi_user=True))
        assert set(bench.seen(shared(A, multi_user=True))) == {"a"}

    def test_holders_without_accounts_must_be_one_owner(self, bench: Bench) -> None:
        one, other = share("a", users=()), share("b", users=())
        bench.refused(shared(one, other), "sharing")
        assert bench.bring(shared(one, share("b", users=(), owner=one.owner)))

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root: folders of other accounts")
    def test_the_next_account_gets_a_daemon_of_its_own(self, bench: Bench) -> None:
        bench.bring(shared(A))
        first = (bench.pipe / "nvidia-cuda-mps-control.pid").read_text()
        assert bench.bring(shared(share("b", users=("nobody",))))
        assert (bench.pipe / "nvidia-cuda-mps-control.pid").read_text() != first
        assert bench.pipe.parent.owner() == "root"  # an owner could put links in the place of folders


class TestInUse:
    def test_shares_are_not_begun_beside_somebody_elses_program(self, bench: Bench) -> None:
        pid = world.process(bench.place.folder, 0)
        assert bench.refused(shared(A), "in_use").holders[0].pid == pid
        assert bench.gpu.health.compute_mode == "default"

    def test_what_cannot_be_read_counts_as_in_use(self, bench: Bench) -> None:
        unknown = replace(bench.gpu, processes=None)
        bench.refused(shared(A), "in_use", unknown)
        bench.bring(shared(A))
        bench.refused(NOTHING, "in_use", unknown)
        bench.refused(shared(B), "in_use", unknown)

    def test_a_daemon_with_a_program_on_it_is_not_taken_down(self, bench: Bench) -> None:
        bench.bring(shared(A))
        used = bench.used_by(process(GONE + 1, "a"), process(GONE + 2, None, system=True))
        assert [one.pid for one in bench.refused(NOTHING, "in_use", used).holders] == [GONE + 1]
        assert bench.daemon.alive()
        assert bench.bring(NOTHING, bench.used_by(process(GONE + 2, None, system=True)))

    @pytest.mark.parametrize("way", ["mps", "hami", "timeslice"])
    def test_a_share_that_is_over_and_still_used_is_told_until_it_is_not(
        self, bench: Bench, way: str
    ) -> None:
        bench.bring(shared(A, B, way=way))
        used = bench.used_by(process(GONE + 1, "b"))
        for _ in range(2):
            assert [one.pid for one in bench.refused(shared(A, way=way), "in_use", used).holders] == [
                GONE + 1
            ]
            bench.again()
        assert set(bench.seen(shared(A, way=way))) == {"a"}
        bench.bring(shared(A, way=way))
        assert not bench.bring(shared(A, way=way))

    def test_the_same_owner_goes_on_with_the_same_share(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        heir = msgspec.structs.replace(A, allocation="c")
        assert bench.bring(shared(heir, B), bench.used_by(process(GONE + 1, "a")))
        assert set(bench.seen(shared(heir, B))) == {"b", "c"}

    def test_another_owner_does_not_inherit_a_program(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        other = share("c", users=A.users)
        bench.refused(shared(other, B), "in_use", bench.used_by(process(GONE + 1, "a")))


class TestStanding:
    def test_memory_is_summed_over_a_shares_programs(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        found = (
            process(GONE + 1, "a", 9_000),
            process(GONE + 2, "a", 8_000),
            process(GONE + 3, "b", 500),
            process(GONE + 4, None, 7),
        )
        seen = bench.seen(shared(A, B), *found)
        assert (seen["a"].state, seen["a"].memory_used_mib) == ("ok", 17_000)
        assert seen["b"].memory_used_mib == 500

    def test_two_programs_that_each_keep_the_limit_are_too_much_together(self, bench: Bench) -> None:
        bench.bring(shared(A))
        settings = bench.sharing.environment(bench.gpu, shared(A), "a")
        with Program(settings) as one, Program(settings) as other:
            for program in (one, other):
                program.connected()
                assert program.allocates(20_000)
            found = (process(one.pid, "a", 20_000), process(other.pid, "a", 20_000))
            seen = bench.seen(shared(A), *found)["a"]
        assert (seen.state, seen.memory_used_mib) == ("over", 40_000)
        assert "40000 MiB" in seen.detail

    def test_a_sum_of_which_a_part_is_unknown_is_unknown_but_may_be_too_much(self, bench: Bench) -> None:
        bench.bring(shared(A))
        seen = bench.seen(shared(A), process(GONE + 1, "a", None), process(GONE + 2, "a", 100))["a"]
        assert (seen.state, seen.memory_used_mib) == ("ok", None)
        seen = bench.seen(shared(A), process(GONE + 1, "a", None), process(GONE + 2, "a", 20_481))["a"]
        assert (seen.state, seen.memory_used_mib) == ("over", None)

    def test_nothing_stands_before_it_was_brought(self, bench: Bench) -> None:
        assert bench.seen(shared(A)) == {}
        bench.bring(shared(A))
        assert set(bench.seen(shared(A, B))) == {"a"}
        assert bench.seen(shared(A, way="hami")) == {}

    def test_a_dead_daemon_degrades_all_and_is_started_anew_when_nothing_runs(self, bench: Bench) -> None:
        bench.bring(shared(A, B))
        mps_stand_in.kill_daemon(bench.pipe)
        assert {one.state for one in bench.seen(shared(A, B)).values()} == {"degraded"}
        bench.refused(shared(A, B), "in_use", bench.used_by(process(GONE + 1, "a")))
        assert bench.bring(shared(A, B))
        assert {one.state for one in bench.seen(shared(A, B)).values()} == {"ok"}
        assert bench.daemon.limits() == (20_480, 100)

    def test_the_orphaned_server_of_a_dead_daemon_is_ended_with_it(self, bench: Bench) -> None:
        bench.bring(shared(A))
        with Program(bench.sharing.environment(bench.gpu, shared(A), "a")) as program:
            program.connected()
            (server,) = bench.daemon.servers()
        handle = os.pidfd_open(server)
        mps_stand_in.kill_daemon(bench.pipe)
        bench.bring(shared(A), bench.used_by(process(server, None, system=True)))
        assert mps_stand_in.ended(handle)

    def test_a_program_with_looser_limits_is_told(self, bench: Bench) -> None:
        bench.bring(shared(A))
        settings = bench.sharing.environment(bench.gpu, shared(A), "a")
        with Program(settings) as good, Program({"CUDA_MPS_PIPE_DIRECTORY": str(bench.pipe)}) as bad:
            good.connected()
            bad.connected()
            assert bench.seen(shared(A), process(good.pid, "a"))["a"].state == "ok"
            seen = bench.seen(shared(A), process(good.pid, "a"), process(bad.pid, "a"))["a"]
        assert seen.state == "degraded"
        assert f"process {bad.pid} " in seen.detail


class TestHami:
    def test_each_share_has_a_folder_and_the_library_one_name(self, bench: Bench) -> None:
        assert bench.bring(shared(A, B, way="hami"))
        settings = bench.sharing.environment(bench.gpu, shared(A, way="hami"), "a")
        assert Path(settings["LD_PRELOAD"]).samefile(bench.place.root / "usr/local/vgpu/libvgpu.so")
        assert Path(settings["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).parent.is_dir()
        assert {one.state for one in bench.seen(shared(A, B, way="hami")).values()} == {"ok"}
        assert bench.gpu.health.compute_mode == "default"

    def test_the_folder_goes_with_the_share(self, bench: Bench) -> None:
        bench.bring(shared(A, B, way="hami"))
        folder = Path(connect.cache("b", str(bench.place.run)))
        assert bench.bring(shared(A, way="hami"))
        assert not folder.exists()
        bench.bring(NOTHING)
        assert not Path(connect.cache("a", str(bench.place.run))).exists()

    def test_after_a_boot_the_folders_are_made_anew(self, bench: Bench) -> None:
        bench.bring(shared(A, way="hami"))
        shutil.rmtree(bench.place.run)
        assert bench.seen(shared(A, way="hami"))["a"].state == "degraded"
        assert bench.bring(shared(A, way="hami"))
        assert bench.seen(shared(A, way="hami"))["a"].state == "ok"

    def test_another_way_takes_the_first_down(self, bench: Bench) -> None:
        bench.bring(shared(A))
        assert bench.bring(shared(A, way="hami"))
        assert not bench.daemon.alive()
        assert bench.gpu.health.compute_mode == "default"
        assert set(bench.seen(shared(A, way="hami"))) == {"a"}


class TestTurns:
    def test_a_share_by_turns_stands_without_any_limit(self, bench: Bench) -> None:
        assert bench.bring(shared(A, way="timeslice"))
        assert bench.seen(shared(A, way="timeslice"))["a"].state == "ok"
        assert bench.sharing.environment(bench.gpu, shared(A, way="timeslice"), "a") == {}


def test_a_record_that_cannot_be_read_brings_the_shares_anew(bench: Bench) -> None:
    bench.bring(shared(A, way="timeslice"))
    (bench.place.folder / "sharing.json").write_text("{")
    bench.again()
    assert bench.seen(shared(A, way="timeslice")) == {}
    assert bench.bring(shared(A, way="timeslice"))
