"""What was asked and granted, and its rectangles on GPUs with the constraints that guard them."""

from __future__ import annotations

import uuid

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, IntegerRangeField, RangeOperators
from django.contrib.postgres.indexes import GistIndex
from django.db import models
from django.db.models import Deferrable, F, Q
from uuid6 import uuid7

from pool.core.admission import Borrowed
from pool.core.states import State

#: Shares of a GPU carry this tenancy, so that they may overlap one another.
SHARED = uuid.UUID(int=0)


def new_id() -> uuid.UUID:
    """A UUIDv7 as the plain `uuid.UUID` that Django and JSON expect."""
    return uuid.UUID(int=uuid7().int)


class Reservation(models.Model):
    """`period` is what was granted and is never cut; `ended_at` says when it really ended.

    `restartable`: may be placed anew when its hardware fails; then the rest of
    its time is a new reservation, which `continues` the old. `waiting_order` is
    the place of a waiting one in its pool, lowest first. `notice_until` says until
    when it cannot be taken back, once that was announced. `hold_until` is when a held
    one is let go, if nobody has booked it. `imex_channel` is the one channel of one whose
    GPUs are on several nodes of an NVLink domain.

    `preemptible`: what of it is borrowed may be taken back, at `recall_at` once that is
    settled, for `recall_for`; before it the processes get `preempt_signal` and
    `preempt_grace_s`. `window` is when one that waits may lie, `partial_ok`: fewer pieces will do,
    `asks_first`: what it is offered is held until its owner accepts (`from_wait`).
    `approve_by` is when a pending one lapses. `retained_milli_hours` is the price of giving
    it back late; NULL: nothing was decided.
    """

    class Visibility(models.TextChoices):
        TEAM = "team"
        EVERYONE = "everyone"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    team = models.ForeignKey("pool.Team", on_delete=models.PROTECT, related_name="reservations")
    pool = models.ForeignKey("pool.Pool", on_delete=models.PROTECT, related_name="reservations")
    owner = models.ForeignKey("pool.User", on_delete=models.PROTECT, related_name="reservations")
    booked_by = models.ForeignKey("pool.User", on_delete=models.PROTECT, related_name="booked")
    title = models.CharField(max_length=200, default="", blank=True)
    ask = models.JSONField()
    klass = models.CharField(max_length=16)
    state = models.CharField(max_length=20, choices=[(s.value, s.value) for s in State])
    state_reason = models.CharField(max_length=40, default="", blank=True)
    period = DateTimeRangeField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    charge_milli = models.PositiveIntegerField()
    visibility = models.CharField(max_length=8, choices=Visibility.choices, default=Visibility.TEAM)
    restartable = models.BooleanField(default=False)
    continues = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="continued_by"
    )
    waiting_order = models.BigIntegerField(null=True, blank=True)
    notice_until = models.DateTimeField(null=True, blank=True)
    hold_until = models.DateTimeField(null=True, blank=True)
    imex_channel = models.PositiveSmallIntegerField(null=True, blank=True)
    notice_why = models.CharField(max_length=40, default="", blank=True)
    preemptible = models.BooleanField(default=True)
    priority = models.PositiveSmallIntegerField(default=50)
    preempt_signal = models.CharField(max_length=10, default="", blank=True)
    preempt_grace_s = models.PositiveIntegerField(null=True, blank=True)
    recall_at = models.DateTimeField(null=True, blank=True)
    recall_for = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="recalls"
    )
    window = DateTimeRangeField(null=True, blank=True)
    waiting_since = models.DateTimeField(null=True, blank=True)
    partial_ok = models.BooleanField(default=False)
    asks_first = models.BooleanField(default=False)
    from_wait = models.BooleanField(default=False)
    justification = models.TextField(max_length=4000, default="", blank=True)
    approve_by = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        "pool.User", null=True, blank=True, on_delete=models.PROTECT, related_name="decided_reservations"
    )
    retained_milli_hours = models.PositiveIntegerField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    #: No column: whether this row answers an Idempotency-Key that was used before.
    replayed = False
    #: No column: what of it is borrowed, where that was just decided.
    borrowed: Borrowed = ()

    class Meta:
        indexes = [
            models.Index(fields=["team", "-created_at", "-id"], name="reservation_team"),
            models.Index(
                "pool",
                F("period__startswith"),
                condition=Q(state=State.SCHEDULED),
                name="reservation_to_start",
            ),
            models.Index(
                "pool",
                F("period__endswith"),
                condition=Q(state__in=[State.SCHEDULED, State.STARTING, State.ACTIVE]),
                name="reservation_to_end",
            ),
            models.Index(fields=["pool"], condition=Q(state=State.STARTING), name="reservation_starting"),
            models.Index(
                fields=["pool", "recall_at"],
                condition=Q(recall_at__isnull=False),
                name="reservation_recalled",
            ),
            models.Index(
                fields=["pool", "approve_by"],
                condition=Q(state=State.PENDING_APPROVAL),
                name="reservation_to_approve",
            ),
            models.Index("team", F("period__endswith"), name="reservation_of_team_until"),
            models.Index(
                fields=["pool", "waiting_order"], condition=Q(state=State.WAITING), name="reservation_waiting"
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(period__isempty=False), name="reservation_period_not_empty"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in State]), name="reservation_state"),
            models.UniqueConstraint(
                fields=["booked_by"],
                condition=Q(state=State.HELD, from_wait=False),
                name="reservation_one_hold",
            ),
            models.CheckConstraint(condition=Q(priority__lte=100), name="reservation_priority"),
            models.CheckConstraint(
                condition=Q(recall_at=None) | Q(preemptible=True), name="reservation_recalled_if_preemptible"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.title or self.id} ({self.state})"


class Allocation(models.Model):
    """A rectangle on one GPU: a span of memory slices x a half-open time.

    `blocked` is what the GPU is blocked for: `period` plus preparation and
    clean-up. `tenancy` is this row's id for an exclusive allocation (a MIG
    instance, or a whole GPU) and SHARED for a share. `holds` is written only by
    services.reservations._move and _end_window.

    `wanted_at` says since when the GPU's wanted layout has it; None while its
    start waits, and then it has never been on the GPU. It is in the layout if
    it is wanted, holds, and its reservation is starting or active.

    `left_at` says that it was given up: its GPU was out of reach, and the
    booking was placed anew before anything of this was seen. Nobody is shown
    it; the row stays because a node that returns may report what it made for it.

    A share has its memory and compute (guaranteed and at most, in percent) in
    the `share_` columns; `mps_user` is whose account its MPS server runs for,
    NULL where several may share one. `adopted`: it was foreign use before. `cpu_milli`
    and `ram_mib` are what it takes of its node beside the GPU.
    """

    class Kind(models.TextChoices):
        MIG = "mig"
        GPU = "gpu"
        SHARE = "share"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    reservation = models.ForeignKey(Reservation, on_delete=models.PROTECT, related_name="allocations")
    gpu = models.ForeignKey("pool.Gpu", on_delete=models.PROTECT, related_name="allocations")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    model = models.CharField(max_length=64)
    profile = models.CharField(max_length=32, default="", blank=True)
    profile_id = models.IntegerField(null=True, blank=True)
    span = IntegerRangeField()
    period = DateTimeRangeField()
    blocked = DateTimeRangeField()
    tenancy = models.UUIDField()
    holds = models.BooleanField()
    takes_media = models.BooleanField(default=False)
    media_group = models.SmallIntegerField(null=True, blank=True)
    share_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    share_compute_pct = models.PositiveSmallIntegerField(null=True, blank=True)
    share_limit_pct = models.PositiveSmallIntegerField(null=True, blank=True)
    mps_user = models.CharField(max_length=64, null=True, blank=True)
    adopted = models.BooleanField(default=False)
    cpu_milli = models.PositiveIntegerField(default=0)
    ram_mib = models.PositiveIntegerField(default=0)
    charge_milli = models.PositiveIntegerField()
    mig_uuid = models.CharField(max_length=96, default="", blank=True)
    wanted_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    cleaned_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["gpu"], condition=Q(holds=True), name="allocation_held_on"),
            GistIndex(fields=["blocked"], condition=Q(holds=True), name="allocation_blocks"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(span__isempty=False)
                & Q(period__isempty=False)
                & Q(blocked__isempty=False)
                & Q(blocked__startswith__lte=F("period__startswith")),
                name="allocation_rectangle",
            ),
            models.CheckConstraint(
                condition=Q(tenancy=F("id")) | Q(tenancy=SHARED), name="allocation_tenancy"
            ),
            models.CheckConstraint(
                condition=Q(cleaned_at__isnull=True) | Q(holds=False), name="allocation_clean_is_free"
            ),
            models.CheckConstraint(
                condition=Q(left_at__isnull=True) | Q(holds=False), name="allocation_left_is_free"
            ),
            ExclusionConstraint(
                name="allocation_no_overlap",
                index_type="gist",
                expressions=[
                    ("gpu", RangeOperators.EQUAL),
                    ("span", RangeOperators.OVERLAPS),
                    ("blocked", RangeOperators.OVERLAPS),
                    ("tenancy", RangeOperators.NOT_EQUAL),
                ],
                condition=Q(holds=True),
                deferrable=Deferrable.IMMEDIATE,
            ),
            models.CheckConstraint(
                condition=Q(
                    kind="share",
                    tenancy=SHARED,
                    share_memory_mib__isnull=False,
                    share_memory_mib__gte=1,
                    share_compute_pct__isnull=False,
                    share_compute_pct__range=(0, 100),
                    share_limit_pct__isnull=False,
                    share_limit_pct__range=(1, 100),
                )
                | (~Q(kind="share") & Q(tenancy=F("id"), share_memory_mib=None, mps_user=None)),
                name="allocation_share",
            ),
            ExclusionConstraint(
                name="allocation_one_mps_user",
                index_type="gist",
                expressions=[
                    ("gpu", RangeOperators.EQUAL),
                    ("blocked", RangeOperators.OVERLAPS),
                    ("mps_user", RangeOperators.NOT_EQUAL),
                ],
                condition=Q(holds=True, mps_user__isnull=False),
                deferrable=Deferrable.IMMEDIATE,
            ),
            ExclusionConstraint(
                name="allocation_one_media",
                index_type="gist",
                expressions=[("gpu", RangeOperators.EQUAL), ("blocked", RangeOperators.OVERLAPS)],
                condition=Q(holds=True, takes_media=True),
                deferrable=Deferrable.IMMEDIATE,
            ),
            ExclusionConstraint(
                name="allocation_media_group",
                index_type="gist",
                expressions=[
                    ("gpu", RangeOperators.EQUAL),
                    ("blocked", RangeOperators.OVERLAPS),
                    ("media_group", RangeOperators.NOT_EQUAL),
                ],
                condition=Q(holds=True, media_group__isnull=False),
                deferrable=Deferrable.IMMEDIATE,
            ),
        ]
