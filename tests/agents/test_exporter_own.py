"""gpupool's own series: what they say, and that promtool has nothing against them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from prometheus_client import Metric

from agents import exporter_own
from agents.exporter import Latest
from agents.exporter_text import text
from agents.gpu import Inventory
from tests.agents.metrics import LOST, NODE, SHARED, SLICED, WHOLE, gpu, parse, value

MIB = 1024 * 1024
AGENT = exporter_own.Node("node-1", "1.2", True, 3)


def words(latest: Latest = NODE, node: exporter_own.Node = AGENT) -> str:
    return text(
        exporter_own.families(
            node, latest.inventory, latest.readings, latest.record, latest.holders(), latest.stays
        )
    )


def families(latest: Latest = NODE) -> dict[str, Metric]:
    return parse(words(latest))


def promtool(metrics: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is missing: install Debian's package prometheus")
    call = [program, "check", "metrics"]
    return subprocess.run(call, input=metrics, capture_output=True, text=True, check=False)


def test_promtool_finds_nothing_to_say() -> None:
    done = promtool(words())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_would_find_a_counter_with_an_odd_name() -> None:
    odd = "# HELP gpupool_used_mib Memory.\n# TYPE gpupool_used_mib counter\ngpupool_used_mib 1\n"
    assert promtool(odd).returncode != 0


def test_every_name_that_can_be_served_is_seen_by_promtool() -> None:
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families().values()}
    assert names == {*exporter_own._GAUGES, *exporter_own._COUNTERS}


def test_all_names_are_ours() -> None:
    assert all(name.startswith("gpupool_") for name in families())


def test_the_node_and_its_reports_are_told() -> None:
    found = families()
    assert value(found["gpupool_agent_info"], node="node-1", version="1.2", driver="595.71.05") == 1
    assert value(found["gpupool_portal_up"]) == 1
    assert value(found["gpupool_reports_dropped"]) == 3


def test_before_the_first_sample_only_the_agent_is_told() -> None:
    nothing = replace(NODE, inventory=Inventory(None, ()), readings={}, stays=())
    said = words(nothing, exporter_own.Node("node-1", "1.2", None, None))
    assert set(parse(said)) == {"gpupool_agent_info"}


def test_the_state_of_each_gpu_is_told_also_of_a_lost_one() -> None:
    found = families()
    assert {one.labels["UUID"]: one.value for one in found["gpupool_gpu_lost"].samples} == {
        WHOLE: 0,
        SLICED: 0,
        SHARED: 0,
        LOST: 1,
    }
    assert value(found["gpupool_gpu_info"], UUID=SLICED, mig="true", gpu="1") == 1
    assert value(found["gpupool_gpu_managed"], UUID=SHARED) == 0
    assert value(found["gpupool_gpu_generation"], UUID=WHOLE) == 7


def test_who_holds_what_can_be_joined_by_gpu_and_instance() -> None:
    found = families()["gpupool_held"]
    assert value(found, UUID=WHOLE, kind="whole", allocation="a", reservation="res-a", team="vision") == 1
    assert value(found, UUID=SLICED, kind="mig", GPU_I_ID="7", reservation="res-m") == 1
    assert {one.labels["allocation"] for one in found.samples if one.labels["kind"] == "share"} == {
        "s1",
        "s2",
    }
    assert not [one for one in found.samples if one.labels["UUID"] == LOST]


def test_the_memory_of_a_share_is_the_sum_over_its_holders_processes() -> None:
    found = families()
    used = found["gpupool_share_memory_used_bytes"]
    assert value(used, allocation="s1") == 750 * MIB
    assert [one.labels["allocation"] for one in used.samples] == ["s1"]  # one of s2's is not known
    assert value(found["gpupool_share_memory_limit_bytes"], allocation="s2") == 2048 * MIB
    assert value(found["gpupool_share_compute_guaranteed_ratio"], allocation="s1") == 0.25
    assert value(found["gpupool_share_compute_limit_ratio"], allocation="s1") == 0.5


def test_processes_are_counted_by_whose_they_are() -> None:
    found = families()["gpupool_processes"]
    assert value(found, UUID=SHARED, whose="holder") == 3
    assert value(found, UUID=SHARED, whose="system") == 1
    assert value(found, UUID=SHARED, whose="unattributed") == 1


def test_processes_that_cannot_be_read_are_not_none() -> None:
    blind = replace(NODE, inventory=Inventory(None, (gpu(WHOLE, 0, processes=None),)))
    assert "gpupool_processes" not in families(blind)


def test_activity_says_where_it_was_measured() -> None:
    found = families()["gpupool_activity_ratio"]
    assert value(found, UUID=WHOLE, source="gpm") == 0.365
    assert value(found, UUID=SLICED, GPU_I_ID="7", source="gpm") == 0.8
    assert len([one for one in found.samples if one.labels["UUID"] == SLICED]) == 1


def test_units_are_base_units() -> None:
    found = families()
    assert value(found["gpupool_energy_joules"], UUID=WHOLE) == 123456.789
    assert value(found["gpupool_memory_used_bytes"], UUID=WHOLE) == 1024 * MIB
    assert value(found["gpupool_memory_free_bytes"], UUID=SLICED, GPU_I_ID="9") == (9728 - 100) * MIB
    assert value(found["gpupool_reservation_end_timestamp_seconds"], reservation="res-a") == 1767232800


def test_the_health_of_a_card_is_told() -> None:
    found = families()
    assert value(found["gpupool_ecc_errors"], UUID=WHOLE, type="corrected") == 4
    assert value(found["gpupool_remapped_rows"], UUID=WHOLE, type="correctable") == 1
    assert value(found["gpupool_remap_pending"], UUID=WHOLE) == 0
    assert value(found["gpupool_clock_held_down"], UUID=WHOLE, reason="sw_power_cap") == 1
