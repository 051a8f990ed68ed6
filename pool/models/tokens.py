"""API tokens of people and service accounts. Node tokens: inventory."""

from __future__ import annotations

from django.db import models


class Token(models.Model):
    """`gpp_<public_id>_<secret>`; only a peppered hash of the secret is kept."""

    public_id = models.CharField(max_length=16, unique=True)
    secret_hash = models.CharField(max_length=64)
    user = models.ForeignKey("pool.User", on_delete=models.CASCADE, related_name="tokens")
    team = models.ForeignKey(
        "pool.Team", on_delete=models.CASCADE, related_name="tokens", null=True, blank=True
    )
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
