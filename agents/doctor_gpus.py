"""What the doctor finds about the GPUs: the driver, each card's state, what stands in the way of changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from gettext import gettext as _

import msgspec

from agents.attribution import attribute, everything_on
from agents.config import Config, boot_id
from agents.doctor_finding import Finding, note, ok, wrong
from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu, InstanceReadings, Inventory, Readings
from agents.openers import openers
from agents.place import Place
from agents.plan import span_of
from agents.record import GpuRecord, Record
from agents.stays import Stays
from pool.core import mig
from pool.core.wire import Process

#: GPM measures between two samples.
BETWEEN_S = 0.15
_NVIDIA, _DISPLAY, _NO_LIBRARY = "0x10de", "0x03", 12


NOTHING = Inventory(None, ())


@dataclass(frozen=True, slots=True)
class Cards:
    """What the driver said; `refusal` when it said nothing. `hardware` counts NVIDIA's GPUs on the bus."""

    inventory: Inventory = NOTHING
    readings: Mapping[str, Readings] = field(default_factory=dict)
    refusal: DriverRefusal | None = None
    hardware: int = 0

    @property
    def none_here(self) -> bool:
        """No GPU in the machine at all, as far as anybody can tell."""
        return not self.inventory.gpus and not self.inventory.unidentified and not self.hardware


def look(place: Place, driver: Driver) -> Cards:
    """Ask the driver; a machine without one is no error here."""
    hardware = _hardware(place)
    try:
        driver.open()
        driver.readings()
        time.sleep(BETWEEN_S)
        return Cards(driver.look(), driver.readings(), None, hardware)
    except DriverRefusal as refusal:
        return Cards(refusal=refusal, hardware=hardware)


def _hardware(place: Place) -> int:
    """GPUs of NVIDIA's on the PCI bus, whether a driver has them or not."""
    return sum(
        _word(device / "vendor") == _NVIDIA and _word(device / "class").startswith(_DISPLAY)
        for device in place.root.glob("sys/bus/pci/devices/*")
    )


def _word(path: os.PathLike[str]) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def findings(place: Place, cards: Cards, own: Config | None) -> Iterator[Finding]:
    if cards.refusal is not None:
        yield _no_driver(cards, cards.refusal)
        return
    if not cards.inventory.gpus:
        yield note(_("The driver answers, but there is no GPU in this machine."))
        return
    many = len(cards.inventory.gpus)
    yield ok(_("Driver {version} answers, GPUs: {n}.").format(version=cards.inventory.driver or "?", n=many))
    for index in cards.inventory.unidentified:
        yield wrong(_("GPU {n} answers nothing, not even its name: it is lost.").format(n=index), _REBOOT)
    record, stays = _record(place), Stays(place, str).all()
    for gpu in cards.inventory.gpus:
        known = record.gpus.get(gpu.uuid, GpuRecord())
        seen = cards.readings.get(gpu.uuid, Readings())
        yield from _card(place, gpu if gpu.lost else attribute(gpu, known, stays), known, seen, own)


def _record(place: Place) -> Record:
    """What the agent has on record of this boot, only read: it is the running agent's to write."""
    try:
        record = msgspec.json.decode(place.record.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return Record(boot_id="")
    now = boot_id(place, simulated=not place.real)
    return record if record.boot_id == now else Record(boot_id=now)


_REBOOT = _("The machine needs a reboot, or the card an exchange.")


def _no_driver(cards: Cards, refusal: DriverRefusal) -> Finding:
    why = (
        _("its library libnvidia-ml.so.1 is not installed") if refusal.nvml == _NO_LIBRARY else refusal.detail
    )
    if not cards.hardware:
        return note(
            _(
                "There is no GPU here: no NVIDIA card is on the PCI bus, and no driver answers ({why})."
            ).format(why=why),
            _("Nothing can be carved or shared on this machine; install the agent where GPUs are."),
        )
    return wrong(
        _("NVIDIA cards on the PCI bus: {n}. But no driver answers: {why}.").format(
            n=cards.hardware, why=why
        ),
        _("Install or load NVIDIA's driver (nvidia-smi must work); the agent waits for it."),
    )


def _card(place: Place, gpu: Gpu, known: GpuRecord, seen: Readings, own: Config | None) -> Iterator[Finding]:
    name = f"GPU {gpu.index} {gpu.name}"
    if gpu.lost:
        yield wrong(_("{gpu} answers nothing any more: it is lost.").format(gpu=name), _REBOOT)
        return
    yield ok(f"{name}, {_mode(gpu)}; {_activity(seen)}")
    yield from _hints(gpu, name, seen, own)
    yield from _health(gpu, name)
    yield from _in_the_way(place, gpu, known, name)


def _mode(gpu: Gpu) -> str:
    if gpu.mig_capable is False:
        return _("cannot do MIG: whole, or in shares")
    if gpu.mig is None:
        return _("its MIG mode cannot be read")
    slices = _("MIG on, {n} slices").format(n=len(gpu.instances or ()))
    return slices if gpu.mig else _("MIG off")


def _activity(seen: Readings) -> str:
    parts: list[Readings | InstanceReadings] = [seen, *seen.instances.values()]
    sources = {one.source for one in parts if one.activity_pct is not None}
    if sources:
        return _("activity is measured by {source}").format(source=", ".join(sorted(sources)))
    return _("activity is not measured")


def _hints(gpu: Gpu, name: str, seen: Readings, own: Config | None) -> Iterator[Finding]:
    model = mig.identify(gpu.name, gpu.pci_device_id, gpu.memory_total_mib)
    if gpu.mig_capable and model is None:
        yield note(_("{gpu} is not in the catalogue: only what its driver offers is known.").format(gpu=name))
    if gpu.mig_capable and not gpu.offers:
        yield note(_("{gpu}: its driver tells the profiles only in MIG mode.").format(gpu=name))
    if gpu.mig_pending is not None and gpu.mig_pending != gpu.mig:
        yield note(_("{gpu}: a change of the MIG mode waits for a reset.").format(gpu=name))
    slices = [one for one in gpu.instances or () if one.mig_uuid is not None]
    measured = any(one.activity_pct is not None for one in seen.instances.values())
    if slices and not measured and not (own and own.dcgm_url):
        yield note(
            _("{gpu}: how busy its slices are is not measured.").format(gpu=name),
            _("Before Hopper only dcgm-exporter can tell: run one and set dcgm_url to its address."),
        )


def _health(gpu: Gpu, name: str) -> Iterator[Finding]:
    health, rows = gpu.health, gpu.health.remapped
    if rows and rows.failure:
        yield wrong(
            _("{gpu}: replacing rows of its memory has failed; it needs an exchange.").format(gpu=name)
        )
    if rows and rows.pending:
        yield wrong(_("{gpu}: rows of its memory wait for a reset to be replaced.").format(gpu=name))
    if health.ecc_uncorrected:
        words = _("{gpu}: {n} uncorrected memory errors since the driver came up.")
        yield note(words.format(gpu=name, n=health.ecc_uncorrected))
    held_down = [one for one in health.throttle or () if one.startswith(("hw_", "sw_thermal", "power_brake"))]
    if held_down:
        yield note(_("{gpu}: its clocks are held down: {why}.").format(gpu=name, why=", ".join(held_down)))


def _in_the_way(place: Place, gpu: Gpu, known: GpuRecord, name: str) -> Iterator[Finding]:
    foreign = [one for one in gpu.instances or () if not known.owns(span_of(one))]
    if foreign:
        yield note(
            _("{gpu}: {n} slices that this agent did not make: {which}.").format(
                gpu=name, n=len(foreign), which=", ".join(f"{one.profile} @{one.start}" for one in foreign)
            ),
            _("They are never touched; an operator of the portal may adopt them."),
        )
    if None in (gpu.processes, *(one.processes for one in gpu.instances or ())):
        yield wrong(_("{gpu}: its processes cannot be read, so it counts as in use.").format(gpu=name))
        return
    running = everything_on(gpu)
    for one in running:
        if not one.system and one.allocation is None:
            yield note(_("{gpu}: {who} uses it, for nobody's booking.").format(gpu=name, who=_who(one)))
    using = {one.pid for one in running}
    for one in openers(gpu.minor, place.root) if place.real else ():
        if one.pid not in using:
            yield note(_("{gpu}: {who} has it open, which blocks a reset.").format(gpu=name, who=_who(one)))


def _who(one: Process) -> str:
    return _("{name} (pid {pid}, {user})").format(name=one.name or "?", pid=one.pid, user=one.user or one.uid)
