"""queries.health: ok, degraded or down, by what is really heard."""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from pool.models import Lane, Node, NodeToken
from pool.queries import clock, health
from tests.cast import Cast, SimNode, enrol_node


def run_lanes(ago: float = 0) -> None:
    beat = clock.real_now() - timedelta(seconds=ago)
    for name in health.LANES:
        Lane.objects.update_or_create(
            name=name, defaults={"until": beat, "beat_at": beat, "holder": "worker-1", "took_ms": 5}
        )


def join(node: SimNode) -> None:
    NodeToken.objects.create(
        node=node.row, public_id=node.row.name, secret_hash="0" * 64, created_at=clock.real_now()
    )


def test_all_is_well_when_everything_is_heard(node: SimNode) -> None:
    join(node)
    run_lanes()
    view = health.health()
    assert view.status == "ok"
    assert (view.database.ok, view.broker.ok, view.workers) == (True, True, health.Workers(True, 1))
    assert view.agents == health.Agents(True, 1, 0, 0)
    assert [(lane.name, lane.ok, lane.took_ms) for lane in view.lanes] == [
        ("due", True, 5),
        ("slow", True, 5),
    ]


def test_without_a_run_of_a_lane_there_is_no_worker(cast: Cast) -> None:
    view = health.health()
    assert view.status == "degraded"
    assert view.workers == health.Workers(False, 0)
    assert [(lane.ok, lane.age_s) for lane in view.lanes] == [(False, None)] * 2


def test_each_lane_has_its_own_patience(cast: Cast) -> None:
    run_lanes(ago=11)
    view = health.health()
    assert [(lane.name, lane.ok) for lane in view.lanes] == [("due", False), ("slow", True)]
    run_lanes(ago=61)
    assert not any(lane.ok for lane in health.health().lanes)


def test_agents_are_fresh_stale_or_never_heard(cast: Cast) -> None:
    run_lanes()
    for node in (enrol_node(cast.main, "n1"), enrol_node(cast.main, "n2"), enrol_node(cast.main, "n3")):
        join(node)
    Node.objects.filter(name="n2").update(received_at=clock.real_now() - timedelta(seconds=46))
    Node.objects.filter(name="n3").update(received_at=None)
    view = health.health()
    assert view.agents == health.Agents(False, 1, 1, 1)
    assert view.status == "degraded"


def test_a_node_that_is_coming_back_is_not_fresh_yet(node: SimNode) -> None:
    join(node)
    Node.objects.update(unknown_since=clock.real_now())
    assert health.health().agents == health.Agents(False, 0, 1, 0)


def test_a_retired_node_is_not_missed(node: SimNode) -> None:
    run_lanes()
    Node.objects.update(received_at=clock.real_now() - timedelta(days=1))
    assert health.health().status == "ok"


def test_a_broker_that_is_away_degrades_and_is_found_out_quickly(cast: Cast, settings: Any) -> None:
    run_lanes()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    began = time.monotonic()
    view = health.health()
    assert (view.status, view.broker.ok) == ("degraded", False)
    assert time.monotonic() - began < 1


def test_without_the_database_it_is_down_and_says_nothing_it_does_not_know(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_args: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(health, "_lanes", away)
    view = health.health()
    assert (view.status, view.database.ok, view.workers, view.agents, view.lanes) == (
        "down",
        False,
        None,
        None,
        (),
    )


def test_it_names_no_node(node: SimNode) -> None:
    join(node)
    assert node.row.name not in repr(dataclasses.asdict(health.health()))


def test_no_migration_is_pending_and_a_missing_one_is_counted(cast: Cast) -> None:
    assert health.migrations_pending() == 0
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'pool'")
    assert health.migrations_pending() > 0
