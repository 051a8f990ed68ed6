"""The site map of the pages."""

from __future__ import annotations

from django.urls import path
from django.views.i18n import set_language

from portal.web import booking, defrag, inventory, overview, reservations, session

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("login/", session.login, name="login"),
    path("logout/", session.logout, name="logout"),
    path("language/", set_language, name="set_language"),
    path("pools/<str:name>/defragmentation/", defrag.defragmentation, name="defragmentation"),
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
]
