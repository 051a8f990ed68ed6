"""How much of a pool a team may hold at once: lines that stand, requests for more, and what was granted.

Amounts are thousandths of a GPU (milli) and of a GPU-hour, memory in MiB.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField, DateTimeRangeField
from django.db import models


class QuotaLine(models.Model):
    """(team, pool, GPU model; empty = any).

    The concurrent limit is the peak at any instant. No line at all means cap 0.
    `unit` is in what the guaranteed must be obtainable: any slices, whole GPUs, or
    groups of `unit_size` GPUs of one node. `lend_milli` of it others may borrow, None: all.
    `memory_mib` caps GPU memory, `budget_milli_hours` what is reserved in a month; None: not limited.

    The last five say what one booking may be: `kinds` (empty: all), the largest piece in
    milli, how many GPUs, how long, and how long ahead; None: not limited.
    """

    class Unit(models.TextChoices):
        SLOTS = "slots"
        GPU = "gpu"
        NODE = "node"

    team = models.ForeignKey("pool.Team", on_delete=models.CASCADE, related_name="quota_lines")
    pool = models.ForeignKey("pool.Pool", on_delete=models.CASCADE, related_name="quota_lines")
    model = models.CharField(max_length=64, default="", blank=True)
    guaranteed_milli = models.PositiveIntegerField(default=0)
    unit = models.CharField(max_length=8, choices=Unit.choices, default=Unit.SLOTS)
    unit_size = models.PositiveSmallIntegerField(default=1)
    cap_milli = models.PositiveIntegerField()
    lend_milli = models.PositiveIntegerField(null=True, blank=True)
    weight = models.PositiveSmallIntegerField(default=1)
    memory_mib = models.PositiveBigIntegerField(null=True, blank=True)
    budget_milli_hours = models.PositiveBigIntegerField(null=True, blank=True)
    kinds = ArrayField(models.CharField(max_length=8), default=list, blank=True)
    largest_milli = models.PositiveIntegerField(null=True, blank=True)
    most_gpus = models.PositiveIntegerField(null=True, blank=True)
    longest_minutes = models.PositiveIntegerField(null=True, blank=True)
    ahead_minutes = models.PositiveIntegerField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "pool", "model"], name="quota_line_once"),
            models.CheckConstraint(
                condition=models.Q(guaranteed_milli__lte=models.F("cap_milli")),
                name="quota_guaranteed_within_cap",
            ),
            models.CheckConstraint(
                condition=models.Q(lend_milli=None) | models.Q(lend_milli__lte=models.F("guaranteed_milli")),
                name="quota_lends_what_it_has",
            ),
            models.CheckConstraint(condition=models.Q(unit_size__gte=1), name="quota_unit_size"),
        ]


class QuotaRequest(models.Model):
    """A team asks for more of a pool for a time; what an approver decides stands in its `QuotaGrant`.

    `valid` and the amounts are what was asked and stay as they were. `renews` is the request
    that this one prolongs.
    """

    class State(models.TextChoices):
        SUBMITTED = "submitted"
        APPROVED = "approved"
        DENIED = "denied"
        WITHDRAWN = "withdrawn"
        ACTIVE = "active"
        EXPIRED = "expired"

    team = models.ForeignKey("pool.Team", on_delete=models.PROTECT, related_name="quota_requests")
    pool = models.ForeignKey("pool.Pool", on_delete=models.PROTECT, related_name="quota_requests")
    model = models.CharField(max_length=64, default="", blank=True)
    guaranteed_milli = models.PositiveIntegerField(default=0)
    cap_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(null=True, blank=True)
    budget_milli_hours = models.PositiveBigIntegerField(null=True, blank=True)
    valid = DateTimeRangeField()
    justification = models.TextField(max_length=4000)
    state = models.CharField(max_length=12, choices=State.choices, default=State.SUBMITTED)
    requested_by = models.ForeignKey("pool.User", on_delete=models.PROTECT, related_name="quota_requests")
    created_at = models.DateTimeField()
    decided_by = models.ForeignKey(
        "pool.User", null=True, blank=True, on_delete=models.PROTECT, related_name="decided_requests"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(max_length=4000, default="", blank=True)
    renews = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="renewed_by"
    )
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [
            models.Index(fields=["team", "-created_at", "-id"], name="quota_request_team"),
            models.Index(
                fields=["created_at"], condition=models.Q(state="submitted"), name="quota_request_open"
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(valid__isempty=False), name="quota_request_valid"),
            models.CheckConstraint(
                condition=models.Q(state__in=["submitted", "withdrawn"])
                | models.Q(decided_at__isnull=False, decided_by__isnull=False),
                name="quota_request_decided",
            ),
        ]


class QuotaComment(models.Model):
    """A word about a request, from its team or an approver."""

    request = models.ForeignKey(QuotaRequest, on_delete=models.CASCADE, related_name="comments")
    author = models.ForeignKey("pool.User", on_delete=models.PROTECT)
    at = models.DateTimeField()
    text = models.TextField(max_length=4000)


class QuotaGrant(models.Model):
    """What a team has on top of its lines while `valid` lasts; grants add up."""

    request = models.OneToOneField(
        QuotaRequest, null=True, blank=True, on_delete=models.PROTECT, related_name="grant"
    )
    team = models.ForeignKey("pool.Team", on_delete=models.PROTECT, related_name="quota_grants")
    pool = models.ForeignKey("pool.Pool", on_delete=models.PROTECT, related_name="quota_grants")
    model = models.CharField(max_length=64, default="", blank=True)
    guaranteed_milli = models.PositiveIntegerField(default=0)
    cap_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(default=0)
    budget_milli_hours = models.PositiveBigIntegerField(default=0)
    valid = DateTimeRangeField()
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [models.Index(fields=["pool", "team"], name="quota_grant_of")]
        constraints = [
            models.CheckConstraint(condition=models.Q(valid__isempty=False), name="quota_grant_valid"),
            models.CheckConstraint(
                condition=models.Q(guaranteed_milli__lte=models.F("cap_milli")),
                name="quota_grant_guaranteed_within_cap",
            ),
        ]
