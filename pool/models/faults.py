"""What went wrong with hardware, and the time for which bookings could not use theirs."""

from __future__ import annotations

from django.contrib.postgres.fields import DateTimeRangeField
from django.db import models
from django.db.models import Q


class Fault(models.Model):
    """A hardware fault of a GPU, open until `cleared_at`.

    `xid` is the driver's number, None for what no Xid told (`kind`: lost, remap).
    `action` is core.health.Action as it was decided. `count` tells how often it
    came while open, `good` the good probes in a row since it last did. An open
    fault whose action takes the GPU out of use has a Blocker of kind health.
    """

    gpu = models.ForeignKey("pool.Gpu", on_delete=models.CASCADE, related_name="faults")
    kind = models.CharField(max_length=16)
    xid = models.PositiveIntegerField(null=True, blank=True)
    action = models.CharField(max_length=16)
    since = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    good = models.PositiveIntegerField(default=0)
    reset = models.PositiveIntegerField(null=True, blank=True)
    cleared_at = models.DateTimeField(null=True, blank=True)
    cleared_by = models.ForeignKey("pool.User", null=True, blank=True, on_delete=models.SET_NULL)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "kind", "xid"],
                condition=Q(cleared_at=None),
                nulls_distinct=False,
                name="fault_open_once",
            ),
        ]


class Outage(models.Model):
    """Time for which a reservation could not use its GPU; it is not charged. Open while it lasts."""

    reservation = models.ForeignKey("pool.Reservation", on_delete=models.CASCADE, related_name="outages")
    gpu = models.ForeignKey("pool.Gpu", on_delete=models.CASCADE, related_name="outages")
    period = DateTimeRangeField()
    reason = models.CharField(max_length=40)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["reservation", "gpu"],
                condition=Q(period__endswith=None),
                name="outage_open_once",
            ),
            models.CheckConstraint(condition=Q(period__isempty=False), name="outage_period_not_empty"),
        ]
