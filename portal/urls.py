"""The site map: pages at the root, REST and the agents' door below /api/v1/, probes, the admin.

Everything below /api/ answers in JSON, also what Django itself refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt

from pool.core.errors import Code
from portal.api import health
from portal.api.problems import nowhere, refuse
from portal.errors import DoorCode

urlpatterns: list[URLPattern | URLResolver] = [
    path("livez", health.live),
    path("readyz", health.ready),
    path("healthz", health.health),
    path("api/v1/", include("portal.api.urls")),
    re_path(r"^api/", csrf_exempt(nowhere)),
    path("admin/", admin.site.urls),
    path("", include("portal.web.urls")),
]


def _fault(code: Code | DoorCode, page: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """What Django refuses before or after a view: a problem below /api/, a page elsewhere."""

    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.path_info.startswith("/api/"):
            return refuse(code)
        return page(request, *args, **kwargs)

    return respond


handler400 = _fault(Code.MALFORMED, defaults.bad_request)
handler403 = _fault(Code.FORBIDDEN, defaults.permission_denied)
handler404 = _fault(Code.NOT_FOUND, defaults.page_not_found)
handler500 = _fault(DoorCode.INTERNAL, defaults.server_error)
