"""Requests for quota as somebody may see them, what was said about them, and whose they are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet

from pool.core.errors import Code, Refusal
from pool.core.roles import Action, TeamRole, allows
from pool.models import OutboxMessage, QuotaComment, QuotaRequest, Reservation, User
from pool.queries import teams

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

#: States in which somebody may still decide.
OPEN = (QuotaRequest.State.SUBMITTED,)
#: What was granted, be it over: these can be renewed.
GRANTED = (QuotaRequest.State.APPROVED, QuotaRequest.State.ACTIVE, QuotaRequest.State.EXPIRED)


def visible_to(user: User | AnonymousUser) -> QuerySet[QuotaRequest]:
    """Those of teams in which the user has a role; all for who decides on them or sees everything."""
    rows = QuotaRequest.objects.select_related("team", "pool", "requested_by", "decided_by", "grant")
    if not user.is_active or user.pk is None:
        return rows.none()
    if decides(user) or teams.sees_all(user):
        return rows
    return rows.filter(team__in=teams.reach(user))


def one(user: User | AnonymousUser, pk: int) -> QuotaRequest:
    """The request, if `user` may see it; else NOT_FOUND."""
    row = visible_to(user).filter(pk=pk).first()
    if row is None:
        raise Refusal(Code.NOT_FOUND)
    return row


def decides(user: User | AnonymousUser) -> bool:
    """Whether a global role lets this user decide on requests and bookings."""
    return allows(Action.DECIDE, None, teams.global_roles(user))


def open_to_decide(user: User | AnonymousUser) -> QuerySet[QuotaRequest]:
    """What waits for an approver, the oldest first; nothing for who is none."""
    rows = visible_to(user) if decides(user) else QuotaRequest.objects.none()
    return rows.filter(state__in=OPEN).order_by("created_at", "pk")


def comments(request: QuotaRequest) -> QuerySet[QuotaComment]:
    """What was said about it, oldest first."""
    return request.comments.select_related("author").order_by("pk")


def history(request: QuotaRequest) -> list[QuotaRequest]:
    """What it renews, and what that renews, and so on: the newest first."""
    found: list[QuotaRequest] = []
    above = request.renews_id
    while above is not None and all(row.pk != above for row in found):
        row = QuotaRequest.objects.select_related("requested_by", "decided_by", "grant").get(pk=above)
        found.append(row)
        above = row.renews_id
    return found


def pending(user: User | AnonymousUser) -> QuerySet[Reservation]:
    """Bookings that wait for an approver, by when they lapse; nothing for who is none."""
    rows = Reservation.objects.filter(state="pending_approval")
    rows = rows.select_related("team", "pool", "owner", "booked_by")
    return rows.order_by("approve_by", "pk") if decides(user) else rows.none()


def asked_of(user: User | AnonymousUser) -> QuerySet[Reservation]:
    """Bookings that an approver may look at: those that wait for one, and those that had one."""
    rows = Reservation.objects.select_related("team", "pool", "owner", "booked_by", "decided_by")
    if not decides(user):
        return rows.none()
    return rows.filter(Q(state="pending_approval") | Q(approve_by__isnull=False))


def is_own(user: User, asked_by: tuple[User, ...]) -> bool:
    """Whether it was asked by this user, or by a service account of a team that the user leads."""
    if any(one.pk == user.pk for one in asked_by):
        return True
    machines = [one.pk for one in asked_by if one.kind == User.Kind.SERVICE]
    if not machines:
        return False
    led = [team for team, role in teams.reach(user).items() if role == TeamRole.LEAD]
    return User.objects.filter(pk__in=machines, memberships__team__in=led).exists()


def to_move_on(pool_id: int, now: datetime) -> QuerySet[QuotaRequest]:
    """Those whose grant begins or is over, though their state does not say so yet."""
    begins = Q(state=QuotaRequest.State.APPROVED, grant__valid__startswith__lte=now)
    over = Q(state=QuotaRequest.State.ACTIVE, grant__valid__endswith__lte=now)
    return QuotaRequest.objects.filter(begins | over, pool=pool_id).order_by("pk")


def to_remind(name: str, before: timedelta, since: datetime, now: datetime) -> QuerySet[QuotaRequest]:
    """Granted ones whose grant ends after `since` and at most `before` from now, and that nobody was told of.

    Left out are those that something granted goes on from, and grants that last no longer than `before`.
    """
    span = F("grant__valid__endswith") - F("grant__valid__startswith")
    told = OutboxMessage.objects.filter(request=OuterRef("pk"), kind="grant_ends", key__endswith=f":{name}")
    granted = (QuotaRequest.State.APPROVED, QuotaRequest.State.ACTIVE)
    rows = QuotaRequest.objects.annotate(lasts=ExpressionWrapper(span, DurationField())).filter(
        ~Exists(told),
        state__in=granted,
        grant__valid__endswith__gt=since,
        grant__valid__endswith__lte=now + before,
        lasts__gt=before,
    )
    rows = rows.exclude(renewed_by__state__in=granted)
    return rows.select_related("team", "pool", "requested_by", "grant").order_by("pk")
