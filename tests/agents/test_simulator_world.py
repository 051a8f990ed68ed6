"""What befalls a simulated machine: resets, processes of others, wear."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import simulator_processes, simulator_state, simulator_world
from agents.driver import Driver
from agents.simulate import simulate_main
from agents.simulator_state import Store

Open = Callable[..., tuple[Driver, Path]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A machine that nobody has open."""
    folder = tmp_path / "alone"
    simulator_state.create_state(folder, "2xA100-40GB+1xH100-80GB", seed="a", mig=(0, 2))
    yield folder
    simulator_world.stop_processes(folder)


def uuid(folder: Path, index: int) -> str:
    return Store(folder).read().gpus[index].uuid


class TestReset:
    def test_a_wished_mode_comes_true_and_a_mode_in_force_stays(self, folder: Path) -> None:
        with Store(folder).edit() as machine:
            machine.gpus[1].pending = True
        for index in range(3):
            simulator_world.reset(folder, uuid(folder, index))
        assert [gpu.mig for gpu in Store(folder).read().gpus] == [True, True, True]

    def test_a_process_stands_in_the_way_until_it_is_gone(self, folder: Path) -> None:
        pid = simulator_world.process(folder, 1)
        with pytest.raises(ValueError, match=f"is in use by {pid}"):
            simulator_world.reset(folder, uuid(folder, 1))
        simulator_world.stop_processes(folder)
        simulator_world.reset(folder, uuid(folder, 1))

    def test_a_client_that_died_stands_in_nobody_s_way(self, folder: Path) -> None:
        with Store(folder).edit() as machine:
            machine.clients["1"] = "never"
        simulator_world.reset(folder, uuid(folder, 0))

    @pytest.mark.parametrize("what", ["lost", "passthrough", "permission"])
    def test_what_cannot_be_reset_is_refused(self, folder: Path, what: str) -> None:
        with Store(folder).edit() as machine:
            if what == "permission":
                machine.permission = False
            else:
                setattr(machine.gpus[0], what, True)
        with pytest.raises(ValueError, match="cannot be reset"):
            simulator_world.reset(folder, uuid(folder, 0))

    def test_the_command_says_so(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--state", str(folder), "gpu-reset", "--uuid"]
        assert simulate_main([*words, uuid(folder, 2)]) == 0
        assert Store(folder).read().gpus[2].epoch == 1
        assert simulate_main([*words, "GPU-none"]) == 2
        assert "there is no GPU GPU-none" in capsys.readouterr().err


class TestProcesses:
    def test_one_that_was_started_elsewhere_is_reported_and_never_ended(self, driver: Open) -> None:
        one, own = driver("1xH100-80GB")
        other = subprocess.Popen(["sleep", "600"])
        try:
            simulator_world.attach(own, 0, other.pid, memory_mib=700)
            (gpu,) = one.look().gpus
            assert [(each.pid, each.memory_mib) for each in gpu.processes or ()] == [(other.pid, 700)]
            assert simulator_world.stop_processes(own) == 0
            assert other.poll() is None
            assert one.look().gpus[0].processes == ()
        finally:
            other.kill()
            other.wait()
        with pytest.raises(LookupError, match="there is no process"):
            simulator_world.attach(own, 0, other.pid)

    def test_it_gets_its_variables_and_its_program(self, folder: Path) -> None:
        pid = simulator_world.process(
            folder, 1, argv=("tail", "-f", "/dev/null"), env={"GPUPOOL_RESERVATION": "r1"}
        )
        assert b"GPUPOOL_RESERVATION=r1" in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
        assert (Path("/proc") / str(pid) / "cmdline").read_bytes().startswith(b"tail\0")

    def test_the_command_takes_variables(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--state", str(folder), "process", "--gpu", "1", "--env", "A=b=c", "--env", "D="]
        assert simulate_main(words) == 0
        environ = (Path("/proc") / capsys.readouterr().out.strip() / "environ").read_bytes().split(b"\0")
        assert {b"A=b=c", b"D="} <= set(environ)
        assert simulate_main([*words, "--env", "nonsense"]) == 2
        assert "'nonsense' is not NAME=VALUE" in capsys.readouterr().err

    def test_what_does_not_start_leaves_nothing(self, folder: Path) -> None:
        with pytest.raises(FileNotFoundError):
            simulator_world.process(folder, 1, argv=("no-such-program",))
        assert Store(folder).read().children == []


class TestWear:
    def test_the_commands_do_it(self, folder: Path) -> None:
        for words in (
            ["ecc", "--gpu", "1", "--corrected", "2", "--uncorrected", "1"],
            ["remap", "--gpu", "1", "--correctable"],
            ["remap", "--gpu", "1", "--failed"],
            ["throttle", "--gpu", "1", "hw_thermal", "sw_power_cap"],
            ["links-down", "--gpu", "1", "3"],
        ):
            assert simulate_main(["--state", str(folder), *words]) == 0
        gpu = Store(folder).read().gpus[1]
        assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.links_down) == (2, 1, 3)
        assert (gpu.remapped_correctable, gpu.remap_pending, gpu.remap_failed) == (1, True, True)
        assert gpu.throttle == 0x44

    def test_a_reboot_completes_what_was_pending_and_forgets_counts(self, folder: Path) -> None:
        simulator_world.ecc(folder, 1, corrected=2)
        simulator_world.remap(folder, 1)
        simulator_world.throttle(folder, 1, "idle")
        simulator_world.links_down(folder, 1, 1)
        simulator_world.reboot(folder)
        gpu = Store(folder).read().gpus[1]
        assert (gpu.ecc_corrected, gpu.remap_pending, gpu.remapped_uncorrectable) == (0, False, 1)
        assert (gpu.throttle, gpu.links_down) == (None, 0)

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["throttle", "--gpu", "1", "lazy"], "'lazy' is none of: idle,"),
            (["ecc", "--gpu", "1", "--corrected", "-1"], "errors never become fewer"),
            (["links-down", "--gpu", "1", "-1"], "-1 is no count"),
            (["remap", "--gpu", "9"], "there is no GPU 9"),
        ],
    )
    def test_nonsense_is_refused_and_changes_nothing(
        self, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
    ) -> None:
        before = (folder / "driver.json").read_bytes()
        assert simulate_main(["--state", str(folder), *words]) == 2
        assert says in capsys.readouterr().err
        assert (folder / "driver.json").read_bytes() == before


def test_whoever_has_the_driver_open_is_on_record_until_he_closes_it(driver: Open) -> None:
    one, folder = driver("1xH100-80GB")
    (pid,) = Store(folder).read().clients
    assert simulator_processes.lives(int(pid), Store(folder).read().clients[pid])
    one.close()
    assert Store(folder).read().clients == {}
