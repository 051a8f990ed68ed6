"""Periodic work: each task of the schedule exists and calls its lane."""

from __future__ import annotations

from typing import Any

import pytest

from pool import tasks
from pool.models import Lane
from portal.celery import app


def test_every_task_of_the_schedule_is_known_to_the_workers(settings: Any) -> None:
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert scheduled == {tasks.due.name, tasks.slow.name}
    assert scheduled <= set(app.tasks)


def test_each_runs_on_the_queue_of_its_lane_and_expires_before_it_piles_up(settings: Any) -> None:
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        assert entry["options"] == {"queue": name, "expires": entry["schedule"]}


@pytest.mark.django_db
def test_they_run_their_lanes() -> None:
    tasks.due()
    tasks.slow()
    assert set(Lane.objects.values_list("name", flat=True)) == {"due", "slow"}
