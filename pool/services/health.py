"""Faults of cards: what a report tells of them takes a GPU out of use, and good probes bring it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pool.core.observed import Seen
from pool.models import Gpu
from pool.services.telemetry_desk import Desk

if TYPE_CHECKING:
    from pool.services.telemetry_happened import Heard


def listen(desk: Desk, gpu: Gpu, one: Seen, xids: Sequence[Heard]) -> None:
    """A step of telemetry.record, for each GPU of a report: `xids` are those told for the first time."""
