"""Small pools to place into, and a placement by brute force to compare with.

The brute force shares no code with the placement: it looks at every instant
and applies the rules as the database's constraints state them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypothesis import strategies as st

from pool.core import mig
from pool.core.mig import Media, Profile
from pool.core.period import Period
from pool.core.placement import Busy, GpuView, Pick, Use
from pool.core.shapes import Ask, GpuAsk, MigAsk

T = TypeVar("T")

DAWN = datetime(2027, 3, 1, tzinfo=UTC)
HOURS = 8

#: (GPU, profile or None for the whole GPU, start).
Place = tuple[GpuView, Profile | None, int]


def at(hour: float) -> datetime:
    return DAWN + timedelta(hours=hour)


def span(start: float, end: float | None) -> Period:
    return Period(at(start), None if end is None else at(end))


def profile(model: str, name: str) -> Profile:
    found = mig.models()[model].profile(name)
    assert found is not None
    return found


def gpu(
    number: int = 0,
    model: str = "H100-80GB",
    *,
    node: str = "node-a",
    use: Use = Use.MIG,
    busy: Sequence[Busy] = (),
    why: str | None = None,
) -> GpuView:
    known = mig.models()[model]
    return GpuView(
        id=number,
        uuid=f"GPU-{number}",
        node_id=sum(map(ord, node)),
        node=node,
        index=number,
        model=model,
        memory_mib=known.total_memory_mib,
        use=use,
        grid=known.grid,
        profiles=known.profiles,
        busy=tuple(busy),
        usable=why is None,
        why=why,
    )


def taken(p: Profile, start: int, period: Period, tenancy: str = "somebody") -> Busy:
    """An allocation of that profile."""
    return Busy(start, p.size, period, p.media, tenancy, p.profile_id)


def wall(start: int, size: int, period: Period) -> Busy:
    """Something in the way that is no instance we know."""
    return Busy(start, size, period, None, "blocker")


# --- Worlds drawn by hypothesis -----------------------------------------------

# One number is one thing with all its details: drawing detail by detail takes longer than placing.
codes = st.integers(0, (1 << 23) - 1)


class Dial:
    """Reads choices out of a number, one after another."""

    def __init__(self, number: int) -> None:
        self.number = number

    def turn(self, options: Sequence[T]) -> T:
        self.number, which = divmod(self.number, len(options))
        return options[which]


def a_period(dial: Dial) -> Period:
    start = dial.turn(range(HOURS))
    length = dial.turn([*range(1, HOURS + 1), None])
    return span(start, None if length is None else start + length)


def a_busy(dial: Dial, model: str, use: Use) -> Busy:
    known = mig.models()[model]
    period = a_period(dial)
    if use is Use.WHOLE:
        return wall(0, known.grid, period)
    if dial.turn(range(5)) == 0:
        start = dial.turn(range(known.grid))
        return wall(start, dial.turn(range(1, known.grid - start + 1)), period)
    p = dial.turn(known.profiles)
    return taken(p, dial.turn(p.starts), period)


def a_gpu(number: int, code: int, model: str) -> GpuView:
    dial = Dial(code)
    kind = dial.turn([model, model, model, "A100-40GB"])
    use = dial.turn([Use.MIG, Use.MIG, Use.WHOLE])
    node = dial.turn(["node-a", "node-b"])
    return gpu(number, kind, node=node, use=use, why=dial.turn([None] * 7 + ["unknown"]))


def a_pool(model: str, gpu_codes: Sequence[int], busy_codes: Sequence[int]) -> list[GpuView]:
    out = [a_gpu(number, code, model) for number, code in enumerate(gpu_codes)]
    for code in busy_codes:
        dial = Dial(code)
        n = dial.turn(range(len(out)))
        out[n] = replace(out[n], busy=(*out[n].busy, a_busy(dial, out[n].model, out[n].use)))
    return out


def an_ask(model: str, code: int) -> Ask:
    dial = Dial(code)
    count = dial.turn([1, 1, 2, 3, 4])
    same_node = dial.turn([False, True])
    models = dial.turn([(), (), (model,)])
    node = dial.turn([None, None, None, None, None, "node-a"])
    kind = dial.turn(["named", "named", "minimum", "whole"])
    if kind == "whole":
        return GpuAsk(models, dial.turn([None, 30_000, 90_000]), count, same_node, node)
    p = dial.turn(mig.models()[model].profiles)
    if kind == "named":
        return MigAsk(p.name, None, None, count, models, same_node, node)
    return MigAsk(None, p.memory_mib, p.compute_slices, count, models, same_node, node)


periods = codes.map(lambda code: a_period(Dial(code)))


def busy_lists(model: str, most: int) -> st.SearchStrategy[list[Busy]]:
    return st.lists(codes.map(lambda code: a_busy(Dial(code), model, Use.MIG)), max_size=most)


#: A pool of one to four GPUs, most of them of one model; an ask; a period.
Case = tuple[list[GpuView], Ask, Period]


def cases(model: str) -> st.SearchStrategy[Case]:
    return st.builds(
        lambda gpus, busy, ask, period: (a_pool(model, gpus, busy), an_ask(model, ask), period),
        st.lists(codes, min_size=1, max_size=4),
        st.lists(codes, max_size=10),
        codes,
        periods,
    )


# --- Brute force --------------------------------------------------------------


def brute_fit(gpus: Sequence[GpuView], ask: Ask, period: Period) -> list[Place] | None:
    """Some set of places that serves the ask, by trying them all; None when there is none."""
    if not ask.same_node:
        return _grow([], list(_places(gpus, ask)), ask.count, period)
    for node in {g.node for g in gpus}:
        found = _grow([], [p for p in _places(gpus, ask) if p[0].node == node], ask.count, period)
        if found:
            return found
    return None


def _grow(got: list[Place], rest: list[Place], count: int, period: Period) -> list[Place] | None:
    if len(got) == count:
        return got
    for i, place in enumerate(rest):
        if len(rest) - i < count - len(got):
            return None
        if legal([*got, place], period):
            found = _grow([*got, place], rest[i + 1 :], count, period)
            if found:
                return found
    return None


def _places(gpus: Sequence[GpuView], ask: Ask) -> Iterator[Place]:
    """Every place on every GPU that the ask allows, whatever is there."""
    for g in gpus:
        if not g.usable or ask.node not in (None, g.node) or (ask.models and g.model not in ask.models):
            continue
        if isinstance(ask, GpuAsk):
            if g.use is Use.WHOLE and (ask.memory_mib or 0) <= (g.memory_mib or (ask.memory_mib is None)):
                yield g, None, 0
            continue
        p = _wanted(g, ask)
        if g.use is Use.MIG and p is not None:
            yield from ((g, p, start) for start in p.starts)


def _wanted(g: GpuView, ask: MigAsk) -> Profile | None:
    def enough(p: Profile) -> bool:
        memory = ask.memory_mib is None or (p.memory_mib or 0) >= ask.memory_mib
        return memory and p.compute_slices >= (ask.compute_slices or 0)

    if ask.profile:
        return next((p for p in g.profiles if p.name == ask.profile and enough(p)), None)
    plain = [p for p in g.profiles if enough(p) and not set("+-") & set(p.name)]
    return min(plain, key=lambda p: (p.size, p.compute_slices, p.memory_mib or 0), default=None)


def legal(places: Sequence[Place], period: Period) -> bool:
    """Whether these places can be held together over all of `period`."""
    views = {g.id: g for g, _, _ in places}
    return all(
        _legal_at(view, [(p, s) for g, p, s in places if g.id == view.id], instant)
        for view in views.values()
        for instant in _instants(view, period)
    )


def _instants(g: GpuView, period: Period) -> set[datetime]:
    """Every instant at which something begins: between two of them nothing changes."""
    return {period.start} | {b.period.start for b in g.busy if period.contains(b.period.start)}


def _legal_at(g: GpuView, new: Sequence[tuple[Profile | None, int]], instant: datetime) -> bool:
    there = [b for b in g.busy if b.period.contains(instant)]
    slices = {s for b in there for s in range(b.start, b.start + b.size)}
    for p, start in new:
        mine = range(g.grid) if p is None else range(start, start + p.size)
        if slices & set(mine) or mine.stop > g.grid:
            return False
        slices |= set(mine)
    instances = [(b.media, b.profile_id, False) for b in there]
    instances += [(p.media, p.profile_id, True) for p, _ in new if p is not None]
    counts = Counter(profile_id for _, profile_id, _ in instances)
    if any(counts[p.profile_id] > p.max_instances for p, _ in new if p is not None):
        return False
    return not any(
        (mine or theirs) and columns_exclude(a, b)
        for i, (a, _, mine) in enumerate(instances)
        for b, _, theirs in instances[i + 1 :]
    )


#: Media -> the columns (takes_media, media_group) of an allocation's row.
COLUMNS: dict[Media | None, tuple[bool, int | None]] = {
    None: (False, None),
    Media.NONE: (False, None),
    Media.DEFAULT: (False, 0),
    Media.EXT: (True, 0),
    Media.ALL: (True, 1),
}


def columns_exclude(a: Media | None, b: Media | None) -> bool:
    """Whether the two exclusion constraints refuse two rows of one GPU at one time."""
    (takes_a, group_a), (takes_b, group_b) = COLUMNS[a], COLUMNS[b]
    return (takes_a and takes_b) or (group_a is not None and group_b is not None and group_a != group_b)


def as_places(picks: Sequence[Pick], gpus: Sequence[GpuView]) -> list[Place]:
    views = {g.id: g for g in gpus}
    return [(views[p.gpu_id], p.profile, p.start) for p in picks]


def shuffled(gpus: Sequence[GpuView], rotate: int) -> list[GpuView]:
    """The same pool in another order, its busy spans too."""
    turned = [*gpus[rotate:], *gpus[:rotate]][::-1]
    return [replace(g, busy=g.busy[::-1]) for g in turned]
