"""Who the node is: the stored secrets, the ids, and the simulator that must be asked for twice."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from agents import config, simulator
from agents.config import Config
from agents.place import Fault, Place, is_running, only_one, write_whole
from agents.simulator_state import create_state

JOINED = Config(
    portal="https://portal.example", node="node-1", token="gpn_secret", broker_url="redis://n:pw@r/0"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path / "state")
    simulator.uninstall()


class TestStore:
    def test_what_is_stored_is_loaded(self, place: Place) -> None:
        config.store(place, JOINED)
        assert config.load(place) == JOINED

    def test_the_file_and_its_folder_are_for_the_owner_only(self, place: Place) -> None:
        config.store(place, JOINED)
        assert stat.S_IMODE(os.stat(place.agent).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(place.folder).st_mode) == 0o700

    def test_a_node_that_has_not_joined_is_told_what_to_do(self, place: Place) -> None:
        with pytest.raises(Fault, match="agents join"):
            config.load(place)

    def test_a_file_that_is_no_configuration_is_named(self, place: Place) -> None:
        place.make()
        place.agent.write_text('{"portal": 3}')
        with pytest.raises(Fault, match=r"agent\.json cannot be read"):
            config.load(place)

    def test_no_secret_is_shown(self) -> None:
        assert "secret" not in repr(JOINED)
        assert "pw" not in repr(JOINED)


class TestSettings:
    def test_an_operator_changes_them_by_name(self) -> None:
        changed = config.change(
            JOINED, ["exporter_port=9401", "pause_units=nvidia-dcgm, dcgm-exporter", "ca_file=/etc/ca.pem"]
        )
        assert changed.exporter_port == changed.exports_on == 9401
        assert changed.pause_units == ("nvidia-dcgm", "dcgm-exporter")
        assert changed.ca_file == "/etc/ca.pem"
        assert changed.token == JOINED.token

    def test_an_empty_value_is_the_default(self) -> None:
        changed = config.change(JOINED, ["exporter_port=0", "nvidia_smi=/opt/nvidia-smi"])
        assert config.change(changed, ["exporter_port=", "nvidia_smi="]) == JOINED

    @pytest.mark.parametrize(
        ("word", "says"),
        [
            ("exporter_port", "no NAME=VALUE; the names are pause_units"),
            ("token=x", "no NAME=VALUE"),
            ("node=other", "no NAME=VALUE"),
            ("exporter_port=many", "makes no sense"),
            ("exporter_port=70000", "makes no sense"),
            ("pause_units=a;b", "'a;b' is no name of a systemd unit"),
            ("pause_units=dcgm-exporter --now", "'--now' is no name"),
            ("pause_units=/etc/a.service", "is no name of a systemd unit"),
            ("pause_units=a b*", "'b[*]' is no name"),
        ],
    )
    def test_what_is_no_setting_is_refused(self, word: str, says: str) -> None:
        with pytest.raises(Fault, match=says):
            config.change(JOINED, [word])

    def test_units_are_named_as_systemd_names_them(self) -> None:
        names = ("nvidia-dcgm.service", "a@1.service", "dev-disk\\\\x2d1.swap", "b_c:d")
        assert config.change(JOINED, ["pause_units=" + ",".join(names)]).pause_units == names

    def test_they_are_shown_without_a_secret(self) -> None:
        shown = config.as_text(config.change(JOINED, ["pause_units=a b"]))
        assert "pause_units=a b" in shown.splitlines()
        assert "exporter_port=9400" in shown.splitlines()
        assert "secret" not in shown
        assert "pw" not in shown

    def test_simulated_nodes_serve_no_metrics_and_ask_nobody_unless_told_to(self) -> None:
        simulated = Config(portal="", node="n", token="", simulated="1xH100-80GB")
        assert (simulated.exports_on, simulated.asks_dcgm) == (0, None)
        assert JOINED.asks_dcgm == "http://127.0.0.1:9400/metrics"
        told = config.change(simulated, ["exporter_port=9500", "dcgm_url=http://127.0.0.1:9/metrics"])
        assert (told.exports_on, told.asks_dcgm) == (9500, "http://127.0.0.1:9/metrics")

    def test_a_real_nodes_place_is_the_machine_itself(self, place: Place) -> None:
        real = config.settle(place, JOINED)
        assert (real.root, real.run, real.hooks) == (
            Path("/"),
            Path("/run/gpupool"),
            Path("/etc/gpupool"),
        )
        moved = config.settle(
            place, config.change(JOINED, ["run_folder=/srv/run", "hooks_folder=/srv/hooks"])
        )
        assert (moved.run, moved.hooks) == (Path("/srv/run"), Path("/srv/hooks"))

    def test_a_simulated_machines_place_is_its_folder(self, place: Place) -> None:
        simulated = config.settle(place, Config(portal="", node="n", token="", simulated="1xH100-80GB"))
        assert simulated.root == place.folder / "root"
        assert simulated.run == place.folder / "root/run/gpupool"


class TestSimulator:
    def test_it_is_installed_when_the_node_joined_as_a_simulated_one(self, place: Place) -> None:
        create_state(place.folder, "1xH100-80GB", seed="node-1")
        config.use_simulator(place, Config(portal="", node="n", token="", simulated="1xH100-80GB"))
        assert isinstance(pynvml.nvmlLib, simulator.Library)

    def test_a_state_that_lies_there_does_not_install_it(self, place: Place) -> None:
        create_state(place.folder, "1xH100-80GB", seed="node-1")
        config.use_simulator(place, JOINED)
        assert not isinstance(pynvml.nvmlLib, simulator.Library)

    def test_a_simulated_node_without_its_machine_does_not_start(self, place: Place) -> None:
        with pytest.raises(Fault, match=r"driver\.json is missing"):
            config.use_simulator(place, Config(portal="", node="n", token="", simulated="1xH100-80GB"))


class TestIds:
    def test_a_simulated_machine_has_its_own(self, place: Place) -> None:
        create_state(place.folder, "1xH100-80GB", seed="node-1")
        assert uuid.UUID(config.machine_id(place, simulated=True))
        assert config.boot_id(place, simulated=True) != config.BOOT_ID.read_text().strip()

    def test_a_real_machine_is_asked(
        self, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(config, "MACHINE_ID", tmp_path / "machine-id")
        (tmp_path / "machine-id").write_text("0123\n")
        assert config.machine_id(place, simulated=False) == "0123"
        assert config.boot_id(place, simulated=False) == config.BOOT_ID.read_text().strip()

    def test_a_machine_without_an_id_gets_one_that_stays(
        self, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(config, "MACHINE_ID", tmp_path / "none")
        place.make()
        made = config.machine_id(place, simulated=False)
        assert made
        assert config.machine_id(place, simulated=False) == made


class TestEnvironment:
    def test_settings_of_other_programs_are_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        foreign = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "DJANGO_SETTINGS_MODULE", "KOMBU_LOG_DEBUG")
        for name in foreign:
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("SSL_CERT_FILE", "/etc/own-ca.pem")
        config.forget_foreign_settings()
        assert not set(foreign) & set(os.environ)
        assert os.environ["SSL_CERT_FILE"] == "/etc/own-ca.pem"


class TestPlace:
    def test_only_one_agent_runs_on_a_folder(self, place: Place) -> None:
        assert not is_running(place)
        with only_one(place):
            assert is_running(place)
            with pytest.raises(Fault, match="Another agent"), only_one(place):
                pass
        assert not is_running(place)

    def test_a_write_that_fails_leaves_the_old_file(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.make()
        write_whole(place.record, b"old", durable=True)

        def broken(handle: int) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="gone"):
            write_whole(place.record, b"new", durable=True)
        assert place.record.read_bytes() == b"old"

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Fault, match="cannot be made"):
            Place(tmp_path / "file" / "state").make()
