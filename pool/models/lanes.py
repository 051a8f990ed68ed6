"""Lanes of timed work, what a lane set aside, and the offset of a demo's clock."""

from __future__ import annotations

from django.db import models


class Lane(models.Model):
    """A lease; its row is the heartbeat that the health page shows. Made on demand."""

    name = models.CharField(max_length=16, primary_key=True)
    until = models.DateTimeField()
    holder = models.CharField(max_length=80, default="", blank=True)
    beat_at = models.DateTimeField()
    took_ms = models.PositiveIntegerField(default=0)
    error = models.CharField(max_length=300, default="", blank=True)


class SetAside(models.Model):
    """A row that a lane could not deal with; it never stops the lane and is shown."""

    lane = models.CharField(max_length=16)
    subject = models.CharField(max_length=80)
    error = models.CharField(max_length=300)
    at = models.DateTimeField()
    retry_at = models.DateTimeField()
    tries = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["lane", "subject"], name="set_aside_once"),
        ]


class ClockOffset(models.Model):
    """Moves the portal's clock; honoured in demo and bench databases only."""

    seconds = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="clock_offset_single_row"),
        ]
