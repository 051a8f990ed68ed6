"""What one agent is put together from, for those who need more than one part of it.

Nothing is decided here; each part tells in its own module what it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from agents.access import Access
from agents.busy import FirstBusy
from agents.config import Config
from agents.driver import Driver
from agents.ending import Ending
from agents.happened import Log
from agents.hooks import Hooks
from agents.lines import Lines
from agents.place import Place
from agents.record import Ledger
from agents.reset import Reset
from agents.sharing import Sharing
from agents.stays import Stays
from agents.units import Units


@dataclass(frozen=True, slots=True)
class Parts:
    """All of one place and one driver."""

    place: Place
    driver: Driver
    ledger: Ledger
    stays: Stays
    log: Log
    sharing: Sharing
    access: Access
    units: Units
    reset: Reset
    ending: Ending
    hooks: Hooks
    lines: Lines
    busy: FirstBusy


def assemble(place: Place, driver: Driver, boot_id: Callable[[], str], own: Config) -> Parts:
    """Reads what is on disk, starts nothing."""
    stays, log, ledger = Stays(place, boot_id), Log(place), Ledger(place, boot_id)
    simulated = own.simulated is not None
    return Parts(
        place=place,
        driver=driver,
        ledger=ledger,
        stays=stays,
        log=log,
        sharing=Sharing(place, driver),
        access=Access(place),
        # The services of a host are not those of a machine that is simulated on it.
        units=Units(place, () if simulated else own.pause_units, log),
        reset=Reset(simulator(place) if simulated else (*own.nvidia_smi, "--gpu-reset", "-i")),
        ending=Ending(stays, log, ledger),
        hooks=Hooks(place, stays, log),
        lines=Lines(place, stays, log, ledger),
        busy=FirstBusy(place),
    )


def simulator(place: Place) -> tuple[str, ...]:
    """The words before a UUID that reset a simulated GPU."""
    return (
        *(sys.executable, "-m", "agents", "simulate"),
        *("--state", str(place.folder), "gpu-reset", "--uuid"),
    )
