"""What asks add to the mix of a pool."""

from __future__ import annotations

from pool.core.asked import kinds
from pool.core.asks import GpuAsk, MigAsk, ShareAsk, Spread
from pool.core.mix import Form, Kind


def test_slices_and_shares_count_one_by_one_unless_they_have_to_be_together() -> None:
    assert list(kinds(MigAsk("2g.20gb", count=3))) == [Kind(Form.MIG, 1, profile="2g.20gb")] * 3
    assert list(kinds(MigAsk(memory_mib=9000, compute_slices=2, count=2, same_node=True))) == [
        Kind(Form.MIG, 2, memory_mib=9000, compute_slices=2)
    ]
    assert list(kinds(ShareAsk(memory_pct=25, guaranteed=10, models=("A",)))) == [
        Kind(Form.SHARE, 1, memory_milli=250, compute_milli=100, models=("A",))
    ]


def test_whole_gpus_count_by_node() -> None:
    assert [kind.gpus for kind in kinds(GpuAsk(count=4))] == [4]
    assert [kind.gpus for kind in kinds(GpuAsk(count=20))] == [8, 8, 4]
    assert [kind.gpus for kind in kinds(GpuAsk(count=16, same_node=True))] == [16]
    assert [kind.gpus for kind in kinds(GpuAsk(count=3, spread=Spread.NODE))] == [1, 1, 1]


def test_what_all_pieces_take_of_their_node_is_counted_together() -> None:
    (kind,) = kinds(GpuAsk(count=4, node_cpu_milli=8000, node_memory_mib=100))
    assert (kind.cpu_milli, kind.ram_mib) == (32_000, 400)


def test_of_several_profiles_the_first_stands_for_all() -> None:
    assert [kind.profile for kind in kinds(MigAsk(profile_any=("1g.5gb", "1g.10gb")))] == ["1g.5gb"]
