"""The asks as data: what alternatives one has."""

from __future__ import annotations

from pool.core.asks import GpuAsk, MigAsk, ShareAsk, alternatives


def test_an_ask_with_several_profiles_has_one_alternative_for_each() -> None:
    ask = MigAsk(profile_any=("1g.5gb", "1g.10gb"), count=3, models=("A100-40GB",))
    assert alternatives(ask) == (
        MigAsk("1g.5gb", count=3, models=("A100-40GB",)),
        MigAsk("1g.10gb", count=3, models=("A100-40GB",)),
    )


def test_any_other_ask_is_its_own_only_alternative() -> None:
    for ask in (MigAsk("1g.5gb"), MigAsk(memory_mib=1), GpuAsk(count=2), ShareAsk(memory_pct=5)):
        assert alternatives(ask) == (ask,)
