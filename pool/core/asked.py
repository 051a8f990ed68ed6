"""What asks say about what a pool is usually asked for: each ask as kinds of a mix."""

from __future__ import annotations

from collections.abc import Iterator

from pool.core.asks import Ask, GpuAsk, MigAsk, ShareAsk
from pool.core.mix import WHOLE, Form, Kind

#: A larger ask for whole GPUs counts as several of nodes with so many.
_NODE = 8
#: Thousandths of a GPU in each percent.
_PCT = WHOLE // 100


def kinds(ask: Ask) -> Iterator[Kind]:
    """The ask as the kinds that a mix counts: one for each part that has to lie on one node."""
    parts = [ask.count]
    if ask.spread is not None or not (ask.same_node or isinstance(ask, GpuAsk)):
        parts = [1] * ask.count
    elif isinstance(ask, GpuAsk) and not ask.same_node:
        whole, rest = divmod(ask.count, _NODE)
        parts = [_NODE] * whole + [rest] * bool(rest)
    for pieces in parts:
        yield _kind(ask, pieces)


def _kind(ask: Ask, pieces: int) -> Kind:
    cpu, ram = pieces * ask.node_cpu_milli, pieces * ask.node_memory_mib
    if isinstance(ask, MigAsk):
        return Kind(
            Form.MIG,
            pieces,
            memory_mib=ask.memory_mib or 0,
            profile=ask.profile or (ask.profile_any[0] if ask.profile_any else ""),
            compute_slices=ask.compute_slices or 0,
            models=ask.models,
            cpu_milli=cpu,
            ram_mib=ram,
        )
    if isinstance(ask, ShareAsk):
        return Kind(
            Form.SHARE,
            pieces,
            memory_milli=_PCT * (ask.memory_pct or 0),
            compute_milli=_PCT * ask.guaranteed,
            memory_mib=ask.memory_mib or 0,
            models=ask.models,
            cpu_milli=cpu,
            ram_mib=ram,
        )
    return Kind(Form.WHOLE, pieces, models=ask.models, cpu_milli=cpu, ram_mib=ram)
