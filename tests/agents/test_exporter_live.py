"""The exporter of an agent that runs: a scrape tells who holds the slice that has just been made."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import Metric

from agents import config
from agents import simulator_world as world
from agents.simulator_state import Store
from tests.agents.metrics import parse, value
from tests.agents.stand_in import Node, StandIn, command, slice_
from tests.agents.test_exporter import two_free_ports


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with StandIn() as stand_in:
        one = Node(tmp_path / "node", stand_in)
        one.join("2xH100-80GB", "--mig", "0")
        yield one
        one.clear()
        world.stop_processes(one.place.folder)


def scrape(port: int) -> dict[str, Metric]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return parse(connection.getresponse().read().decode())


def test_a_slice_is_told_with_its_reservation_once_it_is_there(node: Node) -> None:
    port = two_free_ports()
    node.call("config", f"exporter_port={port}")
    uuid, other = (gpu.uuid for gpu in Store(node.place.folder).read().gpus)
    mine = replace(slice_("a", 2), reservation="res-a", team="vision")
    node.portal.say(manage=(uuid,), commands=(command(uuid, 4, mine),))
    node.start()
    node.portal.await_gpu(uuid, lambda gpu: gpu.held == ("a",))
    report = node.portal.await_report(lambda report: report.exporter == port)
    assert report.exporter == port
    found = scrape(port)
    assert value(found["gpupool_held"], UUID=uuid, kind="mig", allocation="a", reservation="res-a") == 1
    assert value(found["gpupool_gpu_generation"], UUID=uuid) == 4
    assert value(found["gpupool_portal_up"]) == 1
    assert value(found["DCGM_FI_DEV_FB_USED"], UUID=uuid, reservation="res-a", GPU_I_PROFILE="1g.10gb") >= 0
    assert value(found["DCGM_FI_DEV_GPU_TEMP"], UUID=other, hostname=node.name) > 0
    assert value(found["DCGM_FI_DEV_XID_ERRORS"], UUID=uuid) == 0
    jobs = config.settle(node.place, config.load(node.place)).run / "jobs"
    node.portal.await_report(lambda report: bool(list(jobs.glob("0.*"))))
    assert [file.read_text() for file in jobs.iterdir()] == ["res-a\n"]


def test_an_xid_is_told_also_when_the_gpu_is_gone(node: Node) -> None:
    port = two_free_ports()
    node.call("config", f"exporter_port={port}")
    uuid = Store(node.place.folder).read().gpus[1].uuid
    node.start()
    node.portal.await_gpu(uuid, lambda gpu: not gpu.lost)
    world.xid(node.place.folder, 1, 79)
    node.portal.await_gpu(uuid, lambda gpu: gpu.lost)
    node.portal.await_report(lambda report: value(scrape(port)["DCGM_FI_DEV_XID_ERRORS"], UUID=uuid) == 79)
    found = scrape(port)
    assert value(found["gpupool_gpu_lost"], UUID=uuid) == 1
    assert not [one for one in found["DCGM_FI_DEV_GPU_TEMP"].samples if one.labels["UUID"] == uuid]
