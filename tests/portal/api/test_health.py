"""Alive, ready, healthy: what each asks, and what it says when something is away."""

from __future__ import annotations

import json
import socket
import time

import pytest
from django.db import OperationalError
from django.test import Client

from pool.queries import health as queries
from tests.portal.api.asking import problem


def away(*args, **kwargs):
    raise OperationalError("the server closed the connection")


def test_it_is_alive_without_asking_anything(monkeypatch):
    assert Client().get("/livez").json() == {"status": "ok"}


def test_it_is_ready_when_the_database_is_migrated(db):
    assert Client().get("/readyz").json() == {"status": "ok"}


def test_it_is_not_ready_while_migrations_are_missing(monkeypatch):
    monkeypatch.setattr(queries, "migrations_pending", lambda: 2)
    assert problem(Client().get("/readyz"), 503, "not_ready")["pending"] == 2


def test_it_is_not_ready_without_a_database(monkeypatch):
    monkeypatch.setattr(queries, "migrations_pending", away)
    problem(Client().get("/readyz"), 503, "not_ready")


def test_it_is_degraded_without_workers_and_names_no_node(node):
    response = Client().get("/healthz")
    body = response.json()
    assert response.status_code == 200
    assert body["status"] == "degraded"
    assert (body["database"], body["broker"]) == ({"ok": True}, {"ok": True})
    assert body["workers"] == {"ok": False, "count": 0}
    assert b"node-1" not in response.content
    assert {lane["name"] for lane in body["lanes"]} == {"due", "slow"}
    assert all(set(lane) == {"name", "ok", "age_s", "took_ms", "failing"} for lane in body["lanes"])


def test_it_is_down_without_a_database(db, monkeypatch):
    monkeypatch.setattr(queries, "_lanes", away)
    response = Client().get("/healthz")
    assert response.status_code == 503
    assert json.loads(response.content)["status"] == "down"


def test_a_silent_redis_costs_it_no_time(db, settings):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        begun = time.monotonic()
        response = Client().get("/healthz")
        took = time.monotonic() - begun
    assert response.status_code == 200
    assert response.json()["broker"] == {"ok": False}
    assert took < 1.5


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_probes_are_only_read(db, path):
    assert Client().post(path).status_code == 405
    assert Client().head(path).status_code in (200, 503)
