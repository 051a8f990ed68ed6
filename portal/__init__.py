"""The Django project and its doors. Importing it makes its Celery app the current one."""

from __future__ import annotations

from portal.celery import app as celery_app

__all__ = ["celery_app"]
