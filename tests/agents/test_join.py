"""Joining: what is written, what is kept of an earlier joining, and what a person is told to do next."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import config, join
from agents.place import DEFAULT, Fault, Place, only_one
from tests.agents.certificates import authority
from tests.agents.stand_in import TOKEN, StandIn


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as one:
        yield one


def wish(stand_in: StandIn, **values: object) -> join.Wish:
    fields: dict[str, object] = {"portal": stand_in.url, "code": "right", "node": "node-1"}
    return join.Wish(**fields | values)  # type: ignore[arg-type]


def test_the_configuration_is_for_this_account_alone(stand_in: StandIn, tmp_path: Path) -> None:
    place = Place(tmp_path / "new" / "folder")
    join.join(place, wish(stand_in), "1")
    assert stat.S_IMODE(os.stat(place.agent).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(place.folder).st_mode) == 0o700


def test_the_sites_own_authority_is_kept_by_its_full_path(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority(tmp_path / "tls")
    monkeypatch.chdir(tmp_path / "tls")
    joined = join.join(Place(tmp_path / "node"), wish(stand_in, ca_file="ca.pem"), "1")
    assert joined.ca_file == str(tmp_path / "tls" / "ca.pem")


def test_an_authority_that_is_none_is_refused_before_the_code_is_used(
    stand_in: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(Fault, match="no file of certificates"):
        join.join(Place(tmp_path), wish(stand_in, ca_file=str(tmp_path / "none.pem")), "1")
    assert not stand_in.asks


def test_joining_anew_keeps_what_the_operator_has_set(stand_in: StandIn, tmp_path: Path) -> None:
    place = Place(tmp_path)
    join.join(place, wish(stand_in), "1")
    config.store(place, config.change(config.load(place), ["pause_units=nvidia-dcgm", "exporter_port=9500"]))
    joined = join.join(place, wish(stand_in, node="node-2"), "1")
    assert (joined.node, joined.pause_units, joined.exporter_port) == ("node-2", ("nvidia-dcgm",), 9500)
    assert config.load(place) == joined


def test_joining_over_a_file_that_cannot_be_read_begins_anew(stand_in: StandIn, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.agent.write_text("{")
    assert join.join(place, wish(stand_in), "1").exporter_port is None


class TestNextSteps:
    @pytest.fixture
    def joined(self, stand_in: StandIn, tmp_path: Path) -> config.Config:
        return join.join(Place(tmp_path / "node"), wish(stand_in), "1")

    def test_a_server_is_looked_at_first_and_then_started_by_systemd(self, joined: config.Config) -> None:
        said = join.next_steps(Place(DEFAULT), joined)
        assert "agents doctor\n" in said
        assert "systemctl enable --now gpupool-agent" in said
        assert "only looks on" in said

    def test_a_folder_of_its_own_is_named_in_what_to_type(
        self, joined: config.Config, tmp_path: Path
    ) -> None:
        said = join.next_steps(Place(tmp_path / "my node"), joined)
        assert f"agents run --state '{tmp_path}/my node'" in said
        assert "systemctl" not in said

    def test_an_agent_that_runs_with_the_earlier_token_is_to_be_restarted(
        self, joined: config.Config, tmp_path: Path
    ) -> None:
        place = Place(tmp_path / "node")
        with only_one(place):
            assert "restart it" in join.next_steps(place, joined)

    def test_no_secret_is_shown(self, joined: config.Config) -> None:
        assert TOKEN not in join.next_steps(Place(DEFAULT), joined)
