"""Where a node keeps what holders need, if not at the usual place."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pool", "0004_quota_and_fairness"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="run_folder",
            field=models.CharField(blank=True, default="", max_length=200),
        ),
    ]
