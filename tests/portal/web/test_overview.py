"""The first page: honest numbers, and the one next action."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from pool.queries import clock
from pool.services import inventory
from tests.cast import Cast, SimNode, enrol_node
from tests.portal.web.people import book, browser, page_of

pytestmark = pytest.mark.django_db


def figures(page: str) -> list[str]:
    """What the keys of the capacity bars say, in order."""
    parts = page.split('class="key')[1:]
    return [part.partition(">")[2].partition("<")[0] for part in parts]


def test_it_counts_used_free_unknown_and_frozen(cast: Cast, node: SimNode, milos: Client) -> None:
    book(cast.sam, team="speech", profile="3g.40gb")
    assert figures(page_of(milos.get("/"))) == ["used 0.5", "free 0.5", "unknown 0", "frozen 0"]
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(minutes=5)
    node.row.save()
    assert figures(page_of(milos.get("/"))) == ["used 0", "free 0", "unknown 1", "frozen 0"]


def test_a_frozen_gpu_is_not_free(cast: Cast, node: SimNode, milos: Client) -> None:
    inventory.freeze(actor=cast.otto, target="gpu", id=node.gpus[0].uuid, frozen=True, now=clock.now())
    assert figures(page_of(milos.get("/"))) == ["used 0", "free 0", "unknown 0", "frozen 1"]


def test_what_is_occupied_without_a_booking_is_not_free(node: SimNode, milos: Client) -> None:
    gpu = node.gpus[0]
    profile = gpu.catalogue.profile("3g.40gb")
    assert profile is not None
    gpu.instances.append(gpu.instance(profile.profile_id, 4, 4, "3g.40gb", owned=False))
    node.send()
    assert figures(page_of(milos.get("/")))[:2] == ["used 0", "free 0.5"]
    assert "observed only, lost or blocked 0.5" in page_of(milos.get("/"))


def test_observed_gpus_are_not_capacity(cast: Cast, milos: Client) -> None:
    enrol_node(cast.main, managed=False, count=2)
    assert figures(page_of(milos.get("/")))[:2] == ["used 0", "free 0"]


def test_it_names_no_ones_booking_but_mine(cast: Cast, node: SimNode, milos: Client, sams: Client) -> None:
    book(cast.milo, title="Mine alone")
    assert "Mine alone" in page_of(milos.get("/"))
    assert "Mine alone" not in page_of(sams.get("/"))


def test_the_next_action_follows_what_i_hold(cast: Cast, node: SimNode, milos: Client) -> None:
    assert "You hold nothing" in page_of(milos.get("/"))
    ahead = book(cast.milo, start=clock.now() + timedelta(hours=3))
    assert "Your next one is set" in page_of(milos.get("/"))
    assert f'href="/reservations/{ahead.pk}/"' in page_of(milos.get("/"))
    now = book(cast.milo)
    assert "Yours is starting" in page_of(milos.get("/"))
    node.follow()
    page = page_of(milos.get("/"))
    assert "Yours is running" in page
    assert f'href="/reservations/{now.pk}/#connect"' in page
    assert page.count("btn btn-primary") == 2  # the action, and "Book" in the frame


def test_the_next_action_says_what_is_missing(cast: Cast, milos: Client, ottos: Client) -> None:
    assert "No node has joined yet." in page_of(milos.get("/"))
    assert "Make a join code" in page_of(ottos.get("/"))
    enrol_node(cast.main, managed=False)
    assert "Let the portal manage them." in page_of(ottos.get("/"))
    node = enrol_node(cast.main, "node-2")
    assert "You look after the inventory" in page_of(ottos.get("/"))
    assert node.row.name in page_of(ottos.get("/"))


def test_an_approver_without_a_team_may_look_around(cast: Cast, node: SimNode) -> None:
    assert "You can look around" in page_of(browser(cast.ada).get("/"))


def test_nodes_that_are_not_heard_come_first(
    cast: Cast, node: SimNode, milos: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = enrol_node(cast.main, "z-last", managed=False)
    silent.row.unknown_since = clock.real_now()
    silent.row.save()
    monkeypatch.setattr("portal.web.overview.NODES", 1)
    page = page_of(milos.get("/"))
    assert 'href="/nodes/z-last/"' in page
    assert 'href="/nodes/node-1/"' not in page


def test_the_live_part_answers_alone(node: SimNode, milos: Client) -> None:
    part = milos.get("/", headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<div id="live"')
    assert "<html" not in part


def test_it_says_how_much_of_what_is_free_is_of_no_use(cast: Cast, node: SimNode, milos: Client) -> None:
    assert "Fragmented: 0 % of what is free" in page_of(milos.get("/"))
    book(cast.sam, team="speech", profile="1g.10gb")
    page = page_of(milos.get("/"))
    assert "of 0.875 GPUs are of no use to the usual asks" in page
    assert "Fragmented: 0 %" not in page
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(minutes=5)
    node.row.save()
    assert "Fragmented: unknown" in page_of(milos.get("/"))
