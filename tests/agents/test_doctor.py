"""What the doctor says of machines of every kind, and that it changes nothing on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pynvml
import pytest

from agents import config, doctor_machine
from agents import simulator_world as world
from agents.__main__ import main
from agents.doctor import NO_GPU, doctor
from agents.driver import Driver
from agents.place import Place, only_one
from agents.watch import Last
from pool.core.wire import Report
from tests.agents.node_broker import NODE, SECRET, Broker, running
from tests.agents.stand_in import ROOT, TOKEN

Machine = Callable[..., "Node"]


class Node:
    """A simulated machine that has joined, and the driver that the doctor will ask."""

    def __init__(self, folder: Path, **values: object) -> None:
        self.place = Place(folder)
        self.values = {"portal": "http://127.0.0.1:1", "node": NODE, "token": TOKEN, "simulated": "x"}
        self.join(**values)

    def join(self, **values: object) -> None:
        self.values |= values  # type: ignore[arg-type]
        config.store(self.place, msgspec.convert(self.values, config.Config))

    def says(self) -> str:
        return doctor(self.place)[0]


@pytest.fixture
def machine(simulate: Callable[..., Path]) -> Machine:
    """`machine("2xH100-80GB", mig=(0,))` is a node of that kind."""
    return lambda spec, **options: Node(simulate(spec, **options))


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr("agents.nvml.start", fail)


def put(path: Path, content: str = "", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def files(place: Place) -> dict[str, bytes]:
    """The agent's own; what a simulated machine is furnished with lies in its root."""
    found = (one for one in place.folder.rglob("*") if one.is_file() and place.root not in one.parents)
    return {str(one): one.read_bytes() for one in found}


class TestWithoutGpu:
    @pytest.mark.usefixtures("no_driver")
    def test_a_machine_without_a_gpu_says_so_in_words(self, tmp_path: Path) -> None:
        said, outcome = doctor(Place(tmp_path))
        assert outcome == NO_GPU == 3
        assert "There is no GPU here" in said
        assert "libnvidia-ml.so.1 is not installed" in said
        assert "install the agent where GPUs are" in said

    @pytest.mark.usefixtures("no_driver")
    def test_the_command_ends_with_the_same_code(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", "--state", str(tmp_path)]) == NO_GPU
        assert "has not joined" in capsys.readouterr().out

    @pytest.mark.usefixtures("no_driver")
    def test_a_card_without_a_driver_is_a_fault_and_not_no_gpu(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        for bus, vendor, kind in (
            ("0000:1b:00.0", "0x10de", "0x030200"),
            ("0000:1c:00.0", "0x10de", "0x040300"),  # its sound
            ("0000:00:02.0", "0x8086", "0x030000"),
        ):
            put(place.root / "sys/bus/pci/devices" / bus / "vendor", f"{vendor}\n")
            put(place.root / "sys/bus/pci/devices" / bus / "class", f"{kind}\n")
        said, outcome = doctor(place)
        assert outcome == 1
        assert "cards on the PCI bus: 1" in said
        assert "nvidia-smi must work" in said

    def test_as_a_process_on_this_machine_it_needs_nothing_else(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "agents", "doctor", "--state", str(tmp_path / "none")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1, NO_GPU)
        assert done.stderr == ""
        assert not (tmp_path / "none").exists()


class TestGpus:
    def test_each_gpu_is_told_with_its_mode_and_what_measures_it(self, machine: Machine) -> None:
        said = machine("1xH100-80GB+1xA100-40GB+1xL40S-48GB", mig=(1,)).says()
        assert "GPUs: 3" in said
        assert "GPU 0 NVIDIA H100 80GB HBM3, MIG off; activity is measured by gpm" in said
        assert "GPU 1 NVIDIA A100-SXM4-40GB, MIG on, 0 slices; activity is not measured" in said
        assert "GPU 2 NVIDIA L40S, cannot do MIG" in said

    def test_a_lost_gpu_is_a_fault_and_hides_no_other(self, machine: Machine) -> None:
        node = machine("2xH100-80GB")
        world.lose(node.place.folder, 1)
        said, outcome = doctor(node.place)
        assert outcome == 1
        assert "GPU 1 answers nothing, not even its name: it is lost." in said
        assert "GPU 0 NVIDIA H100" in said

    def test_slices_that_are_not_ours_are_told_and_what_becomes_of_them(self, machine: Machine) -> None:
        node = machine("1xH100-80GB", mig=(0,))
        with Driver() as driver:
            driver.create(driver.look().gpus[0].uuid, 19, 2, 1)
        said = node.says()
        assert "1 slices that this agent did not make: 1g.10gb @2" in said
        assert "never touched" in said

    def test_slices_of_a_card_that_cannot_measure_them_get_a_hint(self, machine: Machine) -> None:
        node = machine("1xA100-40GB", mig=(0,))
        with Driver() as driver:
            driver.create(driver.look().gpus[0].uuid, 19, 0, 1)
        assert "set dcgm_url" in node.says()

    def test_who_uses_a_gpu_is_named(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        pid = world.process(node.place.folder, 0)
        assert f"(pid {pid}, " in node.says()

    def test_a_mode_that_waits_for_a_reset_is_told(self, machine: Machine) -> None:
        node = machine("1xA100-40GB")
        world.process(node.place.folder, 0)
        with Driver() as driver:
            uuid = driver.look().gpus[0].uuid
            with pytest.raises(Exception, match="pending"):
                driver.set_mig_mode(uuid, True)
        assert "waits for a reset" in node.says()


class TestMachine:
    def test_it_changes_nothing(self, machine: Machine) -> None:
        node = machine("1xH100-80GB", mig=(0,))
        before = files(node.place)
        node.says()
        assert files(node.place) == before

    def test_what_is_offered_and_what_is_not_is_told(self, machine: Machine) -> None:
        said = machine("1xH100-80GB").says()
        assert "Access by advice" in said
        assert "Not to be had here" in said

    def test_services_that_hold_gpus_open_are_proposed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doctor_machine, "_runs", lambda unit: unit != "dcgm-exporter")
        own = config.Config(portal="https://p", node="n", token="t", pause_units=("site-monitor",))
        said = [one.text + one.advice for one in doctor_machine._services(Place(tmp_path), own)]
        assert "nvidia-dcgm, nvidia-persistenced" in said[0]
        assert "pause_units=site-monitor,nvidia-dcgm,nvidia-persistenced" in said[0]

    def test_services_that_are_paused_already_are_not_proposed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(doctor_machine, "_runs", lambda unit: True)
        own = config.Config(portal="https://p", node="n", token="t", pause_units=doctor_machine.HOLD_GPUS)
        said = [one.text for one in doctor_machine._services(Place(tmp_path), own)]
        assert not [text for text in said if "hold GPUs open" in text]

    def test_a_machine_without_systemd_has_no_such_services(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor_machine, "SYSTEMCTL", ("no-such-program",))
        assert doctor_machine._runs("nvidia-dcgm") is False

    def test_hooks_that_will_not_run_are_told(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        put(node.place.hooks / "on-start.d" / "10-mount", mode=0o755)
        put(node.place.hooks / "on-end.d" / "10-tidy", mode=0o644)
        put(node.place.hooks / "on-notice.d" / "10-mail", mode=0o777)
        said, outcome = doctor(node.place)
        assert outcome == 1
        assert "10-tidy is not executable" in said
        assert "10-mail does not run" in said
        assert f"[ok] Hook {node.place.hooks / 'on-start.d/10-mount'}" in said

    def test_a_configuration_that_others_may_read_is_a_fault(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        node.place.agent.chmod(0o644)
        assert "chmod 600" in node.says()

    def test_frozen_and_running_are_told(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        assert "The agent is not running" in node.says()
        node.place.frozen.touch()
        with only_one(node.place):
            said = node.says()
        assert "Frozen here" in said
        assert "The agent is running" in said


class Door:
    """A portal that only says that it lives, by its own clock."""

    def __init__(self, ahead: timedelta = timedelta(), status: int = 200) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/livez" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def date_time_string(self, timestamp: float | None = None) -> str:
                return format_datetime(datetime.now(UTC) + ahead, usegmt=True)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running() as one:
        yield one


class TestPortal:
    def test_a_portal_that_answers_and_clocks_that_agree(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        with Door() as url:
            node.join(portal=url)
            said, outcome = doctor(node.place)
        assert outcome == 0, said
        assert f"{url} answers" in said
        assert "The clocks agree" in said
        assert "Nothing here is wrong" in said

    @pytest.mark.parametrize("minutes", [-3, 3])
    def test_a_clock_that_is_off_is_told_in_seconds(self, machine: Machine, minutes: int) -> None:
        node = machine("1xH100-80GB")
        with Door(timedelta(minutes=minutes)) as url:
            node.join(portal=url)
            said = node.says()
        assert any(f"clock is {-60 * minutes + off} s off" in said for off in (-2, -1, 0, 1, 2)), said

    def test_a_portal_that_does_not_answer_is_named(self, machine: Machine) -> None:
        assert "http://127.0.0.1:1 does not answer" in machine("1xH100-80GB").says()

    def test_something_else_at_its_address_is_told(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        with Door(status=404) as url:
            node.join(portal=url)
            assert "answers with 404" in node.says()

    def test_an_authority_that_is_gone_is_told(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        node.join(ca_file="/nowhere/ca.pem")
        assert "/nowhere/ca.pem is no file of certificates" in node.says()

    @pytest.mark.parametrize("way", ["tcp", "socket"])
    def test_a_broker_that_answers(self, machine: Machine, broker: Broker, way: str) -> None:
        node = machine("1xH100-80GB")
        node.join(broker_url=broker.urls()[way])
        assert "The broker answers" in node.says()

    def test_a_broker_that_refuses_is_told_without_the_secret(self, machine: Machine, broker: Broker) -> None:
        node = machine("1xH100-80GB")
        node.join(broker_url=broker.urls()["tcp"].replace("node-node-1", "nobody"))
        said = node.says()
        assert "The broker does not answer" in said
        assert SECRET not in said
        assert TOKEN not in said

    def test_the_last_report_is_told(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        report = Report(
            agent="1",
            node=NODE,
            machine_id="m",
            boot_id="b",
            seq=1,
            sampled_at=noon,
            dropped=2,
            exporter=9401,
        )
        put(node.place.last, msgspec.json.encode(Last(report=report, accepted_at=noon)).decode())
        assert "Last report taken: 2026-01-01T12:00:00+00:00; dropped so far: 2" in node.says()
        put(node.place.last, msgspec.json.encode(Last(report=report, fault="401")).decode())
        node.join(exporter_port=9400)
        with only_one(node.place):
            said = node.says()
        assert "The last report was not taken: 401" in said
        assert "Metrics are served on port 9401" in said

    def test_a_dcgm_exporter_beside_it_is_told_how_to_get_reservations(self, machine: Machine) -> None:
        node = machine("1xH100-80GB")
        node.join(exporter_port=9400)
        put(node.place.root / "proc/77/comm", "dcgm-exporter\n")
        assert f"DCGM_HPC_JOB_MAPPING_DIR={node.place.run / 'jobs'}" in node.says()


@pytest.mark.parametrize(
    ("uid", "says"),
    [(0, "This is root, as the agent has to be."), (1000, "This is not root; the agent has to be.")],
)
def test_an_account_is_told_what_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, says: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    cards = doctor_machine.Cards()
    assert [one.text for one in doctor_machine._rights(Place(tmp_path, real=True), cards)] == [says]
