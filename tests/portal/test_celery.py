"""The portal's Celery: JSON only, no results, and nothing that a silent or emptied Redis could hold up."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import current_app
from django.conf import settings
from kombu.exceptions import OperationalError

from portal import celery_app, embedded
from portal.processes import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def client() -> Any:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.flushdb()
        yield client
        client.flushdb()


def send(name: str = "pool.tasks.due", queue: str = "due") -> None:
    celery_app.send_task(name, queue=queue, retry=False, expires=2)


def test_a_message_that_is_sent_after_redis_was_emptied_is_there(client: redis.Redis) -> None:
    """Bindings live in Redis; with an ordinary exchange the message would go nowhere."""
    send()
    client.flushall()
    send()
    assert client.llen("due") == 1


def test_a_message_is_json_and_expires(client: redis.Redis) -> None:
    send()
    raw = client.rpop("due")
    assert isinstance(raw, bytes)
    message = json.loads(raw)
    assert message["content-type"] == "application/json"
    assert message["headers"]["expires"]


def test_every_thread_sees_this_application() -> None:
    """`current_app` is kept by thread; the web server's threads must not get an unconfigured one."""
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(current_app._get_current_object()))
    thread.start()
    thread.join()
    assert seen == [celery_app]


def test_it_takes_nothing_but_json_and_keeps_no_results() -> None:
    assert celery_app.conf.accept_content == ["json"]
    assert celery_app.conf.result_backend is None
    assert celery_app.conf.worker_enable_remote_control is False


def test_every_timed_task_exists_and_expires_before_the_next() -> None:
    celery_app.loader.import_default_modules()
    for entry in celery_app.conf.beat_schedule.values():
        assert entry["task"] in celery_app.tasks
        assert entry["options"]["expires"] <= entry["schedule"]
        assert entry["options"]["queue"] in {queue.name for queue in settings.CELERY_TASK_QUEUES}


SEND = """
import time, django, portal
django.setup()
portal.celery_app.conf.broker_transport_options  # settings are loaded
began = time.monotonic()
try:
    portal.celery_app.send_task("pool.tasks.due", queue="due", retry=False)
except Exception as error:
    print(type(error).__name__, time.monotonic() - began)
"""


def send_to(port: int, **more: str) -> tuple[str, float]:
    """Send once in a process of its own whose Redis is at `port`: what happened, and seconds."""
    environment = dict(os.environ) | {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "REDIS_URL": f"redis://127.0.0.1:{port}/0",
    }
    shown = subprocess.run(
        [sys.executable, "-c", SEND],
        cwd=ROOT,
        env=environment | more,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return (shown[0], float(shown[1])) if shown else ("sent", 0.0)


def test_a_redis_that_is_gone_costs_a_sender_no_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    what, seconds = send_to(port)
    assert what == OperationalError.__name__
    assert seconds < 1.5


def test_a_redis_that_is_silent_costs_a_sender_little_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        what, seconds = send_to(silent.getsockname()[1])
    assert what == OperationalError.__name__
    assert seconds < 1.5


def test_a_broker_in_the_environment_does_not_win_over_the_settings(client: redis.Redis) -> None:
    port = int(settings.REDIS_URL.rsplit(":", 1)[1].split("/")[0])
    url = settings.REDIS_URL
    what, _ = send_to(port, REDIS_URL=url, CELERY_BROKER_URL="redis://127.0.0.1:1/0")
    assert what == "sent"
    assert client.llen("due") == 1


@contextlib.contextmanager
def celery(pair: embedded.Servers, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`celery -A portal ...` on a pair of its own."""
    more = {"DJANGO_SETTINGS_MODULE": "portal.settings", "GPUPOOL_DATA_DIR": str(pair.state)}
    log = (pair.state / "celery.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "portal.celery:app", *arguments],
        cwd=ROOT,
        env=dict(os.environ) | pair.environment() | more,
        stdout=log,
        stderr=log,
    )
    log.close()
    try:
        yield process
        assert process.poll() is None, "it ended by itself"
    finally:
        process.terminate()
        process.wait(30)


def said(pair: embedded.Servers) -> str:
    return (pair.state / "celery.log").read_text()


@pytest.mark.journey
def test_a_worker_waits_out_a_crash_of_its_redis(private_pair: embedded.Servers) -> None:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    with (
        celery(private_pair, "worker", "--pool", "solo", "-Q", "slow", *quiet),
        redis.Redis.from_url(private_pair.redis_url) as client,
    ):
        take(client, private_pair.redis_url)
        private_pair.kill_redis()
        private_pair.start_redis()
        take(client, private_pair.redis_url)


@pytest.mark.journey
def test_beat_waits_out_a_crash_of_its_redis(private_pair: embedded.Servers) -> None:
    with (
        celery(private_pair, "beat", "--pidfile="),
        redis.Redis.from_url(private_pair.redis_url) as client,
    ):
        assert wait_until(lambda: client.llen("due") > 0, 60, 0.1)
        private_pair.kill_redis()
        assert wait_until(lambda: "apply scheduled task" in said(private_pair), 60, 0.1)
        private_pair.start_redis()
        client.flushall()
        assert wait_until(lambda: client.llen("due") > 0, 60, 0.1)


def take(client: redis.Redis, url: str) -> None:
    """Put a message into `slow` and wait until somebody has taken it."""
    with celery_app.connection_for_write(url) as connection:
        celery_app.send_task("pool.tasks.nothing", queue="slow", connection=connection, retry=False)
    assert wait_until(lambda: client.llen("slow") == 0, 60, 0.1), "nobody took the message"
