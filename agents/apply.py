"""The applier: one thread that brings GPUs to their newest wanted layout, one slot a GPU.

Commands come from the broker and with the answers to reports; both only fill a
slot. What is refused is tried again, later and later, as long as it is wanted.
While the portal is away only what newly arrives is tried: the agent changes
nothing on its own then, and neither repairs nor restores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agents.carve import Outcome, carve
from agents.gpu import Gpu
from agents.observe import Card
from agents.parts import Parts
from agents.plan import make_plan, span_of
from pool.core.wire import WIRE, Answer, Command, Trouble

log = logging.getLogger("agents.apply")

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
#: Freezing and managing are switches: after them nothing should wait for a long pause to end.
SWITCH_PAUSE_S = 1.0


@dataclass(slots=True)
class Slot:
    """The newest wanted layout of one GPU that is not in force yet. `due` is monotonic.

    `offered`: it has just arrived, and may be tried without the portal. `sight` is
    how the GPU looked after the last try.
    """

    command: Command
    due: float = 0.0
    tries: int = 0
    offered: bool = False
    sight: object = None


class Applier:
    """`changed` is set when there is something new to report."""

    def __init__(self, node: str, parts: Parts) -> None:
        self.changed = threading.Event()
        self._node = node
        self._parts = parts
        self._ledger = parts.ledger
        self._slots: dict[str, Slot] = {}
        self._troubles: dict[str, Trouble] = {}
        self._turn = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="applier", daemon=True)

    def start(self) -> None:
        """Begin with what was wanted before the start or the boot, as soon as the portal has answered."""
        self.restore()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Let the change that is under way end, if it does in time; a cut one is on record."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def restore(self) -> None:
        with self._turn:
            for uuid, gpu in self._ledger.record.gpus.items():
                if gpu.wanted:
                    self._slots.setdefault(uuid, Slot(gpu.wanted))
            self._hurry(self._slots.values())
            self._turn.notify_all()

    def offer(self, command: Command) -> bool:
        """Fill the GPU's slot; False for what must not be done: older, another node's, a newer wire."""
        if command.node != self._node or command.wire > WIRE:
            log.warning("Command %s is not for this agent", command.id)
            return False
        with self._turn:
            newest = self._newest(command.gpu)
            if newest and command.generation < newest.generation:
                return False
            if newest and command.generation == newest.generation and command.layout != newest.layout:
                log.warning("%s: a second layout of generation %d", command.gpu, command.generation)
                return False
            slot = self._slots.get(command.gpu)
            if slot is None or command.generation > slot.command.generation:
                self._slots[command.gpu] = Slot(command, offered=True)
                self._turn.notify_all()
            return True

    def heed(self, answer: Answer, report_s: float) -> None:
        """Take all that an answer says at once, so that nothing begins on half of it.

        After an outage no pause of before it counts.
        """
        stays = self._parts.stays
        with self._turn:
            was_away = not stays.here()
            stays.heed(answer.stays, answer.policy, report_s)
            for command in answer.commands:
                self.offer(command)
            self.keep_rules(answer.manage, answer.frozen)
            if was_away:
                self._hurry(self._slots.values())
            self._turn.notify_all()

    def keep_rules(self, manage: Sequence[str], frozen: bool) -> None:
        """What the portal allows here: the GPUs that may be changed, and whether any may."""
        with self._turn:
            if self._ledger.keep_rules(manage, frozen):
                self._hurry(self._slots.values())
                self._turn.notify_all()

    def _hurry(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.due, slot.tries = 0.0, 0

    def trouble(self, uuid: str) -> Trouble | None:
        return self._troubles.get(uuid)

    def compare(self, cards: Sequence[Card]) -> None:
        """Fill the slot of a GPU that no longer is as it was applied, and try again where what was in
        the way is no longer as it was."""
        for card in cards:
            if card.gpu.lost:
                continue
            self._look_again(card)
            if self._strayed(card):
                self._refill(card.gpu.uuid)

    def _look_again(self, card: Card) -> None:
        with self._turn:
            slot = self._slots.get(card.gpu.uuid)
            if slot is None or not slot.tries:
                return
            sight = _sight(card.gpu)
            if slot.sight is not None and slot.sight != sight:
                self._hurry([slot])
                self._turn.notify_all()
            slot.sight = sight

    def _strayed(self, card: Card) -> bool:
        """Somebody else changed it, or what keeps its shares apart has died."""
        gpu, record = card.gpu, self._ledger.gpu(card.gpu.uuid)
        if gpu.mig_capable is None or gpu.instances is None or not record.wanted:
            return False
        if self._ledger.forbidden(gpu.uuid) or record.applied != record.generation:
            return False
        plan = make_plan(record.wanted.layout, gpu, record)
        return plan.changes_gpu or bool(plan.gone) or any(one.state == "degraded" for one in card.shares)

    def _refill(self, uuid: str) -> None:
        wanted = self._ledger.gpu(uuid).wanted
        with self._turn:
            if wanted and uuid not in self._slots:
                self._slots[uuid] = Slot(wanted)
                self._turn.notify_all()

    def _newest(self, uuid: str) -> Command | None:
        slot = self._slots.get(uuid)
        wanted = self._ledger.gpu(uuid).wanted
        known = [command for command in (slot and slot.command, wanted) if command]
        return max(known, key=lambda command: command.generation, default=None)

    def _run(self) -> None:
        self._start_units()
        while (slot := self._next()) is not None:
            outcome = self._carve(slot.command)
            new_trouble = outcome.trouble != self._troubles.get(slot.command.gpu)
            if new_trouble and outcome.trouble:
                log.warning("%s: %s", slot.command.gpu, outcome.trouble)
            self._settle(slot, outcome.trouble)
            if new_trouble or outcome.news:
                self.changed.set()

    def _next(self) -> Slot | None:
        """Wait for a slot that is due; None at the end."""
        with self._turn:
            while not self._stopping:
                slot = min(self._allowed(), key=lambda slot: slot.due, default=None)
                wait_s = None if slot is None else slot.due - time.monotonic()
                if slot is not None and wait_s is not None and wait_s <= 0:
                    return slot
                self._turn.wait(wait_s)
            return None

    def _allowed(self) -> list[Slot]:
        here = self._parts.stays.here()
        return [slot for slot in self._slots.values() if here or slot.offered]

    def _start_units(self) -> None:
        """What an earlier agent stopped must run again, whatever is wanted of the GPUs."""
        try:
            self._parts.units.start_again()
        except Exception:
            log.exception("What was paused could not be started again")

    def _carve(self, command: Command) -> Outcome:
        try:
            return carve(command, self._parts, self._ledger.forbidden)
        except Exception as error:  # a full disk, say: the thread must live on
            log.exception("%s: generation %d failed", command.gpu, command.generation)
            trouble = Trouble(generation=command.generation, code="driver", detail=repr(error))
            return Outcome(trouble)

    def _settle(self, slot: Slot, trouble: Trouble | None) -> None:
        uuid = slot.command.gpu
        with self._turn:
            if trouble is None:
                self._troubles.pop(uuid, None)
            else:
                self._troubles[uuid] = trouble
            if self._slots.get(uuid) is not slot:
                return
            if trouble is None:
                del self._slots[uuid]
                return
            slot.due = time.monotonic() + pause_s(trouble.code, slot.tries)
            slot.tries += 1
            slot.offered, slot.sight = False, None


def _sight(gpu: Gpu) -> object:
    """What can be in the way of a change, to be compared with itself later."""
    instances = None if gpu.instances is None else [(span_of(one), one.gi) for one in gpu.instances]
    pids = None if gpu.processes is None else sorted(one.pid for one in gpu.processes)
    return gpu.mig, gpu.mig_pending, instances, pids


def pause_s(code: str, tries: int) -> float:
    """Seconds until the next try after `tries` earlier ones."""
    if code in ("frozen", "observe"):
        return SWITCH_PAUSE_S
    return min(FIRST_PAUSE_S * 2.0 ** min(tries, 10), LONGEST_PAUSE_S)
