"""Django's WSGI application; `portal/asgi.py` serves it in a pool of threads."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
