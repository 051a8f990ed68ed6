"""The audit: append-only by a trigger (migration 0001)."""

from __future__ import annotations

from django.db import models


class Event(models.Model):
    """Who did what to which row, with the row before and after.

    Subjects are plain ids, not keys: the audit outlives what it speaks of.
    """

    at = models.DateTimeField()
    actor = models.ForeignKey("pool.User", null=True, on_delete=models.PROTECT, related_name="+")
    actor_label = models.CharField(max_length=160)
    request_id = models.CharField(max_length=64, default="", blank=True)
    verb = models.CharField(max_length=40)
    team_id = models.BigIntegerField(null=True)
    pool_id = models.BigIntegerField(null=True)
    node_id = models.BigIntegerField(null=True)
    gpu_id = models.BigIntegerField(null=True)
    reservation_id = models.UUIDField(null=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["reservation_id", "id"],
                condition=models.Q(reservation_id__isnull=False),
                name="event_of_reservation",
            ),
            models.Index(
                fields=["node_id", "id"], condition=models.Q(node_id__isnull=False), name="event_of_node"
            ),
            models.Index(fields=["team_id", "id"], name="event_of_team"),
        ]
