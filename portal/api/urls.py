"""Addresses below /api/v1/. A node name, GPU or id that cannot exist is no address at all."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path
from django.views.decorators.csrf import csrf_exempt

from portal.api import (
    adoption,
    defrag,
    explanations,
    faults,
    inbox,
    inventory,
    offers,
    quota,
    quota_requests,
    reports,
    reservations,
    room,
    waiting,
)
from portal.api.problems import nowhere

_NAME = r"(?P<name>[a-z0-9-]{1,63})"

urlpatterns: list[URLPattern] = [
    path("pools", inventory.Pools.as_view()),
    re_path(rf"^pools/{_NAME}/defragmentation$", defrag.Defragmentation.as_view()),
    re_path(rf"^pools/{_NAME}/promised$", quota.Promised.as_view()),
    re_path(rf"^pools/{_NAME}/room$", room.Room.as_view()),
    path("nodes", inventory.Nodes.as_view()),
    re_path(rf"^nodes/{_NAME}$", inventory.Node.as_view()),
    path("gpus", inventory.Gpus.as_view()),
    re_path(r"^gpus/(?P<uuid>[A-Za-z0-9-]{1,64})$", inventory.Gpu.as_view()),
    re_path(r"^gpus/(?P<uuid>[A-Za-z0-9-]{1,64})/adopt$", adoption.Adopt.as_view()),
    re_path(r"^gpus/(?P<uuid>[A-Za-z0-9-]{1,64})/faults$", faults.Faults.as_view()),
    re_path(r"^gpus/(?P<uuid>[A-Za-z0-9-]{1,64})/return$", faults.Return.as_view()),
    path("profiles", inventory.Profiles.as_view()),
    path("offers", offers.Offers.as_view()),
    path("reservations", reservations.Reservations.as_view()),
    path("reservations/hold", reservations.Hold.as_view()),
    path("reservations/<uuid:pk>", reservations.Reservation.as_view(), name="api-reservation"),
    path("reservations/<uuid:pk>/confirm", reservations.Confirm.as_view()),
    path("reservations/<uuid:pk>/extend", reservations.Extend.as_view()),
    path("reservations/<uuid:pk>/release", reservations.Release.as_view()),
    path("reservations/<uuid:pk>/events", reservations.Events.as_view()),
    path("reservations/<uuid:pk>/explanation", explanations.Explanation.as_view()),
    path("waiting", waiting.Waiting.as_view()),
    path("reservations/<uuid:pk>/approve", quota_requests.ApproveBooking.as_view()),
    path("reservations/<uuid:pk>/deny", quota_requests.DenyBooking.as_view()),
    path("approvals", quota_requests.Pending.as_view()),
    path("quota", quota.Quota.as_view()),
    path("quota/requests", quota_requests.Requests.as_view()),
    path("quota/requests/<int:pk>", quota_requests.OneRequest.as_view()),
    path("quota/requests/<int:pk>/comments", quota_requests.Comments.as_view()),
    path("quota/requests/<int:pk>/withdraw", quota_requests.Withdraw.as_view()),
    path("quota/requests/<int:pk>/approve", quota_requests.Approve.as_view()),
    path("quota/requests/<int:pk>/deny", quota_requests.Deny.as_view()),
    path("inbox", inbox.Inbox.as_view()),
    path("inbox/<int:pk>/read", inbox.Read.as_view()),
    path("agents/join", reports.join),
    path("agents/reports", reports.report),
    re_path(r"", csrf_exempt(nowhere)),
]
