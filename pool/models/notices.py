"""What people are told: one row a person and matter, read in the inbox and sent by mail."""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """`kind` and `data` (JSON, no sentence) say what it is about; the portal makes the words.

    `key` makes it one per person and matter. `mailed_at`: the mail was handed over, or there is
    no address; until then it is tried again at `try_at`.
    """

    recipient = models.ForeignKey("pool.User", on_delete=models.CASCADE, related_name="messages")
    kind = models.CharField(max_length=40)
    key = models.CharField(max_length=120)
    reservation = models.ForeignKey("pool.Reservation", null=True, blank=True, on_delete=models.CASCADE)
    request = models.ForeignKey("pool.QuotaRequest", null=True, blank=True, on_delete=models.CASCADE)
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)
    mailed_at = models.DateTimeField(null=True, blank=True)
    try_at = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["recipient", "-created_at", "-id"], name="outbox_inbox"),
            models.Index(fields=["try_at"], condition=models.Q(mailed_at=None), name="outbox_to_mail"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["recipient", "key"], name="outbox_once"),
        ]
