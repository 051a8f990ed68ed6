"""dcgm-exporter's series against what its documentation says of names, types, labels and units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client import Metric

from agents import exporter_dcgm
from agents.exporter import Latest
from agents.exporter_text import text
from agents.gpu import Inventory, Readings
from tests.agents.metrics import LOST, NODE, READ, SHARED, SLICED, WHOLE, gpu, parse, value

#: The default counters of dcgm-exporter (etc/default-counters.csv of 4.8): type, and this node's value.
#: None: it is not measured here, so there is no series.
DOCUMENTED: Mapping[str, tuple[str, float | None]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", 1755),  # MHz
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", 2619),  # MHz
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", 70),  # C
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", 61),  # C
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", 312.5),  # W
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", 123456789),  # mJ
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", 2),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", 37),  # %
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", 12),  # %
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", 3),  # %
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", 4),  # %
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", 0),  # the newest
    "DCGM_FI_DEV_FB_FREE": ("gauge", 79000),  # MiB
    "DCGM_FI_DEV_FB_USED": ("gauge", 1024),  # MiB
    "DCGM_FI_DEV_FB_RESERVED": ("gauge", 600),  # MiB
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("gauge", 880.5),  # MB/s
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("gauge", None),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", 0),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", 0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", 0.365),  # 0 to 1
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", 0.2025),  # 0 to 1
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", 0.115),  # 0 to 1
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", 1.5e9),  # bytes/s
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", 2.5e9),  # bytes/s
}
#: Labels of every series: dcgm-exporter's with its driver's version as a label; the host's name under
#: the older and the newer spelling.
LABELS = {
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "hostname",
    "DCGM_FI_DRIVER_VERSION",
}
OF_INSTANCES = {"GPU_I_PROFILE", "GPU_I_ID"}
OURS = {"reservation", "team"}


def words(latest: Latest = NODE) -> str:
    return text(
        exporter_dcgm.families(
            latest.inventory, latest.readings, latest.xids, latest.holders(), "dgx-01.example"
        )
    )


def families(latest: Latest = NODE) -> dict[str, Metric]:
    return parse(words(latest))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_default_counter_has_its_documented_type_and_unit(name: str) -> None:
    kind, worth = DOCUMENTED[name]
    found = families().get(name)
    if worth is None:
        assert found is None
        return
    assert found is not None
    assert found.type == kind
    assert f"\n{name}{{" in words()  # under this very name: a reading client adds `_total` to counters itself
    assert value(found, UUID=WHOLE) == worth


def test_no_series_is_there_that_a_dcgm_exporter_would_not_have() -> None:
    assert set(families()) <= set(DOCUMENTED)


def test_each_series_has_the_documented_labels_and_ours() -> None:
    for found in families().values():
        for one in found.samples:
            names = set(one.labels)
            assert names >= LABELS, one
            assert names <= LABELS | OF_INSTANCES | OURS, one
            assert names >= OF_INSTANCES or not OF_INSTANCES & names, one


def test_labels_are_spelt_as_dashboards_expect_them() -> None:
    labels = next(one.labels for one in families()["DCGM_FI_DEV_GPU_TEMP"].samples)
    assert labels == {
        "gpu": "0",
        "UUID": WHOLE,
        "pci_bus_id": "00000000:00:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "dgx-01.example",
        "hostname": "dgx-01.example",
        "DCGM_FI_DRIVER_VERSION": "595.71.05",
        "reservation": "res-a",
        "team": "vision",
    }


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("DCGM_FI_DEV_FB_USED", 4000),
        ("DCGM_FI_DEV_FB_FREE", 5728),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.8),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.4),
    ],
)
def test_a_gpu_in_slices_is_told_by_its_instances_alone(name: str, first: float) -> None:
    found = families()[name]
    mine = [one.labels for one in found.samples if one.labels["UUID"] == SLICED]
    assert all("GPU_I_ID" in labels for labels in mine)
    assert value(found, UUID=SLICED, GPU_I_ID="7", GPU_I_PROFILE="1g.10gb", reservation="res-m") == first


def test_what_the_driver_does_not_give_of_an_instance_is_missing_and_not_0() -> None:
    found = families()
    assert value(found["DCGM_FI_DEV_FB_USED"], UUID=SLICED, GPU_I_ID="9") == 100  # as the inventory saw it
    assert [
        one.labels["GPU_I_ID"]
        for one in found["DCGM_FI_PROF_GR_ENGINE_ACTIVE"].samples
        if one.labels["UUID"] == SLICED
    ] == ["7"]
    assert not [one for one in found["DCGM_FI_DEV_GPU_UTIL"].samples if one.labels["UUID"] == SLICED]
    assert not [
        one for one in found["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"].samples if one.labels["UUID"] == SLICED
    ]


def test_a_free_slice_names_nobody() -> None:
    labels = [one.labels for one in families()["DCGM_FI_DEV_FB_USED"].samples]
    free = next(one for one in labels if one.get("GPU_I_ID") == "9")
    assert not OURS & set(free)


def test_figures_of_a_shared_card_are_none_of_its_tenants() -> None:
    for found in families().values():
        assert not [one for one in found.samples if one.labels["UUID"] == SHARED and OURS & set(one.labels)]


def test_a_lost_gpu_tells_its_xid_and_nothing_else() -> None:
    found = families()
    assert value(found["DCGM_FI_DEV_XID_ERRORS"], UUID=LOST) == 79
    told = {name for name, one in found.items() if any(each.labels["UUID"] == LOST for each in one.samples)}
    assert told == {"DCGM_FI_DEV_XID_ERRORS"}


def test_a_gpu_whose_errors_cannot_be_watched_has_no_xid() -> None:
    found = families()["DCGM_FI_DEV_XID_ERRORS"]
    assert {one.labels["UUID"] for one in found.samples} == {WHOLE, LOST}


def test_a_gpu_in_mig_mode_without_slices_is_told_as_a_whole() -> None:
    bare = gpu(SLICED, 0, mig=True, instances=())
    found = families(replace(NODE, inventory=Inventory(None, (bare,)), readings={SLICED: READ}))
    assert value(found["DCGM_FI_DEV_FB_USED"], UUID=SLICED) == 1024
    assert "DCGM_FI_DRIVER_VERSION" not in found["DCGM_FI_DEV_FB_USED"].samples[0].labels


def test_an_old_driver_leaves_only_what_it_measures() -> None:
    old = Readings(memory_used_mib=10, temperature_c=40)
    one = replace(gpu(WHOLE, 0), health=type(gpu(WHOLE, 0).health)())
    found = families(replace(NODE, inventory=Inventory("450.1", (one,)), readings={WHOLE: old}, xids={}))
    assert set(found) == {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"}
