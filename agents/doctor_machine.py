"""What the doctor finds about the machine: rights, other managers, sharing, access, services, hooks."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from gettext import gettext as _
from pathlib import Path

from agents import machine
from agents.access import Access
from agents.config import Config
from agents.doctor_finding import Finding, note, ok, wrong
from agents.doctor_gpus import Cards
from agents.driver import Driver
from agents.hook_programs import programs
from agents.managed_by import managed_by
from agents.place import Place, is_running
from agents.sharing import Sharing
from agents.units import SYSTEMCTL

#: Services that are known to hold GPUs open; `pause_units` is empty until an operator names some.
HOLD_GPUS = ("nvidia-dcgm", "dcgm-exporter", "nvidia-persistenced")
HOOKS = ("on-start.d", "on-notice.d", "on-end.d")


def findings(place: Place, driver: Driver, cards: Cards, own: Config | None) -> Iterator[Finding]:
    yield from _rights(place, cards)
    yield from _managers(place)
    if cards.inventory.gpus:
        yield from _ways(place, driver)
    if own is not None and own.simulated is None:
        yield from _services(place, own)
    if cards.inventory.imex is not None:
        yield from _imex(cards.inventory.imex)
    yield from _hooks(place)
    yield from _agent(place, own)


def _rights(place: Place, cards: Cards) -> Iterator[Finding]:
    if not place.real:
        yield ok(_("The GPUs are simulated; nothing of this host is touched."))
    elif os.geteuid() == 0:
        yield ok(_("This is root, as the agent has to be."))
    elif cards.inventory.gpus:
        yield wrong(
            _("This is not root: GPUs can be looked at, but no mode, slice or share be changed."),
            _("Other users' processes show neither memory nor environment. Run the agent as root."),
        )
    else:
        yield note(_("This is not root; the agent has to be."))


def _managers(place: Place) -> Iterator[Finding]:
    for name in managed_by(place.root):
        yield note(
            _("{name} gives out this machine's GPUs, too: the portal only looks on.").format(name=name),
            _("Exclude GPUs from it, then tell the portal which (docs/agent.md)."),
        )


_SHARES = {
    "mps": _("Shares by MPS: limits of memory and compute are the driver's."),
    "hami": _("Shares by HAMi-core: limits are a library's, which a holder can evade."),
    "timeslice": _("Shares by time slicing: no limit is enforced."),
}
_ACCESS = {
    "advisory": _("Access by advice: holders are told what to set, nobody is kept out."),
    "cdi": _("Access by CDI: containers get exactly their slice."),
    "unix": _("Access by device rights: systemd opens a slice's devices to its holder alone."),
}


def _ways(place: Place, driver: Driver) -> Iterator[Finding]:
    """What is not there is said, too: an operator shall know what could be had."""
    sharing, access = Sharing(place, driver).offered(), Access(place).offered()
    for words, offered in ((_SHARES, sharing), (_ACCESS, access)):
        yield from (ok(text) for name, text in words.items() if name in offered)
        missing = [name for name in words if name not in offered]
        if missing:
            yield note(_("Not to be had here: {names}.").format(names=", ".join(missing)))


def _services(place: Place, own: Config) -> Iterator[Finding]:
    holding = [name for name in HOLD_GPUS if name not in own.pause_units and _runs(name)]
    if holding:
        yield note(
            _("Services that hold GPUs open: {names}. They block a change of the MIG mode.").format(
                names=", ".join(holding)
            ),
            _("To have them stopped meanwhile: agents config pause_units={names}").format(
                names=",".join([*own.pause_units, *holding])
            ),
        )
    if machine.program(place, own.nvidia_smi[0]) is None:
        yield note(
            _("{name} is not installed: a GPU cannot be reset from here.").format(name=own.nvidia_smi[0])
        )


def _runs(unit: str) -> bool:
    call = [*SYSTEMCTL, "is-active", "--quiet", "--", unit]
    try:
        return subprocess.run(call, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _imex(state: str) -> Iterator[Finding]:
    if state == "READY":
        yield ok(_("IMEX is ready: memory can be shared across the NVLink domain."))
    else:
        yield note(_("IMEX is {state}: memory is not shared across the NVLink domain.").format(state=state))


def _hooks(place: Place) -> Iterator[Finding]:
    for folder in (place.hooks / name for name in HOOKS):
        run = set(programs(folder))
        for path in sorted(folder.glob("*")):
            if path in run:
                yield ok(_("Hook {path}").format(path=path))
            elif path.is_file() and not os.access(path, os.X_OK):
                yield wrong(_("The hook {path} is not executable, so it does not run.").format(path=path))
            elif path.is_file():
                yield wrong(
                    _("The hook {path} does not run.").format(path=path),
                    _("Its name is that of a leftover, or others than root can change it or its folder."),
                )


def _agent(place: Place, own: Config | None) -> Iterator[Finding]:
    if own is None:
        return
    yield from _private(place.agent)
    if place.is_frozen():
        yield note(_("Frozen here: nothing is changed until `agents freeze --off`."))
    if is_running(place):
        yield ok(_("The agent is running."))
    else:
        yield note(_("The agent is not running: systemctl start gpupool-agent, or `agents run`."))


def _private(path: Path) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        yield wrong(
            _("{path} holds this node's secrets, and others may read it: chmod 600.").format(path=path)
        )
