"""What `status` says in words about what the last report told."""

from __future__ import annotations

from datetime import UTC, datetime

from agents.status import Status, as_text
from agents.watch import Last
from pool.core.wire import GpuReport, Report, ShareSeen


def text(*gpus: GpuReport, stopped: bool = False, managed: int = 0, **fields: object) -> str:
    report = Report(
        agent="1",
        node="n",
        machine_id="m",
        boot_id="b",
        seq=1,
        sampled_at=datetime.now(UTC),
        gpus=gpus,
        **fields,  # type: ignore[arg-type]
    )
    status = Status(
        node="n",
        portal="https://p",
        running=True,
        frozen=False,
        simulated=None,
        by_broker=False,
        last=Last(report=report),
        stopped=stopped,
        managed=managed,
    )
    return as_text(status)


def gpu(**fields: object) -> GpuReport:
    return GpuReport(uuid="GPU-1", index=0, name="H100", mig_capable=True, mig=False, **fields)  # type: ignore[arg-type]


def test_who_else_manages_the_node_is_said() -> None:
    assert "Managed by others too: device-plugin, slurmd" in text(managed_by=("device-plugin", "slurmd"))
    assert "Managed by" not in text()


def test_what_the_portal_allows_is_said() -> None:
    assert "Managed GPUs: 1 of 2" in text(gpu(), gpu(), managed=1)
    assert "FROZEN by the portal" in text(stopped=True)
    assert "FROZEN" not in text()


def test_reports_that_were_not_taken_are_counted() -> None:
    assert "not taken since the start: 4" in text(dropped=4)
    assert "not taken since" not in text()


def test_the_exporters_port_is_named() -> None:
    assert "Metrics: port 9401" in text(exporter=9401)
    assert "Metrics: not served" in text()


def test_shares_tell_how_they_are() -> None:
    shares = (
        ShareSeen(allocation="a", state="ok", memory_used_mib=12),
        ShareSeen(allocation="b", state="degraded"),
    )
    said = text(gpu(shares=shares, held=("a", "b")))
    assert "share a: ok, 12 MiB" in said
    assert "share b: degraded\n" in said + "\n"
    assert "held whole" not in said


def test_a_whole_gpu_tells_its_holder_and_what_holds_its_clocks_down() -> None:
    said = text(gpu(held=("w",), throttle=("idle", "sw_thermal")))
    assert "held whole by w" in said
    assert "clocks held down: sw_thermal" in said
    assert "clocks" not in text(gpu(throttle=("idle",)))
