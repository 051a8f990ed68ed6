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
