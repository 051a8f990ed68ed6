"""Which models could serve an ask: by what they are, not by what is on them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pool.core.fleet import of_views
from pool.core.period import Period
from pool.core.placement import Busy, Use
from pool.core.serving import serving
from pool.core.shapes import GpuAsk, MigAsk
from tests.core.worlds import gpu

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def test_it_names_each_model_with_what_one_piece_counts_there() -> None:
    whole_day = Period(NOW, NOW + timedelta(days=1))
    full = Busy(0, 8, whole_day, None, "booked")
    fleet = of_views(
        [
            gpu(1, "H100-80GB", use=Use.MIG),
            gpu(2, "A100-80GB", use=Use.MIG, busy=(full,)),
            gpu(3, "H100-80GB", use=Use.WHOLE),
        ]
    )
    assert serving(fleet, MigAsk(profile="3g.40gb"), NOW) == {"H100-80GB": 500, "A100-80GB": 500}
    assert serving(fleet, MigAsk(profile_any=("1g.10gb", "3g.40gb")), NOW) == {
        "H100-80GB": 125,
        "A100-80GB": 125,
    }
    assert serving(fleet, GpuAsk(), NOW) == {"H100-80GB": 1000}
    assert serving(fleet, GpuAsk(models=("B200-180GB",)), NOW) == {}
