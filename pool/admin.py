"""The tables to look at, for admins. Nothing can be changed here: every write is a service's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from pool import models
from pool.core.roles import GlobalRole

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[Any]
else:
    _Base = admin.ModelAdmin


class ReadOnly(_Base):
    """Shows rows to admins; adds, changes and deletes nothing. Secrets, even hashed, stay out."""

    list_per_page = 50
    show_full_result_count = False
    actions = None
    exclude = ("password", "secret_hash", "code_hash", "broker_hash")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_admin(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_admin(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _is_admin(request: HttpRequest) -> bool:
    user = request.user
    return isinstance(user, models.User) and user.is_active and GlobalRole.ADMIN in user.roles


_COLUMNS: dict[type[Any], tuple[str, ...]] = {
    models.User: ("username", "kind", "roles", "is_active"),
    models.Team: ("name", "title", "parent"),
    models.Membership: ("team", "user", "role"),
    models.Token: ("public_id", "user", "team", "name", "expires_at", "revoked_at", "last_used_at"),
    models.Pool: ("name", "title", "change", "frozen"),
    models.Node: ("name", "pool", "agent", "received_at", "unknown_since", "frozen", "agent_frozen"),
    models.Gpu: ("uuid", "node", "index", "model", "use", "managed", "frozen", "generation"),
    models.GpuState: ("gpu", "mig", "generation", "lost", "received_at"),
    models.Blocker: ("gpu", "span", "kind", "since", "detail"),
    models.Fault: ("gpu", "kind", "xid", "action", "since", "last_at", "count", "good", "cleared_at"),
    models.Outage: ("reservation", "gpu", "period", "reason"),
    models.QuotaLine: ("team", "pool", "model", "guaranteed_milli", "cap_milli"),
    models.Reservation: ("id", "team", "pool", "owner", "state", "state_reason", "period"),
    models.Allocation: ("id", "reservation", "gpu", "profile", "span", "period", "holds", "left_at"),
    models.Command: ("id", "gpu", "generation", "state", "issued_at", "settled_at", "attempts"),
    models.Event: ("id", "at", "actor_label", "verb", "reservation_id"),
    models.Lane: ("name", "holder", "until", "beat_at", "took_ms", "error"),
    models.SetAside: ("lane", "subject", "error", "at", "retry_at", "tries"),
}

for _model, _columns in _COLUMNS.items():
    admin.site.register(_model, type("Admin", (ReadOnly,), {"list_display": _columns}))
