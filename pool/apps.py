"""The one Django app of the portal."""

from __future__ import annotations

from django.apps import AppConfig


class PoolConfig(AppConfig):
    name = "pool"
    label = "pool"
    default_auto_field = "django.db.models.BigAutoField"
