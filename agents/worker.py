"""The node's Celery worker: takes the one task a node knows and fills the applier's slot.

It runs in the main thread, and starts anew with back-off when it ends on an
error; commands then still arrive with the answers to reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from celery import Celery, bootsteps
from celery.worker import WorkController
from kombu import Exchange, Queue

from agents import transport
from pool.core.wire import APPLY_TASK, Command

log = logging.getLogger("agents.worker")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

#: No results, no remote control, one message at a time, and never an end to trying.
SETTINGS: dict[str, Any] = {
    "task_queues": [Queue("celery", exchange=Exchange("", type="direct"), no_declare=True)],
    "task_default_queue": "celery",
    "task_create_missing_queues": False,
    "accept_content": ["json"],
    "task_serializer": "json",
    "result_backend": None,
    "task_ignore_result": True,
    "task_acks_late": False,
    "worker_prefetch_multiplier": 1,
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "worker_detect_quorum_queues": False,
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_connection_timeout": 5,
}


class Line:
    """Whether the worker consumes from the broker now. Set by the worker, read by the watch."""

    def __init__(self) -> None:
        self._up = threading.Event()

    @property
    def up(self) -> bool:
        return self._up.is_set()

    def set(self, up: bool) -> None:
        if up:
            self._up.set()
        else:
            self._up.clear()


def make_app(
    broker_url: str, node: str, take: Callable[[Command], object], line: Line, ca_file: str | None = None
) -> Celery:
    """A Celery application that knows the node's queue and the one task, and nothing else."""
    app = Celery("gpupool-agent", fixups=[], set_as_current=False)
    app.conf.update(transport.settings(broker_url, node, ca_file), **SETTINGS)

    @app.task(name=APPLY_TASK, shared=False)
    def apply(raw: Any) -> None:
        try:
            command = msgspec.convert(raw, Command)
        except msgspec.ValidationError as error:
            log.warning("A message is not a command: %s", error)
            return
        take(command)

    app.steps["consumer"].add(_step(line))
    return app


def _step(line: Line) -> type[bootsteps.StartStopStep]:
    class Consuming(bootsteps.StartStopStep):
        """The last step before the loop, so that it starts and stops with the consuming."""

        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            line.set(True)

        def stop(self, parent: Any) -> None:
            line.set(False)

    return Consuming


def run_once(app: Celery, node: str) -> None:
    """Consume until the worker ends; connection losses end nothing, they are retried within."""
    app.set_current()  # the worker looks tasks up in the current application
    worker = WorkController(
        app=app,
        hostname=f"agent@{node}",
        pool="solo",
        concurrency=1,
        loglevel="WARNING",
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        task_events=False,
    )
    worker.start()


def run(
    broker_url: str,
    node: str,
    take: Callable[[Command], object],
    line: Line,
    stopping: threading.Event,
    ca_file: str | None = None,
) -> None:
    """Keep a worker going until `stopping` is set (or the main thread is interrupted)."""
    pause = FIRST_PAUSE_S
    while not stopping.is_set():
        try:
            run_once(make_app(broker_url, node, take, line, ca_file), node)
        except Exception:
            log.exception("The worker could not run")
        line.set(False)
        if stopping.is_set():
            return
        log.warning("The worker ended; a new one starts in %.0f s", pause)
        stopping.wait(pause)
        pause = min(pause * 2, LONGEST_PAUSE_S)
