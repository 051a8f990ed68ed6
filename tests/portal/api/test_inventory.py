"""Inventory over REST: what there is, unknown as null, who holds a slice only to those who may know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core import wire
from pool.models import Gpu, Node
from pool.queries import clock
from tests.cast import enrol_node
from tests.portal.api.asking import BODY, problem


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


def only(response):
    results = response.json()["results"]
    assert len(results) == 1
    return results[0]


def test_it_lists_pools_with_their_capacity(lead):
    pool = only(lead.get("/api/v1/pools"))
    assert (pool["name"], pool["frozen"]) == ("main", False)
    row = pool["capacity"][0]
    assert (row["model"], row["use"], row["gpus"], row["usable"]) == ("H100-80GB", "mig", 1, 1)
    assert (row["held"], row["blocked"]) == (0, 0)
    lead.book()
    assert only(lead.get("/api/v1/pools"))["capacity"][0]["held"] == 0.25


def test_it_lists_nodes_and_shows_one_with_its_gpus(lead):
    node = only(lead.get("/api/v1/nodes?pool=main"))
    assert (node["name"], node["pool"], node["unknown"], node["access"]) == (
        "node-1",
        "main",
        False,
        "advisory",
    )
    one = lead.get("/api/v1/nodes/node-1").json()
    assert [gpu["index"] for gpu in one["gpus"]] == [0]
    assert one["gpus"][0]["readings"]["power_w"]["max"] == 110


def test_a_node_that_is_not_heard_is_unknown_and_its_readings_are_not_shown(lead):
    Node.objects.update(received_at=clock.real_now() - timedelta(hours=1))
    node = lead.get("/api/v1/nodes/node-1").json()
    assert node["unknown"] is True
    gpu = node["gpus"][0]
    assert (gpu["usable"], gpu["why"], gpu["readings"]) == (False, "unknown", None)
    row = only(lead.get("/api/v1/pools"))["capacity"][0]
    assert (row["usable"], row["unknown"]) == (0, 1)


def test_a_retired_node_is_retired_and_not_unknown(lead):
    assert only(lead.get("/api/v1/nodes"))["retired"] is False
    hour_ago = clock.real_now() - timedelta(hours=1)
    Node.objects.update(received_at=hour_ago, unknown_since=hour_ago)
    assert only(lead.get("/api/v1/nodes"))["retired"] is False
    Gpu.objects.update(retired_at=clock.now(), managed=False)
    for node in (only(lead.get("/api/v1/nodes")), lead.get("/api/v1/nodes/node-1").json()):
        assert (node["retired"], node["unknown"], node["unknown_since"]) == (True, False, None)


def test_it_shows_a_gpu_with_what_it_shall_hold_and_what_it_holds(lead, node):
    made = lead.book().json()
    path = f"/api/v1/gpus/{node.gpus[0].uuid}"
    gpu = lead.get(path).json()
    assert [cell["reservation"] for cell in gpu["wanted"]] == [made["id"]] * 2
    assert gpu["observed"] == []
    node.follow()
    gpu = lead.get(path).json()
    assert len({cell["mig_uuid"] for cell in gpu["observed"]}) == 2


def test_it_does_not_tell_a_stranger_who_holds_a_slice(lead, api, sam, node):
    lead.book(BODY | {"title": "very secret"})
    node.follow()
    response = api(sam).get(f"/api/v1/gpus/{node.gpus[0].uuid}")
    for cell in response.json()["wanted"] + response.json()["observed"]:
        assert (cell["busy"], cell["reservation"], cell["team"]) == (True, None, None)
    assert b"secret" not in response.content
    assert b"vision" not in response.content


def test_it_lists_gpus_of_a_pool_and_of_a_node_in_their_order(lead, main_pool):
    enrol_node(main_pool, "node-2", "A100-40GB", 3, managed=False)
    found = lead.get("/api/v1/gpus?pool=main&limit=2").json()
    first = [(gpu["node"], gpu["index"]) for gpu in found["results"]]
    rest = [(gpu["node"], gpu["index"]) for gpu in lead.get(found["next"]).json()["results"]]
    assert first + rest == [("node-1", 0), ("node-2", 0), ("node-2", 1), ("node-2", 2)]
    found = lead.get("/api/v1/gpus?node=node-2").json()["results"]
    assert {(gpu["model"], gpu["why"], gpu["managed"]) for gpu in found} == {("A100-40GB", "observe", False)}


def test_it_lists_what_can_be_asked_for(lead):
    for path in ("/api/v1/profiles", "/api/v1/profiles?pool=main"):
        rows = {row["name"]: row for row in lead.get(path).json()["results"]}
        assert (rows["1g.10gb"]["size"], rows["1g.10gb"]["grid"], rows["1g.10gb"]["capacity"]) == (1, 8, 7)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nodes/nowhere",
        "/api/v1/nodes/UPPER",
        "/api/v1/nodes/%00",
        "/api/v1/gpus/GPU-nowhere",
        "/api/v1/gpus/a%00b",
        "/api/v1/profiles?pool=nowhere",
        "/api/v1/profiles?pool=%00",
        "/api/v1/gpus?node=nowhere",
        "/api/v1/nodes?pool=%00",
        "/api/v1/reservations/1",
        "/api/v1/pools/",
        "/api/v1/",
        "/api/",
        "/api/v2/pools",
    ],
)
def test_what_is_not_there_is_not_found(lead, path):
    problem(lead.get(path), 404, "not_found")


def test_a_node_tells_of_its_agent_what_it_offers_and_who_else_manages_it(lead, node):
    node.send(
        node.report(
            managed_by=("slurmd",), sharing=("mps",), access=("advisory", "cdi"), exporter=9400, dropped=2
        )
    )
    one = lead.get("/api/v1/nodes/node-1").json()
    assert (one["managed_by"], one["sharing_offered"], one["access_offered"]) == (
        ["slurmd"],
        ["mps"],
        ["advisory", "cdi"],
    )
    assert (one["wire"], one["exporter_port"], one["dropped_reports"], one["imex"]) == (2, 9400, 2, None)
    (gpu,) = one["gpus"]
    assert (gpu["usable"], gpu["why"], gpu["excluded"]) == (False, "managed_elsewhere", False)


def test_a_gpu_tells_its_health_and_only_to_those_concerned_what_runs_on_it(api, lena, sam, node):
    asking = api(lena)
    own = asking.book().json()["allocations"][0]["id"]
    node.follow()
    gpu = node.gpus[0]
    running = (wire.Process(pid=11, name="python", user="milo", allocation=own, by="user"),)
    report = gpu.report(processes=running, sm_clock_mhz=1980, throttle=())
    node.send(node.report(gpus=(report,)))
    path = f"/api/v1/gpus/{gpu.uuid}"
    mine, others = asking.get(path).json(), api(sam).get(path).json()
    assert mine["health"] == others["health"] == {"sm_clock_mhz": 1980, "throttle": []}
    assert [(one["pid"], one["user"], one["unattributed"]) for one in mine["processes"]] == [
        (11, "milo", False)
    ]
    assert others["processes"] == []
    assert "milo" not in str(others)


def test_instances_tell_how_busy_they_are_with_null_for_not_measured(lead, node):
    lead.book()
    node.follow()
    one = lead.get(f"/api/v1/gpus/{node.gpus[0].uuid}").json()["activity"][0]
    assert (one["profile"], one["activity_pct"], one["memory_activity_pct"]) == ("1g.10gb", None, None)


def test_it_tells_how_fragmented_pool_node_and_gpu_are(lead, node):
    pool = only(lead.get("/api/v1/pools"))
    assert pool["fragmentation"] == {"free": 1, "unusable": 0, "share": 0, "blocks": None}
    lead.book()
    told = lead.get("/api/v1/nodes/node-1").json()
    figure = told["fragmentation"]
    assert figure == told["gpus"][0]["fragmentation"] == only(lead.get("/api/v1/gpus"))["fragmentation"]
    assert figure["free"] == 0.75
    assert 0 < figure["unusable"] < 0.75
    assert figure["share"] == pytest.approx(figure["unusable"] / 0.75, abs=1e-5)


def test_what_is_not_heard_is_neither_free_nor_fragmented(lead):
    Node.objects.update(received_at=clock.real_now() - timedelta(hours=1))
    unknown = {"free": None, "unusable": None, "share": None}
    assert lead.get("/api/v1/nodes/node-1").json()["fragmentation"] == unknown
    assert only(lead.get("/api/v1/gpus"))["fragmentation"] == unknown
