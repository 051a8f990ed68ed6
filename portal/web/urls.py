"""The site map of the pages."""

from __future__ import annotations

from django.urls import path
from django.views.i18n import set_language

from portal.web import (
    approvals,
    booking,
    defrag,
    inbox,
    inventory,
    make_room,
    overview,
    quota,
    quota_requests,
    reservations,
    session,
)

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("login/", session.login, name="login"),
    path("logout/", session.logout, name="logout"),
    path("language/", set_language, name="set_language"),
    path("pools/<str:name>/defragmentation/", defrag.defragmentation, name="defragmentation"),
    path("pools/<str:name>/room/", make_room.make_room, name="make-room"),
    path("nodes/", inventory.nodes, name="nodes"),
    path("nodes/<str:name>/", inventory.node, name="node"),
    path("nodes/<str:name>/freeze/", inventory.freeze_node, name="freeze-node"),
    path("nodes/<str:name>/access/", inventory.set_access, name="node-access"),
    path("agents/", inventory.agents, name="agents"),
    path("gpus/<str:uuid>/", inventory.gpu, name="gpu"),
    path("gpus/<str:uuid>/freeze/", inventory.freeze_gpu, name="freeze-gpu"),
    path("gpus/<str:uuid>/manage/", inventory.manage_gpu, name="manage-gpu"),
    path("gpus/<str:uuid>/return/", inventory.return_gpu, name="return-gpu"),
    path("gpus/<str:uuid>/adopt/", inventory.adopt_gpu, name="adopt-gpu"),
    path("book/", booking.book, name="book"),
    path("book/room/", booking.room, name="room"),
    path("reservations/", reservations.reservations, name="reservations"),
    path("reservations/<uuid:pk>/", reservations.reservation, name="reservation"),
    path("reservations/<uuid:pk>/confirm/", reservations.confirm, name="confirm"),
    path("reservations/<uuid:pk>/extend/", reservations.extend, name="extend"),
    path("reservations/<uuid:pk>/release/", reservations.release, name="release"),
    path("inbox/", inbox.inbox, name="inbox"),
    path("inbox/read/", inbox.read_all, name="read-all"),
    path("inbox/<int:pk>/", inbox.notice, name="notice"),
    path("quota/", quota.quota, name="quota"),
    path("quota/ask/", quota_requests.ask, name="ask-quota"),
    path("quota/requests/", quota_requests.quota_requests, name="quota-requests"),
    path("quota/requests/<int:pk>/", quota_requests.quota_request, name="quota-request"),
    path("quota/requests/<int:pk>/comment/", quota_requests.comment, name="comment-request"),
    path("quota/requests/<int:pk>/withdraw/", quota_requests.withdraw, name="withdraw-request"),
    path("quota/requests/<int:pk>/approve/", quota_requests.approve, name="approve-request"),
    path("quota/requests/<int:pk>/deny/", quota_requests.deny, name="deny-request"),
    path("quota/lines/", quota.find_line, name="find-line"),
    path("quota/lines/<str:pool>/<str:team>/", quota.line, name="quota-line"),
    path("pools/<str:name>/promised/", quota.promised, name="promised"),
    path("approvals/", approvals.approvals, name="approvals"),
    path("approvals/<uuid:pk>/approve/", approvals.approve, name="approve-booking"),
    path("approvals/<uuid:pk>/deny/", approvals.deny, name="deny-booking"),
]
