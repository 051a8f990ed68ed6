"""Commands to nodes: the row is the truth, the message is a nudge."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pool.models.reservations import new_id


class Command(models.Model):
    """GPU `gpu` shall look like `layout`; a GPU has at most one open command."""

    class State(models.TextChoices):
        OPEN = "open"
        SETTLED = "settled"
        SUPERSEDED = "superseded"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey("pool.Node", on_delete=models.CASCADE, related_name="commands")
    gpu = models.ForeignKey("pool.Gpu", on_delete=models.CASCADE, related_name="commands")
    generation = models.BigIntegerField()
    layout = models.JSONField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    issued_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    trouble = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["gpu", "generation"], name="command_generation_once"),
            models.UniqueConstraint(fields=["gpu"], condition=Q(state="open"), name="command_one_open"),
        ]
        indexes = [
            models.Index(fields=["node"], condition=Q(state="open"), name="command_open_of_node"),
        ]
