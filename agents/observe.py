"""What there is to see of the node: its GPUs with the record of that moment, and whose everything is.

Not here: when it is looked, and what is told of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agents.attribution import attribute
from agents.gpu import DriverRefusal, Gpu, Inventory
from agents.parts import Parts
from agents.plan import in_force
from agents.record import GpuRecord, Record
from pool.core.wire import Held, ShareSeen

log = logging.getLogger("agents.observe")

#: So often it is looked until what is seen and what is on record are of one moment.
LOOKS = 3


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, its processes attributed, with what is on record of it and what is in force on it."""

    gpu: Gpu
    record: GpuRecord
    shares: tuple[ShareSeen, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def in_force(self) -> tuple[Held, ...]:
        wanted = self.record.wanted.layout.held if self.record.wanted else ()
        return tuple(one for one in wanted if one.allocation in self.held)


@dataclass(frozen=True, slots=True)
class Seen:
    """The node at one moment. `inventory` holds the same GPUs as `cards`."""

    inventory: Inventory
    record: Record
    cards: tuple[Card, ...]

    @property
    def in_force(self) -> dict[str, Held]:
        """What holds anywhere on the node now, by allocation."""
        return {held.allocation: held for card in self.cards for held in card.in_force}

    @property
    def held(self) -> dict[str, tuple[str, ...]]:
        """Allocations in force, by GPU UUID."""
        return {card.gpu.uuid: card.held for card in self.cards}

    @property
    def shares(self) -> dict[str, tuple[ShareSeen, ...]]:
        """By GPU UUID."""
        return {card.gpu.uuid: card.shares for card in self.cards}


class Observer:
    """Looks for the watch. `last` is what was seen last, None before the first look."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inventory = Inventory(None, ())
        self.last: Seen | None = None

    def look(self) -> Seen:
        inventory, record = self._look()
        seen = self._understand(inventory, record)
        marked = self._parts.busy.mark(seen.inventory.gpus)
        cards = tuple(replace(card, gpu=gpu) for card, gpu in zip(seen.cards, marked, strict=True))
        self.last = Seen(replace(inventory, gpus=marked), record, cards)
        return self.last

    def again(self, seen: Seen) -> Seen:
        """The same sight in the light of what the portal has just told of the stays."""
        self.last = self._understand(seen.inventory, seen.record)
        return self.last

    def whose(self, uuid: str, gi: int | None) -> str | None:
        """The allocation on an instance, or on a GPU that only one holds, as last seen."""
        for card in self.last.cards if self.last else ():
            if card.gpu.uuid != uuid:
                continue
            for one in card.gpu.instances or ():
                if one.gi == gi and (made := card.record.owns((one.profile_id, one.start, one.size))):
                    return made.allocation
            return card.held[0] if gi is None and len(card.held) == 1 else None
        return None

    def _understand(self, inventory: Inventory, record: Record) -> Seen:
        cards = tuple(self._cards(inventory, record))
        return Seen(replace(inventory, gpus=tuple(card.gpu for card in cards)), record, cards)

    def _cards(self, inventory: Inventory, record: Record) -> Iterator[Card]:
        stays = self._parts.stays.all()
        for one in inventory.gpus:
            own = record.gpus.get(one.uuid, GpuRecord())
            gpu = attribute(one, own, stays)
            if gpu.lost or own.wanted is None:
                yield Card(gpu, own)
                continue
            layout = own.wanted.layout
            shares = self._parts.sharing.standing(gpu, layout) if layout.sharing else ()
            yield Card(gpu, own, shares, in_force(layout, gpu, own, shares))

    def _look(self) -> tuple[Inventory, Record]:
        """What the driver shows, with the record of that moment; while it does not answer, what was
        last seen, as lost.

        A GPU that is being carved may show one moment and its record the next: then its instances count
        as not read, since one of them could pass for another's.
        """
        ledger = self._parts.ledger
        for _ in range(LOOKS):
            before, seen, record = ledger.record, self._ask(), ledger.record
            moved = {
                one.uuid for one in seen.gpus if before.gpus.get(one.uuid) is not record.gpus.get(one.uuid)
            }
            if not moved:
                break
        gpus = tuple(replace(one, instances=None) if one.uuid in moved else one for one in seen.gpus)
        return replace(seen, gpus=gpus), record

    def _ask(self) -> Inventory:
        driver = self._parts.driver
        try:
            driver.open()
            self._inventory = driver.look()
        except DriverRefusal as refusal:
            log.error("The driver does not answer: %s", refusal)
            driver.close()
            lost = tuple(replace(gpu, lost=True) for gpu in self._inventory.gpus)
            self._inventory = Inventory(None, lost)
        return self._inventory
