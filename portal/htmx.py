"""Answers a page or only its live part, and what a page's request carries.

One template per page; its live part is a named partial in it. A request by
htmx gets the partial alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render as render_page
from django.utils.cache import patch_vary_headers

if TYPE_CHECKING:
    from django_htmx.middleware import HtmxDetails

    from pool.models import User


class PageRequest(HttpRequest):
    """What a view behind `portal.web.frame.page` is given: somebody is signed in."""

    htmx: HtmxDetails
    user: User


def render(
    request: HttpRequest, template: str, context: Mapping[str, Any], *, part: str = "", status: int = 200
) -> HttpResponse:
    """The whole template, or its partial `part` alone when htmx asks for a page that has one."""
    only_part = part and bool(getattr(request, "htmx", False))
    name = f"{template}#{part}" if only_part else template
    response = render_page(request, name, dict(context), status=status)
    patch_vary_headers(response, ["HX-Request", "Cookie", "Accept-Language"])
    return response
