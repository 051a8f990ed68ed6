"""What the operators' pages say of series, settings and folders, against what is served and read."""

from __future__ import annotations

import re

import pytest

from agents import config, exporter_dcgm, exporter_own
from agents.place import Place
from tests.agents.stand_in import ROOT

METRICS = (ROOT / "docs" / "metrics.md").read_text()
AGENT = (ROOT / "docs" / "agent.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of all tables' rows."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def described(prefix: str) -> dict[str, str]:
    """Series of the tables, with their types."""
    return {name: cells[1] for cells in rows(METRICS) for name in re.findall(rf"`({prefix}\w+)`", cells[0])}


def test_every_series_of_a_dcgm_exporter_is_described_with_its_type() -> None:
    served = {one.name: one.kind for one in (*exporter_dcgm.COUNTERS, exporter_dcgm.XID)}
    assert described("DCGM_") == served


def test_every_series_of_ours_is_described_with_its_type() -> None:
    served = dict.fromkeys(exporter_own._GAUGES, "gauge") | dict.fromkeys(exporter_own._COUNTERS, "counter")
    assert described("gpupool_") == served


def test_every_setting_is_described_with_its_default() -> None:
    described_settings = {cells[0].strip("`"): cells[1] for cells in rows(AGENT)}
    assert set(described_settings) == set(config.SETTINGS)
    own = config.Config(portal="https://p", node="n", token="t")
    shown = dict(line.split("=", 1) for line in config.as_text(own).splitlines())
    for name in ("exporter_port", "dcgm_url", "nvidia_smi"):
        assert described_settings[name].strip("`") == shown[name]


@pytest.mark.parametrize(
    "path",
    [Place(real=True).agent, Place(real=True).run, Place(real=True).run / "jobs", Place(real=True).hooks],
)
def test_folders_are_named_as_they_are(path: object) -> None:
    assert str(path) in AGENT + METRICS


@pytest.mark.parametrize(
    "name", ["agent.lock", "systemd/gpupool-agent.service", "systemd/gpupool-agent.tmpfiles"]
)
def test_files_to_install_are_where_the_page_says(name: str) -> None:
    assert f"deploy/{name}" in AGENT
    assert (ROOT / "deploy" / name).exists()
