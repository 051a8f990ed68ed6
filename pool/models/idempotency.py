"""Answers that were already given to a key."""

from __future__ import annotations

from django.db import models


class IdempotencyKey(models.Model):
    """Unique per principal, method, path and key; kept 24 h, only for successes."""

    principal = models.CharField(max_length=40)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=200)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=201)
    resource = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["principal", "method", "path", "key"], name="idempotency_once"),
        ]
