"""What every page shares: somebody is signed in, times in their zone, and refusals as pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django_htmx.http import HttpResponseClientRedirect

from pool.core.calendar import zone as zone_named
from pool.core.errors import Code, Refusal
from pool.queries import teams
from portal.errors import problem
from portal.htmx import PageRequest, render

View = Callable[..., HttpResponse]

#: Tag of the messages that tell of a success; gpupool.css colours it.
GOOD = "good"


def page(view: View) -> View:
    """A view for whoever is signed in, in their zone; its refusals become pages."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return _to_login(request)
        with timezone.override(zone_of(request)):
            try:
                return view(request, *args, **kwargs)
            except Refusal as refusal:
                return refused(request, refusal)

    return answer


def zone_of(request: HttpRequest) -> ZoneInfo:
    """The viewer's zone: their own, else that of a team of theirs, else UTC."""
    user = request.user
    names = [getattr(user, "zone", "")]
    if not names[0]:
        names += [team.zone for team in teams.to_book_for(user)[:1]]
    for name in names:
        try:
            return zone_named(name)
        except Refusal:
            continue
    return ZoneInfo("UTC")


def refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """The page of a refusal that no form shows beside its fields."""
    if refusal.code == Code.NOT_FOUND:
        raise Http404
    if refusal.code == Code.FORBIDDEN:
        raise PermissionDenied
    shown = problem(refusal)
    return render(request, "refused.html", {"problem": shown}, status=shown.status)


def done(request: PageRequest, sentence: str) -> None:
    """Say on the next page that it worked."""
    messages.success(request, sentence, extra_tags=GOOD)


def _to_login(request: HttpRequest) -> HttpResponse:
    """To the login and back; a live part whose session has ended takes its whole page there."""
    if getattr(request, "htmx", None):
        current = request.htmx.current_url_abs_path or "/"  # type: ignore[attr-defined]
        response = HttpResponseClientRedirect(_login_address(current))
        response.status_code = 401
        return response
    path = request.get_full_path() if request.method == "GET" else "/"
    return HttpResponseRedirect(_login_address(path))


def _login_address(path: str) -> str:
    return f"{settings.LOGIN_URL}?{urlencode({'next': path})}"
