"""Decides how a GPU gets from what it is to what it shall be. No driver, no disk.

What is not on record as ours is foreign: it is never destroyed, and what it
overlaps is not made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from agents.gpu import Gpu, Instance
from agents.record import GpuRecord, Span
from pool.core.wire import Held, Layout, ShareSeen

#: The compute mode in which a GPU takes no process.
PROHIBITED = "prohibited"


@dataclass(frozen=True, slots=True)
class Plan:
    """`switch` None leaves the MIG mode. `keep` pairs an instance with its next holder.

    `blocked` pairs what cannot be made, None for the mode itself, with the foreign
    instance in the way. `gone` are spans on record that are no longer there. `adopt`
    pairs a foreign instance with the holder it becomes ours for. `reset` is the number
    of the reset that is due: nothing else can be planned before it. `compute_mode` None
    leaves that mode.
    """

    switch: bool | None = None
    keep: tuple[tuple[Instance, Held], ...] = ()
    adopt: tuple[tuple[Instance, Held], ...] = ()
    destroy: tuple[Instance, ...] = ()
    create: tuple[Held, ...] = ()
    blocked: tuple[tuple[Held | None, Instance], ...] = ()
    gone: tuple[Span, ...] = ()
    reset: int | None = None
    compute_mode: str | None = None

    @property
    def changes_gpu(self) -> bool:
        """Also a record that does not know yet what is to become ours."""
        settled = self.switch is None and self.reset is None and self.compute_mode is None
        return not settled or bool(self.destroy or self.create or self.adopt)


def span_of(one: Instance | Held) -> Span:
    """The key of an instance: profile id, start and size. -1 stands for the whole GPU."""
    return (-1 if one.profile_id is None else one.profile_id, one.start, one.size)


def overlap(one: Instance | Held, other: Instance | Held) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def make_plan(layout: Layout, gpu: Gpu, record: GpuRecord) -> Plan:
    """The plan from `gpu` to `layout`; `gpu.mig` and `gpu.instances` must have been read."""
    instances = gpu.instances or ()
    ours = tuple(one for one in instances if record.owns(span_of(one)))
    foreign = tuple(one for one in instances if not record.owns(span_of(one)))
    there = {span_of(one) for one in instances}
    gone = tuple(made.span for made in record.made if made.span not in there)
    mode = _compute_mode(layout, gpu, record)
    if layout.reset > record.reset and not layout.held:
        blocked = tuple((None, one) for one in foreign)
        return Plan(destroy=ours, blocked=blocked, gone=gone, reset=layout.reset)
    if not layout.mig:
        blocked = tuple((None, one) for one in foreign)
        switch = False if gpu.mig and not foreign else None
        return Plan(switch=switch, destroy=ours, blocked=blocked, gone=gone, compute_mode=mode)
    slices = _slices(layout, gpu, record, ours, foreign)
    return replace(slices, switch=None if gpu.mig else True, gone=gone, compute_mode=mode)


def _slices(
    layout: Layout, gpu: Gpu, record: GpuRecord, ours: tuple[Instance, ...], foreign: tuple[Instance, ...]
) -> Plan:
    wanted = {span_of(held): held for held in layout.held if held.profile_id is not None}
    keep = tuple((one, wanted[span_of(one)]) for one in ours if _stays(one, wanted, record))
    adopt = tuple((one, wanted[span_of(one)]) for one in foreign if _adopted(one, wanted))
    settled = {span_of(one) for one, _ in (*keep, *adopt)}
    missing = [held for span, held in wanted.items() if span not in settled]
    others = [one for one in foreign if span_of(one) not in settled]
    return Plan(
        keep=keep,
        adopt=adopt,
        destroy=tuple(one for one in ours if span_of(one) not in settled),
        create=tuple(held for held in missing if not _first_over(held, others)),
        blocked=tuple((held, over) for held in missing if (over := _first_over(held, others))),
    )


def _compute_mode(layout: Layout, gpu: Gpu, record: GpuRecord) -> str | None:
    """Closed to processes while nobody holds anything, where that is wanted; afterwards as it was before.

    What keeps shares apart sets the mode itself. In MIG mode there is none to set.
    """
    now = gpu.health.compute_mode
    if now is None or gpu.mig:
        return None
    if layout.prohibited and not layout.held and not layout.mig:
        return None if now == PROHIBITED else PROHIBITED
    return record.compute_mode if now == PROHIBITED else None


def _stays(one: Instance, wanted: dict[Span, Held], record: GpuRecord) -> bool:
    """An instance is kept for the same owner, and only whole: a crash may have cost its compute part."""
    held, made = wanted.get(span_of(one)), record.owns(span_of(one))
    return held is not None and made is not None and made.owner == held.owner and one.mig_uuid is not None


def _adopted(one: Instance, wanted: dict[Span, Held]) -> bool:
    held = wanted.get(span_of(one))
    return held is not None and held.adopt and one.mig_uuid is not None


def _first_over(held: Held, instances: Iterable[Instance]) -> Instance | None:
    return next((one for one in instances if overlap(one, held)), None)


def in_force(
    layout: Layout, gpu: Gpu, record: GpuRecord, shares: Iterable[ShareSeen] = ()
) -> tuple[str, ...]:
    """The allocations of `layout` that hold on the GPU as it is now; `shares` are those that stand."""
    if layout.sharing:
        standing = {one.allocation for one in shares}
        return tuple(held.allocation for held in layout.held if held.allocation in standing)
    if not layout.mig:
        ready = gpu.mig is False or gpu.mig_capable is False
        handed = [one.allocation for one in layout.held if record.has_whole(one.allocation)]
        return tuple(handed) if ready else ()
    whole = {span_of(one) for one in gpu.instances or () if one.mig_uuid is not None}
    made = {one.span: one.allocation for one in record.made if one.state == "made" and one.span in whole}
    return tuple(held.allocation for held in layout.held if made.get(span_of(held)) == held.allocation)
