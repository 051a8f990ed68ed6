"""How much of a pool a team may hold at once."""

from __future__ import annotations

from django.db import models


class QuotaLine(models.Model):
    """(team, pool, GPU model; empty = any). Amounts are thousandths of a GPU.

    The concurrent limit is the peak at any instant. No line at all means cap 0.
    """

    team = models.ForeignKey("pool.Team", on_delete=models.CASCADE, related_name="quota_lines")
    pool = models.ForeignKey("pool.Pool", on_delete=models.CASCADE, related_name="quota_lines")
    model = models.CharField(max_length=64, default="", blank=True)
    guaranteed_milli = models.PositiveIntegerField(default=0)
    cap_milli = models.PositiveIntegerField()
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "pool", "model"], name="quota_line_once"),
            models.CheckConstraint(
                condition=models.Q(guaranteed_milli__lte=models.F("cap_milli")),
                name="quota_guaranteed_within_cap",
            ),
        ]
