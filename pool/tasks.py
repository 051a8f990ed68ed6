"""Periodic work; each task calls one service. The schedule is in the settings."""

from __future__ import annotations

from celery import shared_task

from pool.queries import clock
from pool.services import lanes


@shared_task(name="pool.tasks.due")
def due() -> None:
    lanes.due(now=clock.now())


@shared_task(name="pool.tasks.slow")
def slow() -> None:
    lanes.slow(now=clock.now())
