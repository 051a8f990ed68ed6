"""The MPS control daemon of a GPU, against a stand-in: its limits, its accounts, its death."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import processes
from agents.gpu import DriverRefusal
from agents.mps import SERVER, Mps
from agents.place import Place
from pool.core import connect
from tests.agents import mps_stand_in
from tests.agents.mps_stand_in import Program

GPU = "GPU-00000000-0000-0000-0000-000000000001"
ALICE, BOB = 4_001, 4_002
MANY = pytest.mark.skipif(os.getuid() != 0, reason="needs root: programs of two accounts")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    tmp_path.chmod(0o755)
    one = Place(tmp_path / "agent")
    one.make()
    one.folder.chmod(0o755)
    mps_stand_in.install(one.root)
    yield one
    mps_stand_in.clear_away(one.run)


@pytest.fixture
def daemon(place: Place) -> Mps:
    one = Mps(place, GPU)
    one.start(None, multi_user=False)
    return one


def settings(place: Place, **more: str) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": connect.pipe(GPU, str(place.run)), **more}


def folder(place: Place) -> Path:
    return Path(connect.pipe(GPU, str(place.run))).parent


def allowed() -> None:
    """Anything may be changed."""


class TestDaemon:
    def test_it_starts_and_ends(self, daemon: Mps) -> None:
        assert daemon.alive()
        daemon.quit()
        assert not daemon.alive()

    def test_ending_none_is_harmless(self, place: Place) -> None:
        Mps(place, GPU).quit()

    def test_it_knows_no_gpu_but_its_own(self, place: Place, daemon: Mps) -> None:
        pid = int((folder(place) / "pipe/nvidia-cuda-mps-control.pid").read_text())
        assert f"CUDA_VISIBLE_DEVICES={GPU}".encode() in Path(f"/proc/{pid}/environ").read_bytes()

    def test_a_dead_one_is_told_from_a_living_one(self, place: Place, daemon: Mps) -> None:
        mps_stand_in.kill_daemon(folder(place) / "pipe")
        assert not daemon.alive()

    def test_one_that_died_is_started_anew(self, place: Place, daemon: Mps) -> None:
        mps_stand_in.kill_daemon(folder(place) / "pipe")
        daemon.start(None, multi_user=False)
        assert daemon.alive()

    def test_a_machine_without_the_program_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(DriverRefusal, match="not installed") as refusal:
            Mps(Place(tmp_path), GPU).start(None, multi_user=False)
        assert refusal.value.code == "sharing"

    def test_below_systemd_it_is_a_service_of_its_own(self, place: Place) -> None:
        (place.root / "run/systemd/system").mkdir(parents=True)
        runner = place.root / "usr/bin/systemd-run"
        runner.write_text(
            f'#!/bin/sh\necho "$@" > {place.folder}/said\n'
            'while [ "${1#--}" != "$1" ]; do\n'
            'case "$1" in --setenv=*) export "${1#--setenv=}";; esac; shift; done\nexec "$@"\n'
        )
        runner.chmod(0o755)
        Mps(place, GPU).start(None, multi_user=False)
        said = (place.folder / "said").read_text()
        assert f"--unit=gpupool-mps-{GPU}" in said
        assert f"--setenv=CUDA_VISIBLE_DEVICES={GPU}" in said

    @MANY
    def test_only_its_account_reaches_it(self, place: Place) -> None:
        Mps(place, GPU).start(ALICE, multi_user=False)
        found = folder(place).stat()
        # Its owner could put a link in the place of a folder, and root would follow it.
        assert found.st_uid == os.getuid()
        assert not stat.S_IMODE(found.st_mode) & stat.S_IRWXO


class TestLimits:
    def test_they_are_set_for_servers_to_come_and_read_back(self, daemon: Mps) -> None:
        assert daemon.limit(20_480, 30, allowed)
        assert daemon.limits() == (20_480, 30)

    def test_setting_the_same_again_changes_nothing(self, daemon: Mps) -> None:
        daemon.limit(20_000, 30, allowed)
        assert not daemon.limit(20_000, 30, allowed)

    def test_a_server_that_runs_keeps_to_them_from_its_next_client_on(
        self, place: Place, daemon: Mps
    ) -> None:
        daemon.limit(8_192, 50, allowed)
        with Program(settings(place)) as early:
            assert early.connected()["memory"] == 8_192
            assert daemon.limit(4_096, 25, allowed)
            with Program(settings(place)) as late:
                assert late.connected() == {"memory": 4_096, "percent": 25}

    def test_a_client_that_sets_nothing_is_limited_all_the_same(self, place: Place, daemon: Mps) -> None:
        daemon.limit(1_000, 40, allowed)
        with Program(settings(place)) as program:
            program.connected()
            assert program.allocates(1_000)
            assert not program.allocates(1)

    def test_a_client_can_only_tighten_them(self, place: Place, daemon: Mps) -> None:
        daemon.limit(1_000, 40, allowed)
        looser = settings(
            place, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9G", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90"
        )
        tighter = settings(place, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=500M")
        with Program(looser) as one, Program(tighter) as other:
            assert one.connected() == {"memory": 1_000, "percent": 40}
            assert other.connected()["memory"] == 500

    def test_two_programs_get_the_limit_twice(self, place: Place, daemon: Mps) -> None:
        """Why the agent sums the memory of a share's processes."""
        daemon.limit(1_000, 100, allowed)
        with Program(settings(place)) as one, Program(settings(place)) as other:
            for program in (one, other):
                program.connected()
                assert program.allocates(1_000)
            assert set(daemon.clients()) == {one.pid, other.pid}

    def test_they_are_left_alone_when_nothing_may_be_changed(self, daemon: Mps) -> None:
        def frozen() -> None:
            raise DriverRefusal("frozen")

        daemon.limit(1_000, 40, allowed)
        assert not daemon.limit(1_000, 40, frozen)
        with pytest.raises(DriverRefusal, match="frozen"):
            daemon.limit(2_000, 40, frozen)
        assert daemon.limits() == (1_000, 40)

    def test_a_daemon_that_does_not_take_them_is_refused(self, place: Place, daemon: Mps) -> None:
        (place.root / "usr/bin/takes-no-limits").touch()
        with pytest.raises(DriverRefusal, match="does not take its limits"):
            daemon.limit(1_000, 40, allowed)


@MANY
class TestAccounts:
    def test_a_second_account_waits_until_the_first_has_gone(self, place: Place, daemon: Mps) -> None:
        with Program(settings(place), ALICE) as first:
            first.connected()
            (server,) = daemon.servers()
            assert processes.owner(server)[0] == ALICE
            with Program(settings(place), BOB) as second:
                assert second.pid not in daemon.clients()
                first.__exit__()
                second.connected()
                (server,) = daemon.servers()
                assert processes.owner(server)[0] == BOB

    def test_a_server_for_many_accounts_serves_both_at_once(self, place: Place) -> None:
        daemon = Mps(place, GPU)
        daemon.start(None, multi_user=True)
        with Program(settings(place), ALICE) as one, Program(settings(place), BOB) as other:
            one.connected()
            other.connected()
            assert len(daemon.servers()) == 1
            assert set(daemon.clients()) == {one.pid, other.pid}


class TestOrphans:
    def test_a_server_whose_daemon_is_dead_is_ended(self, place: Place, daemon: Mps) -> None:
        with Program(settings(place)) as program:
            program.connected()
            (server,) = daemon.servers()
        mps_stand_in.kill_daemon(folder(place) / "pipe")
        assert processes.name(server) == SERVER
        handle = os.pidfd_open(server)
        daemon.end_orphans([server, os.getpid()])
        assert mps_stand_in.ended(handle)

    def test_the_server_of_another_daemon_is_left_alone(self, place: Place, daemon: Mps) -> None:
        with Program(settings(place)) as program:
            program.connected()
            (server,) = daemon.servers()
            Mps(place, GPU.replace("1", "2")).end_orphans([server])
            assert processes.started(server) is not None
