"""The portal's Celery application: JSON only, queues `due`, `reclaim` and `slow`, no results.

Its settings are the CELERY_ ones of portal/settings.py; the tasks are in pool/tasks.py.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
# These would silently win over the settings.
for _name in (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
):
    os.environ.pop(_name, None)

app = Celery("gpupool")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["pool"])
# `current_app` is kept by thread; without this the web server's threads would see an unconfigured one.
app.set_default()


@celeryd_init.connect
def _wait_for_work(conf: Any = None, **_: object) -> None:
    """A worker waits for messages, so a sender's short socket time-out would only disconnect it."""
    conf.broker_transport_options = {"socket_connect_timeout": 5, "socket_keepalive": True}


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Django's LOGGING is in force already; Celery shall not add its own handlers."""
