"""Asks in words: what, how many, and where the pieces have to lie."""

from __future__ import annotations

import pytest

from pool.core.shapes import Ask, GpuAsk, MigAsk, ShareAsk, Spread, ask_json
from portal.askwords import asked, in_full


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (MigAsk(profile="1g.10gb", count=2), "2 × 1g.10gb"),
        (GpuAsk(("H100-80GB",), count=4, same_node=True), "4 × H100-80GB, all on one node"),
        (GpuAsk(count=8, same_nvlink_domain=True), "8 × whole GPU, all in one NVLink domain"),
        (GpuAsk(count=8, segment=4), "8 × whole GPU, in segments of 4 GPUs"),
        (
            GpuAsk(count=8, segment=4, spread=Spread.NODE),
            "8 × whole GPU, each on another node, in segments of 4 nodes",
        ),
        (
            MigAsk(profile="1g.10gb", node="dgx-01", node_cpu_milli=1500, node_memory_mib=16384),
            "1 × 1g.10gb, on dgx-01, 1.5 CPUs with each, 16 GiB of the node's memory with each",
        ),
        (
            ShareAsk(memory_mib=8192, guaranteed=20, limit=20),
            "1 × share with 8 GiB memory and 20 % compute",
        ),
    ],
)
def test_an_ask_in_full(ask: Ask, words: str) -> None:
    assert in_full(ask_json(ask)) == words
    assert words.startswith(asked(ask_json(ask)))
