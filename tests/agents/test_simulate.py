"""The command that drives a running simulated driver, and what it says to nonsense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents import simulator
from agents.driver import Driver
from agents.simulate import simulate_main
from agents.simulator_state import boot_id

Open = Callable[..., tuple[Driver, Path]]


def run(folder: Path, *words: str) -> int:
    return simulate_main(["--state", str(folder), *words])


def test_it_makes_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = "7e0c1b52-91aa-4c1e-8f5e-1f3f6d1d2a3b"
    words = [
        "create",
        "4xGB200-186GB",
        "--seed",
        "gb200-02",
        "--cluster",
        cluster,
        "--clique",
        "2",
        "--mig",
        "0,3",
    ]
    assert run(tmp_path, *words) == 0
    gpus = simulator.Session(tmp_path).read().gpus
    assert [gpu.mig for gpu in gpus] == [True, False, False, True]
    assert {(gpu.cluster, gpu.clique) for gpu in gpus} == {(cluster, 2)}


def test_it_drives_a_driver_that_runs(driver: Open, capsys: pytest.CaptureFixture[str]) -> None:
    one, folder = driver("4xH100-80GB", mig=(3,))
    uuid = one.look().gpus[3].uuid
    made = one.create(uuid, 19, 0, 1)
    assert run(folder, "process", "--gpu", "3", "--slice", "0", "--memory", "100") == 0
    pid = int(capsys.readouterr().out)
    assert [each.pid for each in (one.gpu(uuid).instances or ())[0].processes or ()] == [pid]
    assert run(folder, "busy", "--mig", str(made.mig_uuid), "0") == 0
    assert one.readings()[uuid].power_w == pytest.approx(70)
    assert run(folder, "stop-processes") == 0
    assert capsys.readouterr().out == "1\n"
    assert (one.gpu(uuid).instances or ())[0].processes == ()
    assert run(folder, "permission", "off") == 0
    assert simulator.Session(folder).read().permission is False
    assert run(folder, "lose", "--gpu", "1") == 0
    assert run(folder, "xid", "79", "--gpu", "2") == 0
    assert [gpu.lost for gpu in one.look().gpus] == [False, True, True, False]
    boot = boot_id(folder)
    assert run(folder, "reboot") == 0
    assert boot_id(folder) != boot
    assert [(gpu.lost, gpu.mig) for gpu in one.look().gpus] == [(False, False)] * 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lose", "--gpu", "4"], "there is no GPU 4, only 0 to 3"),
        (["lose", "--gpu", "-1"], "there is no GPU -1"),
        (["lose", "--gpu", "x"], "invalid int value: 'x'"),
        (["lose"], "--gpu"),
        (["xid", "0", "--gpu", "1"], "0 is no Xid"),
        (["xid", "31", "--gpu", "3", "--slice", "0"], "GPU 3 has no slices now"),
        (["process", "--gpu", "3"], "say which slice"),
        (["process", "--gpu", "0", "--slice", "1"], "MIG is off on GPU 0"),
        (["process", "--gpu", "0", "--memory", "99999999"], "99999999 MiB do not fit"),
        (["busy", "--mig", "MIG-none", "5"], "no MIG device or whole GPU MIG-none"),
        (["permission", "maybe"], "invalid choice: 'maybe'"),
        (["explode"], "invalid choice: 'explode'"),
        (["create", "1xGB200-186GB", "--seed", "a", "--cluster", "rack-7"], "'rack-7' is no UUID"),
        (["create", "8xH900", "--seed", "a"], "is not COUNTxMODEL"),
        (
            ["create", "8xH100-80GB", "--seed", "a", "--mig", "0,9"],
            "GPU 9 of 8xH100-80GB cannot be in MIG mode",
        ),
        (["create", "8xH100-80GB", "--seed", "a", "--mig", "all"], "'all' is no list of GPU indices"),
        ([], "required"),
    ],
)
def test_nonsense_is_refused_with_one_clear_line_and_changes_nothing(
    driver: Open, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    _, folder = driver("4xH100-80GB", mig=(3,))
    before = (folder / "driver.json").read_bytes()
    assert run(folder, *words) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert (folder / "driver.json").read_bytes() == before


def test_a_folder_without_a_machine_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["reboot"], ["stop-processes"], ["lose", "--gpu", "0"]):
        assert run(tmp_path / "nowhere", *words) == 2
        assert "there is no simulated driver in" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_its_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_main(["--help"]) == 0
    assert "stop-processes" in capsys.readouterr().out
