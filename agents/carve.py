"""Carries a plan out on one GPU, with the record written before and after each change.

Whatever can be done is done, and the first thing that could not is the trouble.
Running processes are left alone: a slice in use stays, and says so. Not here:
the changes of a whole GPU's modes (agents.modes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from agents.gpu import DriverRefusal, Gpu, Instance
from agents.modes import Modes, refuse_users
from agents.parts import Parts
from agents.plan import Plan, in_force, make_plan, overlap, span_of
from agents.record import Made, Whole
from pool.core.wire import Command, Held, Trouble

log = logging.getLogger("agents.carve")

Forbidden = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`trouble` None: the GPU reads back as ordered. `news`: something is other than before."""

    trouble: Trouble | None = None
    news: bool = False


def carve(command: Command, parts: Parts, forbidden: Forbidden) -> Outcome:
    """Bring the GPU to the command's layout and read it back.

    `forbidden` names why this GPU must not be changed now, or None.
    """
    applied = parts.ledger.gpu(command.gpu).applied == command.generation
    if applied and forbidden(command.gpu):
        return Outcome()
    return _Attempt(command, parts, forbidden).run()


class _Attempt:
    def __init__(self, command: Command, parts: Parts, forbidden: Forbidden) -> None:
        self._command = command
        self._uuid = command.gpu
        self._parts = parts
        self._driver = parts.driver
        self._ledger = parts.ledger
        self._forbidden = forbidden
        self._modes = Modes(command.gpu, parts, self._check)
        self._troubles: list[Trouble] = []
        self._news = False

    def run(self) -> Outcome:
        self._tried(self._approach)
        self._tried(self._settle)
        return Outcome(self._troubles[0] if self._troubles else None, self._news or self._modes.news)

    def _tried(self, step: Callable[[], None]) -> bool:
        """A refusal ends its step only; True when there was none."""
        try:
            step()
        except DriverRefusal as refusal:
            self._note(refusal)
            return False
        return True

    def _note(self, refusal: DriverRefusal) -> None:
        self._troubles.append(
            Trouble(
                generation=self._command.generation,
                code=refusal.code,
                nvml=refusal.nvml,
                detail=refusal.detail,
                holders=refusal.holders,
            )
        )

    def _check(self) -> None:
        """Asked before every single change, so that a freeze stops in mid-layout."""
        reason = self._forbidden(self._uuid)
        if reason:
            raise DriverRefusal(reason)

    def _look(self) -> Gpu:
        gpu = self._modes.look()
        if self._command.layout.mig and gpu.mig_capable is False:
            raise DriverRefusal("not_supported", None, "this GPU cannot do MIG")
        if gpu.mig_capable is None or gpu.instances is None:
            raise DriverRefusal("driver", None, "the GPU's mode or instances cannot be read")
        return gpu

    def _plan(self, gpu: Gpu) -> Plan:
        return make_plan(self._command.layout, gpu, self._ledger.gpu(self._uuid))

    def _approach(self) -> None:
        """Ends before beginnings: what nobody wants any more is taken first, and given only what is there."""
        self._check()
        gpu = self._look()
        self._ledger.want(self._command)
        plan = self._plan(gpu)
        self._ledger.drop(self._uuid, plan.gone)
        for _, held in (*plan.keep, *plan.adopt):
            self._tried(partial(self._keep, held))
        self._tried(self._keep_whole)
        standing = self._take(gpu, plan)
        if plan.reset is not None:
            if standing or plan.blocked:
                return
            self._modes.reset(plan.reset)
            plan = self._plan(self._look())
        self._give(plan, standing)

    def _take(self, gpu: Gpu, plan: Plan) -> list[Instance]:
        """Close the ways in, end shares and destroy; returns the instances that could not be destroyed."""
        self._tried(partial(self._hand_out, gpu))
        if self._command.layout.sharing is None:
            self._tried(partial(self._share, gpu))
        standing = [one for one in plan.destroy if not self._tried(partial(self._destroy, one))]
        for _, foreign in plan.blocked:
            name = foreign.profile or foreign.profile_id
            self._note(DriverRefusal("foreign", None, f"{name} at {foreign.start} is not ours"))
        return standing

    def _give(self, plan: Plan, standing: Collection[Instance]) -> None:
        """A mode that does not change, or instances that are not as ordered, leave the rest as it is."""
        layout = self._command.layout
        if plan.compute_mode and not self._tried(partial(self._modes.compute, plan.compute_mode)):
            return
        if plan.switch is not None:
            if standing:
                return
            self._modes.switch(plan.switch)
        for held in plan.create:
            if not any(overlap(held, one) for one in standing):
                self._tried(partial(self._create, held))
        if not plan.blocked:
            self._hand_over()
        gpu = self._modes.look()
        if layout.sharing is not None:
            self._tried(partial(self._share, gpu))  # those that stand are handed out all the same
        self._hand_out(gpu)

    def _keep(self, held: Held) -> None:
        """The instance stays as it is; only its holder on record may change."""
        if _made(held) not in self._ledger.gpu(self._uuid).made:
            self._check()
            self._ledger.put(self._uuid, _made(held))
            self._news = True

    def _destroy(self, instance: Instance) -> None:
        """Until it is gone it stays on record, whatever happens in between. What cannot be read is in use."""
        self._check()
        if instance.processes is None:
            raise DriverRefusal("in_use", None, f"the processes at {instance.start} cannot be read")
        try:
            self._driver.destroy(self._uuid, instance.gi)
        except DriverRefusal as refusal:
            self._modes.name_openers(refusal)
            raise
        self._ledger.drop(self._uuid, [span_of(instance)])
        self._news = True
        log.info("%s: destroyed %s at %d", self._uuid, instance.profile, instance.start)

    def _create(self, held: Held) -> None:
        """The note that it may be there comes first: a crash leaves it, and the next start adopts."""
        assert held.profile_id is not None
        self._check()
        self._ledger.put(self._uuid, _made(held, making=True))
        try:
            self._driver.create(self._uuid, held.profile_id, held.start, held.size)
        except DriverRefusal:
            with suppress(DriverRefusal):
                self._forget_unless_there(held)
            raise
        self._ledger.put(self._uuid, _made(held))
        self._news = True
        log.info("%s: made %s at %d", self._uuid, held.profile, held.start)

    def _forget_unless_there(self, held: Held) -> None:
        there = self._driver.gpu(self._uuid).instances
        if there is not None and span_of(held) not in {span_of(one) for one in there}:
            self._ledger.drop(self._uuid, [span_of(held)])

    def _keep_whole(self) -> None:
        """A whole GPU stays with its owner; only the allocation on record may change."""
        layout = self._command.layout
        if (layout.mig or layout.sharing) and self._ledger.gpu(self._uuid).whole:
            self._check()
            self._ledger.hand(self._uuid, None)  # whoever had it finds others on it when he comes back
        for held in self._wholes():
            record = self._ledger.gpu(self._uuid)
            same = record.whole is not None and record.whole.owner == held.owner
            # A record of an earlier version does not name the holder of what is in force.
            known = record.whole is None and record.applied == self._command.generation
            if same or known or held.adopt:
                self._hand(held)

    def _hand_over(self) -> None:
        """A whole GPU comes to a new owner only when nobody else computes on it any more."""
        for held in self._wholes():
            refuse_users(self._modes.look(), "somebody else is still on it", {held.allocation})
            self._hand(held)

    def _wholes(self) -> list[Held]:
        """Those who hold the whole GPU and do not have it on record yet: one at most."""
        had, layout = self._ledger.gpu(self._uuid).whole, self._command.layout
        whole = not layout.mig and layout.sharing is None
        return [one for one in layout.held if whole and had != _whole(one)]

    def _hand(self, held: Held) -> None:
        self._check()
        self._ledger.hand(self._uuid, _whole(held))
        self._news = True

    def _share(self, gpu: Gpu) -> None:
        self._news |= self._parts.sharing.bring(gpu, self._command.layout, self._check)

    def _hand_out(self, gpu: Gpu) -> None:
        """Whoever holds something that is in force gets in, everybody else out."""
        layout, sharing = self._command.layout, self._parts.sharing
        standing = sharing.standing(gpu, layout) if layout.sharing else ()
        names = in_force(layout, gpu, self._ledger.gpu(self._uuid), standing)
        held = tuple(one for one in layout.held if one.allocation in names)
        settings = {
            one.allocation: sharing.environment(gpu, layout, one.allocation) for one in held if one.share
        }
        self._news |= self._parts.access.bring(gpu, replace(layout, held=held), settings, self._check)

    def _settle(self) -> None:
        """Only what reads back as ordered counts as applied."""
        if self._troubles:
            return
        layout, gpu = self._command.layout, self._look()
        left = self._plan(gpu)
        standing = self._parts.sharing.standing(gpu, layout) if layout.sharing else ()
        there = in_force(layout, gpu, self._ledger.gpu(self._uuid), standing)
        if left.changes_gpu or left.blocked or len(there) < len(layout.held):
            raise DriverRefusal("driver", None, "the GPU does not read back as ordered")
        if self._ledger.gpu(self._uuid).applied != self._command.generation:
            self._news = True
            self._ledger.applied(self._uuid, self._command.generation)


def _made(held: Held, *, making: bool = False) -> Made:
    assert held.profile_id is not None
    return Made(
        profile_id=held.profile_id,
        start=held.start,
        size=held.size,
        allocation=held.allocation,
        owner=held.owner,
        state="making" if making else "made",
        adopted=held.adopt,
    )


def _whole(held: Held) -> Whole:
    return Whole(allocation=held.allocation, owner=held.owner, adopted=held.adopt)
