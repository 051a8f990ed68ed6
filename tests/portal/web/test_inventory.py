"""Nodes and GPUs: what is wanted, what was observed, and what operators switch."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from pool.core import wire
from pool.core.shapes import GpuAsk
from pool.models import Gpu, Node, Reservation
from pool.queries import clock
from pool.services import inventory
from tests.cast import Cast, SimNode, enrol_node
from tests.portal.web.people import book, page_of

pytestmark = pytest.mark.django_db


def gpu_page(client: Client, node: SimNode, index: int = 0) -> str:
    return page_of(client.get(f"/gpus/{node.gpus[index].uuid}/"))


def silence(node: SimNode) -> None:
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(minutes=5)
    node.row.save()


# --- Nodes ----------------------------------------------------------------------


def test_nodes_are_listed_with_what_they_have_and_when_they_were_heard(
    cast: Cast, node: SimNode, sams: Client
) -> None:
    enrol_node(cast.main, "dgx-02", "A100-40GB", count=2, managed=False)
    page = page_of(sams.get("/nodes/"))
    assert "2 × A100-40GB" in page
    assert "0 / 2" in page
    assert "1 / 1" in page
    assert page.count("Heard ") == 2


def test_names_are_searched_and_paged(cast: Cast, node: SimNode, milos: Client, monkeypatch: Any) -> None:
    enrol_node(cast.main, "dgx-01", managed=False)
    monkeypatch.setattr("portal.web.inventory.PER_PAGE", 1)
    first = page_of(milos.get("/nodes/"))
    assert 'href="/nodes/dgx-01/"' in first
    assert 'href="?after=dgx-01"' in first
    assert 'href="/nodes/node-1/"' in page_of(milos.get("/nodes/?after=dgx-01"))
    assert 'href="/nodes/dgx-01/"' not in page_of(milos.get("/nodes/?q=node"))
    assert "No node has such a name." in page_of(milos.get("/nodes/?q=nothing"))
    assert milos.get("/nodes/?q=%00").status_code == 200


def test_a_node_that_is_silent_is_unknown_since_it_was_last_heard(node: SimNode, milos: Client) -> None:
    silence(node)
    since = (clock.real_now() - timedelta(minutes=5)).strftime("%H:%M")
    assert f"Unknown since {since}" in page_of(milos.get("/nodes/"))
    page = page_of(milos.get("/nodes/node-1/"))
    assert "three reports are missing" in page
    assert "not heard from" in page


def test_nobody_waits_for_a_node_that_was_retired(node: SimNode, milos: Client) -> None:
    inventory.retire(actor=None, target="node", id="node-1", now=clock.now())
    silence(node)
    for address in ("/", "/nodes/", "/agents/", "/nodes/node-1/"):
        page = page_of(milos.get(address))
        assert "retired" in page
        assert "Unknown since" not in page


def test_how_shares_are_kept_apart_is_said_in_words(node: SimNode, milos: Client) -> None:
    node.send(node.report(sharing=("mps", "timeslice")))
    for address in ("/agents/", "/nodes/node-1/"):
        page = page_of(milos.get(address))
        assert "MPS, time slicing" in page
        assert "timeslice" not in page
    Node.objects.update(sharing_offered=[])
    assert "MPS" not in page_of(milos.get("/agents/"))


@pytest.mark.parametrize(
    ("access", "said"),
    [("advisory", "Not enforced"), ("cdi", "container runtime"), ("unix", "device permissions")],
)
def test_the_access_to_devices_is_said_in_words(node: SimNode, milos: Client, access: str, said: str) -> None:
    Node.objects.update(access=access)
    page = page_of(milos.get("/agents/"))
    assert said in page
    assert access not in page


@pytest.mark.parametrize("address", ["/nodes/", "/agents/"])
def test_names_of_nodes_are_looked_for_on_the_same_page(node: SimNode, milos: Client, address: str) -> None:
    page = milos.get(address, {"q": "node"}).content.decode()
    assert f'action="{address}"' in page
    assert 'value="node"' in page
    assert "/nodes/node-1/" in page
    assert "/nodes/node-1/" not in milos.get(address, {"q": "other"}).content.decode()


def test_an_unknown_node_or_gpu_does_not_exist(cast: Cast, milos: Client) -> None:
    assert milos.get("/nodes/nowhere/").status_code == 404
    assert milos.get("/gpus/GPU-none/").status_code == 404


def test_an_empty_inventory_says_how_a_node_joins(cast: Cast, milos: Client) -> None:
    assert "No node has joined yet" in page_of(milos.get("/nodes/"))


# --- A GPU ----------------------------------------------------------------------


def test_the_holder_sees_the_slice_as_theirs_wanted_and_observed(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    page = gpu_page(milos, node)
    wanted, observed = page.split("<strong>Observed</strong>")
    assert page.count(f'<a href="/reservations/{active.pk}/">') == 4  # both rows of the grid, both tables
    assert "yours" in wanted
    assert active.allocations.get().mig_uuid in observed


def test_the_team_reads_its_name_and_a_stranger_only_busy(
    active: Reservation, node: SimNode, lenas: Client, sams: Client
) -> None:
    lenas_page, sams_page = gpu_page(lenas, node), gpu_page(sams, node)
    assert "vision" in lenas_page
    assert "busy" in sams_page
    for secret in ("vision", "Finetune", str(active.pk), "milo"):
        assert secret not in sams_page


def test_a_slice_that_is_wanted_but_not_there_is_told_apart(cast: Cast, node: SimNode, milos: Client) -> None:
    book(cast.milo)
    assert "not there" in gpu_page(milos, node)
    node.follow()
    assert "not there" not in gpu_page(milos, node)


def test_an_instance_of_somebody_else_is_drawn_and_blocks_its_span(node: SimNode, milos: Client) -> None:
    gpu = node.gpus[0]
    profile = gpu.catalogue.profile("1g.10gb")
    assert profile is not None
    gpu.instances.append(gpu.instance(profile.profile_id, 2, 1, "1g.10gb", owned=False))
    node.send()
    page = gpu_page(milos, node)
    assert "not made by gpupool" in page
    assert "Used without a booking" in page
    assert 'class="blocked' in page


def test_what_is_not_measured_is_never_zero(node: SimNode, milos: Client) -> None:
    page = gpu_page(milos, node)
    assert page.count("not measured") == 2  # utilisation and memory, of four
    assert "101 <small>W</small>" in page
    assert "90–110 W" in page
    silence(node)
    assert gpu_page(milos, node).count("not measured") == 4


def test_a_gpu_that_is_booked_whole_is_observed_once_the_agent_has_it_in_force(
    cast: Cast, milos: Client
) -> None:
    node = enrol_node(cast.main, use="whole")
    book(cast.milo, ask=GpuAsk(models=("H100-80GB",)))
    wanted, _, observed = gpu_page(milos, node).partition("<strong>Observed</strong>")
    assert "whole GPU" in wanted
    assert "whole GPU" not in observed.partition("</figure>")[0]
    node.follow()
    observed = gpu_page(milos, node).partition("<strong>Observed</strong>")[2]
    assert "whole GPU" in observed.partition("</figure>")[0]


def test_a_gpu_without_a_state_is_not_known(cast: Cast, milos: Client) -> None:
    node = enrol_node(cast.main, managed=False)
    node.row.gpus.get().state.delete()
    page = gpu_page(milos, node)
    assert "Not known: no report says what is on it." in page
    assert "<dt>MIG mode</dt><dd>not known</dd>" in page


def test_a_mode_change_that_waits_for_a_reset_is_told(node: SimNode, milos: Client) -> None:
    node.send(node.report(gpus=(node.gpus[0].report(mig=True, mig_pending=False),)))
    assert "on, off after a reset" in gpu_page(milos, node)


def test_trouble_of_the_driver_is_told_and_who_is_in_the_way_to_operators_alone(
    node: SimNode, milos: Client, ottos: Client
) -> None:
    holder = wire.Process(pid=4711, name="nv-hostengine", user="mona")
    node.gpus[0].trouble = wire.Trouble(
        generation=1, code="in_use", detail="no account of mona is here", holders=(holder,)
    )
    node.send()
    told = gpu_page(ottos, node)
    assert "The GPU is in use by processes." in told
    assert "no account of mona is here" in told
    assert "nv-hostengine (pid 4711, user mona)" in told
    page = gpu_page(milos, node)
    assert "The GPU is in use by processes." in page
    assert "mona" not in page
    assert "4711" not in page


def test_bookings_ahead_are_listed_without_names_for_strangers(
    cast: Cast, node: SimNode, milos: Client, sams: Client
) -> None:
    book(cast.milo, title="Next week", start=clock.now() + timedelta(days=7))
    assert "Next week" in gpu_page(milos, node)
    stranger = gpu_page(sams, node)
    assert "Next week" not in stranger
    assert "busy" in stranger


# --- What operators switch --------------------------------------------------------


def test_an_operator_sees_what_managing_would_do_and_switches_it(cast: Cast, ottos: Client) -> None:
    node = enrol_node(cast.main, managed=False)
    Gpu.objects.update(use="mig")
    address = f"/gpus/{node.gpus[0].uuid}/"
    page = gpu_page(ottos, node)
    assert "would create" in page
    assert "would destroy" in page
    assert "MIG mode: switched on" in page
    assert ottos.post(address + "manage/", {"managed": "1"}).status_code == 302
    assert Gpu.objects.get().managed
    assert "The portal manages this GPU." in gpu_page(ottos, node)
    ottos.post(address + "manage/", {"managed": "0"})
    assert not Gpu.objects.get().managed


def test_what_is_booked_cannot_be_let_go_and_says_so(
    active: Reservation, node: SimNode, ottos: Client
) -> None:
    answer = ottos.post(f"/gpus/{node.gpus[0].uuid}/manage/", {"managed": "0"})
    assert answer.status_code == 409
    assert 'role="alert"' in page_of(answer)
    assert Gpu.objects.get().managed


def test_an_operator_freezes_and_thaws_a_gpu_and_a_node(node: SimNode, ottos: Client, milos: Client) -> None:
    gpu = f"/gpus/{node.gpus[0].uuid}/"
    ottos.post(gpu + "freeze/", {"frozen": "1"})
    assert "Frozen: no command" in gpu_page(milos, node)
    ottos.post(gpu + "freeze/", {"frozen": "0"})
    assert "Frozen: no command" not in gpu_page(milos, node)
    ottos.post("/nodes/node-1/freeze/", {"frozen": "1"})
    page = page_of(milos.get("/nodes/node-1/"))
    assert "Frozen by an operator" in page
    assert "Thaw" not in page
    assert "Thaw this node" in page_of(ottos.get("/nodes/node-1/"))


@pytest.mark.parametrize("address", ["/nodes/node-1/freeze/", "/gpus/{}/freeze/", "/gpus/{}/manage/"])
def test_others_can_switch_nothing(node: SimNode, lenas: Client, address: str) -> None:
    address = address.format(node.gpus[0].uuid)
    before = Gpu.objects.values().get()
    answer = lenas.post(address, {"frozen": "1", "managed": "0"})
    assert answer.status_code == 403
    assert Gpu.objects.values().get() == before
    assert "Freeze" not in gpu_page(lenas, node)
    assert lenas.get(address).status_code == 405


def test_the_live_parts_answer_alone(node: SimNode, milos: Client) -> None:
    for address in ("/nodes/", "/nodes/node-1/", f"/gpus/{node.gpus[0].uuid}/"):
        part = milos.get(address, headers={"HX-Request": "true"}).content.decode()
        assert re.match(r'\s*<div id="live"', part), address
        assert "<html" not in part


def test_node_and_gpu_say_how_fragmented_they_are(node: SimNode, milos: Client) -> None:
    for address in ("/nodes/node-1/", f"/gpus/{node.gpus[0].uuid}/"):
        assert "0 % of what is free: 0 of 1 GPUs are of no use to the usual asks" in page_of(
            milos.get(address)
        )
