"""Changes what holds for a GPU as a whole: its MIG mode, its compute mode, and its reset.

Each is done only on a GPU that nobody uses, and only with the services of the
machine paused that hold GPUs open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from agents.attribution import attribute
from agents.gpu import DriverRefusal, Gpu
from agents.openers import openers
from agents.parts import Parts
from agents.plan import PROHIBITED
from pool.core.wire import Process

log = logging.getLogger("agents.modes")


class Modes:
    """One GPU's. `check` raises when nothing may be changed now; `news`: something was."""

    def __init__(self, uuid: str, parts: Parts, check: Callable[[], None]) -> None:
        self._uuid = uuid
        self._parts = parts
        self._check = check
        self.news = False

    def look(self) -> Gpu:
        """Read now, with whose its processes are."""
        gpu = self._parts.driver.gpu(self._uuid)
        return attribute(gpu, self._parts.ledger.gpu(self._uuid), self._parts.stays.all())

    def switch(self, on: bool) -> None:
        """Bring it into MIG mode or out of it. Raises `DriverRefusal`, with who is in the way."""
        why = "the MIG mode cannot change"
        self._check()
        # Asked with a process in the way, the driver would keep the change pending for the next reset.
        refuse_users(self.look(), why)
        with self._parts.units.paused(self._check):
            refuse_users(self.look(), why, system=False)
            try:
                self._parts.driver.set_mig_mode(self._uuid, on)
            except DriverRefusal as refusal:
                if refusal.code != "reset_required" or not self._comes_true(on, refusal):
                    self.name_openers(refusal)
                    raise
        self.news = True
        log.info("%s: MIG mode %s", self._uuid, "on" if on else "off")

    def _comes_true(self, on: bool, refusal: DriverRefusal) -> bool:
        """Reset the GPU, which nobody uses, where the driver cannot do it itself, as in a virtual machine.

        What forbids that is said beside the refusal.
        """
        try:
            self._reset()
        except DriverRefusal as second:
            refusal.detail += f"; {second.detail or second}"
            refusal.holders = refusal.holders or second.holders
            return False
        return self.look().mig is on

    def compute(self, mode: str) -> None:
        """Close it to processes, or open it as it was before; that is on record first."""
        self._check()
        if mode == PROHIBITED:
            before = self._parts.driver.gpu(self._uuid).health.compute_mode
            self._parts.ledger.closed(self._uuid, before)
        self._parts.driver.set_compute_mode(self._uuid, mode)
        if mode != PROHIBITED:
            self._parts.ledger.closed(self._uuid, None)
        self.news = True
        log.info("%s: compute mode %s", self._uuid, mode)

    def reset(self, number: int) -> None:
        """Reset it and read it back. Its own instances are gone already; nobody may be on it."""
        why = "the GPU cannot be reset"
        self._check()
        refuse_users(self.look(), why)
        with self._parts.units.paused(self._check):
            refuse_users(self.look(), why, system=False)
            try:
                self._reset()
            except DriverRefusal as refusal:
                self.name_openers(refusal)
                raise
        self.look()
        self._parts.ledger.reset(self._uuid, number)
        self._parts.log.add("reset", f"reset {number}", gpu=self._uuid, number=number)
        self.news = True
        log.info("%s: reset %d", self._uuid, number)

    def _reset(self) -> None:
        """The tool refuses while anybody has the GPU open, and that includes this agent."""
        self._check()
        with self._parts.driver.away():
            self._parts.reset(self._uuid)

    def name_openers(self, refusal: DriverRefusal) -> None:
        """Where no call of the driver names who is in the way, those are it that no call names at all."""
        if refusal.code not in ("in_use", "reset_required") or refusal.holders:
            return
        try:
            gpu = self.look()
        except DriverRefusal:  # the first refusal is the one to tell
            return
        lists = (gpu.processes, *(one.processes for one in gpu.instances or ()))
        named = {one.pid for listed in lists for one in listed or ()}
        found = openers(gpu.minor, self._parts.place.root)
        refusal.holders = tuple(one for one in found if one.pid not in named)


def refuse_users(gpu: Gpu, why: str, but: Collection[str | None] = (), *, system: bool = True) -> None:
    """Raise in_use while somebody other than the allocations `but` is on the GPU.

    With `system` the machine's own programs do not count. What cannot be read counts as in use.
    """
    if gpu.processes is None:
        raise DriverRefusal("in_use", None, f"{why}: its processes cannot be read")
    users = _users(gpu.processes, but, system)
    if users:
        raise DriverRefusal("in_use", None, why, users)


def _users(found: tuple[Process, ...], but: Collection[str | None], system: bool) -> tuple[Process, ...]:
    counting = [one for one in found if not (system and one.system)]
    return tuple(one for one in counting if one.allocation is None or one.allocation not in but)
