"""Signing in and out."""

from __future__ import annotations

from django.conf import settings
from django.contrib import auth
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal.htmx import render


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "POST"])
def login(request: HttpRequest) -> HttpResponse:
    """Ask for name and password; `next` is kept, and followed only within this site."""
    wanted = _within(request, request.POST.get("next") or request.GET.get("next", ""))
    if request.user.is_authenticated:
        return HttpResponseRedirect(wanted)
    if request.method != "POST":
        return _form(request, wanted)
    name, password = request.POST.get("username", ""), request.POST.get("password", "")
    user = auth.authenticate(request, username=name.replace("\0", ""), password=password)
    if user is None:
        refused = _("User name and password do not fit together. Both are case-sensitive.")
        return _form(request, wanted, name, refused)
    auth.login(request, user)
    return _in_their_language(request, HttpResponseRedirect(wanted))


@require_POST
def logout(request: HttpRequest) -> HttpResponse:
    auth.logout(request)
    return HttpResponseRedirect(settings.LOGOUT_REDIRECT_URL or "/")


def _form(request: HttpRequest, wanted: str, name: str = "", refused: str = "") -> HttpResponse:
    context = {"next": wanted, "username": name, "refused": refused, "demo": settings.DEMO}
    return render(request, "session/login.html", context, status=422 if refused else 200)


def _within(request: HttpRequest, address: str) -> str:
    """The address if it stays on this site, else the start page: nobody is sent elsewhere from a login."""
    safe = url_has_allowed_host_and_scheme(
        address, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return address if safe else "/"


def _in_their_language(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """A browser that has chosen no language gets the one in the user's profile."""
    language = getattr(request.user, "language", "")
    if language and check_for_language(language) and settings.LANGUAGE_COOKIE_NAME not in request.COOKIES:
        response.set_cookie(settings.LANGUAGE_COOKIE_NAME, language, max_age=365 * 86_400, samesite="Lax")
    return response
