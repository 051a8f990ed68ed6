"""A node for the exporter's tests: one whole GPU, one in slices, one shared, one that is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agents.exporter import Latest
from agents.gpu import Gpu, Health, Instance, InstanceReadings, Inventory, Readings
from agents.record import GpuRecord, Made, Record
from pool.core.wire import Command, Held, Layout, Process, Remapped, Share, Stay

WHOLE, SLICED, SHARED, LOST = "GPU-whole", "GPU-sliced", "GPU-shared", "GPU-lost"
HEALTH = Health(
    throttle=("sw_power_cap",),
    ecc_corrected=4,
    ecc_uncorrected=0,
    remapped=Remapped(correctable=1, uncorrectable=0, pending=False, failure=False),
)
#: Everything that a GPU can tell, each value another one.
READ = Readings(
    utilization_pct=37,
    memory_used_mib=1024,
    power_w=312.5,
    temperature_c=61,
    memory_utilization_pct=12,
    memory_free_mib=79000,
    memory_reserved_mib=600,
    memory_temperature_c=70,
    encoder_pct=3,
    decoder_pct=4,
    energy_mj=123456789,
    pcie_replays=2,
    sm_clock_mhz=1755,
    memory_clock_mhz=2619,
    activity_pct=36.5,
    tensor_pct=20.25,
    memory_activity_pct=11.5,
    pcie_tx_bytes_s=1.5e9,
    pcie_rx_bytes_s=2.5e9,
    nvlink_mb_s=880.5,
    source="gpm",
)


def gpu(uuid: str, index: int, **values: object) -> Gpu:
    bus = f"00000000:{index:02X}:00.0"
    one = Gpu(uuid, index, "NVIDIA H100 80GB HBM3", bus, mig_capable=True, mig=False, health=HEALTH)
    return replace(one, **values)  # type: ignore[arg-type]


def instance(gi: int, start: int, **values: object) -> Instance:
    one = Instance(gi, 0, f"MIG-{gi}", 19, "1g.10gb", start, 1, 100, 9728, ())
    return replace(one, **values)  # type: ignore[arg-type]


def held(allocation: str, *, start: int | None = None, share: Share | None = None) -> Held:
    """A slice at `start`, or the whole GPU, or a share of it."""
    return Held(
        allocation=allocation,
        owner=allocation,
        profile=None if start is None else "1g.10gb",
        profile_id=None if start is None else 19,
        start=start or 0,
        size=8 if start is None else 1,
        share=share,
        reservation=f"res-{allocation}",
        team="vision",
    )


def record(uuid: str, *slots: Held, mig: bool = False) -> GpuRecord:
    layout = Layout(mig=mig, held=slots)
    command = Command(id="c", node="node-1", gpu=uuid, generation=7, layout=layout)
    made = tuple(
        Made(profile_id=19, start=one.start, size=1, allocation=one.allocation, owner=one.owner)
        for one in slots
        if one.profile_id is not None
    )
    return GpuRecord(wanted=command, applied=7, made=made)


HALF = Share(memory_mib=2048, compute_pct=25, limit_pct=50)
NODE = Latest(
    inventory=Inventory(
        "595.71.05",
        (
            gpu(WHOLE, 0, processes=(Process(pid=1, allocation="a"), Process(pid=2, system=True))),
            gpu(SLICED, 1, mig=True, instances=(instance(7, 0), instance(9, 2)), processes=()),
            gpu(
                SHARED,
                2,
                processes=(
                    Process(pid=3, memory_mib=500, allocation="s1"),
                    Process(pid=4, memory_mib=250, allocation="s1"),
                    Process(pid=5, memory_mib=None, allocation="s2"),
                    Process(pid=6, memory_mib=30, system=True),
                    Process(pid=7, memory_mib=10),
                ),
            ),
            gpu(LOST, 3, lost=True),
        ),
    ),
    readings={
        WHOLE: READ,
        SLICED: replace(
            READ,
            utilization_pct=None,
            instances={7: InstanceReadings(80.0, 40.0, "gpm", 4000, 5728), 9: InstanceReadings()},
        ),
        SHARED: READ,
    },
    record=Record(
        boot_id="b",
        manage=(WHOLE, SLICED),
        gpus={
            WHOLE: record(WHOLE, held("a")),
            SLICED: record(SLICED, held("m", start=0), mig=True),
            SHARED: record(SHARED, held("s1", share=HALF), held("s2", share=HALF)),
            LOST: record(LOST, held("x")),
        },
    ),
    stays=(
        Stay(
            allocation="a",
            reservation="res-a",
            gpu=WHOLE,
            team="vision",
            owner="lena",
            start=datetime(2026, 1, 1, tzinfo=UTC),
            end=datetime(2026, 1, 1, 2, tzinfo=UTC),
        ),
    ),
    xids={WHOLE: 0, LOST: 79},
    dropped=3,
    up=True,
    held={WHOLE: ("a",), SLICED: ("m",), SHARED: ("s1", "s2")},
)


def parse(words: str) -> dict[str, Metric]:
    """The families by name, as Prometheus' own client reads them; it takes `_total` from a counter's name."""
    return {one.name: one for one in text_string_to_metric_families(words)}


def value(family: Metric, **labels: str) -> float:
    """The one sample that has these labels."""
    found = [one.value for one in family.samples if labels.items() <= one.labels.items()]
    assert len(found) == 1, (labels, family.samples)
    return float(found[0])
