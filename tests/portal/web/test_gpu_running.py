"""The page of a GPU as operators, holders and strangers see what runs there; the page of all agents."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from pool.core import wire
from pool.core.shapes import ShareAsk
from pool.models import Blocker, Fault, Gpu, Reservation
from pool.queries import clock
from pool.services import inventory
from tests.cast import Cast, SimNode, enrol_node
from tests.portal.web.people import book, page_of

pytestmark = pytest.mark.django_db


def gpu_page(client: Client, node: SimNode, index: int = 0) -> str:
    return page_of(client.get(f"/gpus/{node.gpus[index].uuid}/"))


# --- What runs on it, how it is, and foreign use ------------------------------------


def running(node: SimNode, active: Reservation) -> None:
    """Milo's process in his slice, and one of nobody's on the GPU."""
    gpu = node.gpus[0]
    own = str(active.allocations.get().pk)
    inside = wire.Process(pid=4711, name="python", user="milo-p", command="python train.py", allocation=own)
    (one,) = gpu.instances
    values = {name: getattr(one, name) for name in one.__struct_fields__}
    window = wire.Window(min=1, mean=42, max=90, last=50, source="gpm")
    gpu.instances = [wire.Instance(**values | {"processes": (inside,), "activity_pct": window})]
    gpu.processes = (inside, wire.Process(pid=4712, name="xmrig", user="eve"))
    node.send()


def test_whose_processes_run_is_told_to_operators_and_the_holders_team_alone(
    active: Reservation, node: SimNode, milos: Client, sams: Client, ottos: Client
) -> None:
    running(node, active)
    mine, others, all_ = gpu_page(milos, node), gpu_page(sams, node), gpu_page(ottos, node)
    assert "python train.py" in mine
    assert "xmrig" not in mine
    for secret in ("milo-p", "python train.py", "4711", "xmrig", ">eve<"):
        assert secret not in others
    assert "Nothing of your teams runs on it." in others
    assert "xmrig" in all_
    assert "nobody&#x27;s" in all_


def test_the_activity_of_a_slice_names_what_measured_it(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    running(node, active)
    page = gpu_page(milos, node)
    assert "How busy its slices are" in page
    assert "GPM" in page
    assert "42" in page


def test_how_the_card_is_stands_among_its_facts(node: SimNode, milos: Client) -> None:
    report = node.gpus[0].report(
        sm_clock_mhz=1980,
        throttle=("sw_power_cap",),
        ecc_corrected=3,
        remapped=wire.Remapped(correctable=1, uncorrectable=0, pending=True, failure=False),
        fabric_state="completed",
        numa=1,
        links=(
            wire.Link(peer=None, kind="nvswitch", count=18),
            wire.Link(peer="GPU-2", kind="p2p", count=None),
        ),
    )
    node.send(node.report(gpus=(report,)))
    page = gpu_page(milos, node)
    for said in (
        "1980 MHz",
        "power limit",
        "3 corrected",
        "1, one waits for a reset",
        "ready",
        "18 × NVLink switch",
        "reads the memory of 1 GPU",
    ):
        assert said in page


def test_a_fault_is_shown_and_an_operator_returns_the_gpu_once_it_is_well(
    node: SimNode, milos: Client, ottos: Client
) -> None:
    node.send(
        node.report(
            happened=(
                wire.Happened(n=1, kind="xid", at=clock.real_now(), gpu=node.gpus[0].uuid, data={"xid": 48}),
            )
        )
    )
    page = gpu_page(ottos, node)
    assert "Xid 48" in page
    assert "0 of 5 good reports" in page
    assert "Return to service" not in page
    Fault.objects.update(good=5)
    assert "Return to service" in gpu_page(ottos, node)
    assert "Return to service" not in gpu_page(milos, node)
    answer = ottos.post(f"/gpus/{node.gpus[0].uuid}/return/", follow=True)
    assert "The GPU is in service again." in page_of(answer)
    assert not Blocker.objects.filter(kind="health").exists()


def foreign(node: SimNode) -> str:
    """A slice that somebody made by hand; the address at which it is adopted."""
    gpu = node.gpus[0]
    gpu.instances.append(gpu.instance(14, 2, 2, "2g.20gb", owned=False))
    node.send()
    return f"/gpus/{gpu.uuid}/adopt/"


def test_an_operator_adopts_foreign_use_from_the_page(
    cast: Cast, node: SimNode, milos: Client, ottos: Client
) -> None:
    address = foreign(node)
    assert f'action="{address}"' in gpu_page(ottos, node)
    assert f'action="{address}"' not in gpu_page(milos, node)
    typed = {"first": "2", "team": "vision", "owner": "milo", "hours": "3", "title": "found"}
    assert ottos.post(address, typed).status_code == 302
    row = Reservation.objects.get()
    assert (row.owner, row.title, row.period.upper - row.period.lower) == (
        cast.milo,
        "found",
        timedelta(hours=3),
    )


def test_what_is_wrong_with_an_adoption_is_said_beside_its_field(
    cast: Cast, node: SimNode, milos: Client, ottos: Client
) -> None:
    address = foreign(node)
    typed = {"first": "2", "team": "vision", "owner": "sam", "hours": "3", "title": "found"}
    answer = ottos.post(address, typed)
    page = page_of(answer)
    assert answer.status_code == 422
    assert "No such member of the team." in page
    assert 'value="found"' in page
    assert ottos.post(address, typed | {"hours": "0"}).status_code == 422
    assert milos.post(address, typed).status_code == 403
    assert ottos.post(address).status_code == 422
    assert not Reservation.objects.exists()


def test_an_adoption_that_says_nothing_is_refused_also_where_nothing_is_foreign(
    node: SimNode, ottos: Client
) -> None:
    answer = ottos.post(f"/gpus/{node.gpus[0].uuid}/adopt/")
    assert answer.status_code == 422


def test_what_else_gives_a_node_out_is_named_and_excluding_is_stated(
    cast: Cast, milos: Client, ottos: Client
) -> None:
    node = enrol_node(cast.main, managed=False)
    node.send(node.report(managed_by=("slurmd",)))
    assert "slurmd gives out GPUs on this node." in page_of(milos.get("/nodes/node-1/"))
    page = gpu_page(ottos, node)
    assert "I have excluded this GPU from slurmd." in page
    address = f"/gpus/{node.gpus[0].uuid}/manage/"
    refused = ottos.post(address, {"managed": "1"})
    assert refused.status_code == 422
    assert "slurmd on its node gives this GPU out" in page_of(refused)
    assert ottos.post(address, {"managed": "1", "excluded": "1"}).status_code == 302
    assert Gpu.objects.get().excluded


def test_an_operator_chooses_how_slices_are_handed_out(
    cast: Cast, node: SimNode, milos: Client, ottos: Client
) -> None:
    node.send(node.report(access=("advisory", "cdi")))
    assert 'action="/nodes/node-1/access/"' in page_of(ottos.get("/nodes/node-1/"))
    assert 'action="/nodes/node-1/access/"' not in page_of(milos.get("/nodes/node-1/"))
    assert milos.post("/nodes/node-1/access/", {"access": "cdi"}).status_code == 403
    assert ottos.post("/nodes/node-1/access/", {"access": "unix"}).status_code == 422
    assert ottos.post("/nodes/node-1/access/", {"access": "cdi"}).status_code == 302
    node.row.refresh_from_db()
    assert node.row.access == "cdi"


# --- Agents -----------------------------------------------------------------------------


def test_all_agents_stand_on_one_page(cast: Cast, node: SimNode, milos: Client) -> None:
    enrol_node(cast.main, "dgx-02", managed=False)
    node.send(
        node.report(
            agent="0.2.0",
            sharing=("mps",),
            exporter=9401,
            dropped=7,
            managed_by=("slurmd",),
            sampled_at=clock.real_now() - timedelta(seconds=90),
        )
    )
    page = page_of(milos.get("/agents/"))
    for said in ("node-1", "dgx-02", "0.2.0", "wire 2", "9401", "slurmd", "1 min 30 s off", ">7<"):
        assert said in page
    assert 'href="?after=' not in page
    assert "node-1" not in page_of(milos.get("/agents/?q=dgx"))


# --- Shares -----------------------------------------------------------------------------


def test_shares_are_drawn_beside_one_another_as_wide_as_their_memory(
    cast: Cast, node: SimNode, milos: Client, sams: Client
) -> None:
    node.send(node.report(sharing=("mps",)))
    uuid = node.gpus[0].uuid
    inventory.set_use(actor=cast.otto, gpus=[uuid], use="share", sharing="mps", now=clock.now())
    node.follow()
    row = book(cast.milo, ask=ShareAsk(memory_mib=20480, guaranteed=25, limit=25))
    assert "not there" in gpu_page(milos, node)
    node.carve()
    own = str(row.allocations.get().pk)
    for state, said in (("ok", "there"), ("over", "takes more memory than it has")):
        shares = (wire.ShareSeen(allocation=own, state=state, memory_used_mib=100),)
        node.send(node.report(gpus=(node.gpus[0].report(shares=shares),)))
        page = gpu_page(milos, node)
        assert "share of 20 GiB, 25 % compute" in page
        assert f"<span>{said}</span>" in page
        assert 'width="25.11%"' in page
        assert "MPS" in page
    others = gpu_page(sams, node)
    assert "busy" in others
    for secret in ("Finetune", "vision", str(row.pk)):
        assert secret not in others
