"""Who this node is: what joining gave it, and the ids of its machine and boot.

A simulated node takes its ids from its folder, so that several live on one
host; every other takes them from the machine, wherever its folder is.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from gettext import gettext as _
from pathlib import Path
from typing import Annotated

import msgspec

from agents import simulator, simulator_state
from agents.place import Fault, Place, write_whole

MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: Where dcgm-exporter serves too, so that what scrapes one finds the other.
EXPORTER_PORT = 9400

#: Celery reads these behind the settings' back: a broker of its own, or a Django project.
_FOREIGN = ("CELERY_", "KOMBU_", "C_FORCE_", "FORKED_BY_MULTIPROCESSING", "DJANGO_SETTINGS_MODULE")

#: What systemd takes for the name of a unit, ".service" left out or not.
_UNIT = re.compile(r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\@-]{0,254}", re.ASCII)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`token` and the password in `broker_url` are secrets: never log or print them.

    `simulated` is the machine that was asked for at join ("8xH100-80GB"), None on real nodes.
    The rest is the operator's: systemd units that hold GPUs open and are stopped for a change
    of the MIG mode, the exporter's port (0: none), a dcgm-exporter to ask, the program that
    resets a GPU, the folders of hooks and of what holders may read, the portal's own authority.
    """

    portal: str
    node: str
    token: str
    broker_url: str | None = None
    report_s: float = 15.0
    simulated: str | None = None
    pause_units: tuple[str, ...] = ()
    exporter_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    dcgm_url: str | None = None
    nvidia_smi: tuple[str, ...] = ("nvidia-smi",)
    hooks_folder: str | None = None
    run_folder: str | None = None
    ca_file: str | None = None

    @property
    def exports_on(self) -> int:
        """The exporter's port. Several simulated nodes share a host, so they have none unless told to."""
        if self.exporter_port is not None:
            return self.exporter_port
        return EXPORTER_PORT if self.simulated is None else 0

    @property
    def asks_dcgm(self) -> str | None:
        """The dcgm-exporter to ask, which on a real node is looked for where it usually is."""
        if self.dcgm_url is not None:
            return self.dcgm_url
        return f"http://127.0.0.1:{EXPORTER_PORT}/metrics" if self.simulated is None else None

    def __repr__(self) -> str:
        return f"Config(node={self.node!r}, portal={self.portal!r})"


#: What an operator may change, with the defaults.
SETTINGS = {
    field.name: field.default
    for field in msgspec.structs.fields(Config)
    if field.name not in ("portal", "node", "token", "broker_url", "report_s", "simulated")
}


def load(place: Place) -> Config:
    """Raises `Fault` when the node has not joined or the file cannot be used."""
    try:
        return msgspec.json.decode(place.agent.read_bytes(), type=Config)
    except FileNotFoundError as error:
        raise Fault(
            _("This node has not joined: {path} is missing. Run `agents join` first.").format(
                path=place.agent
            )
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise Fault(_("{path} cannot be read: {why}").format(path=place.agent, why=error)) from error


def store(place: Place, config: Config) -> None:
    place.make()
    write_whole(place.agent, msgspec.json.encode(config), durable=True)


def change(config: Config, words: Sequence[str]) -> Config:
    """With settings from words like `exporter_port=9401`; lists are separated by spaces or commas.

    Raises `Fault` for what is no setting of the operator's, or no value of it.
    """
    found: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in SETTINGS:
            raise Fault(
                _("{word!r} is no NAME=VALUE; the names are {names}.").format(
                    word=word, names=", ".join(SETTINGS)
                )
            )
        found[name] = SETTINGS[name] if value == "" else _value(name, value)
    try:
        changed = msgspec.convert({**msgspec.structs.asdict(config), **found}, Config)
    except msgspec.ValidationError as error:
        raise Fault(_("This value makes no sense: {why}").format(why=error)) from error
    for unit in changed.pause_units if "pause_units" in found else ():
        if not _UNIT.fullmatch(unit):
            raise Fault(_("{unit!r} is no name of a systemd unit.").format(unit=unit))
    return changed


def _value(name: str, value: str) -> object:
    if isinstance(SETTINGS[name], tuple):
        return tuple(value.replace(",", " ").split())
    return int(value) if value.isdecimal() else value


def as_text(config: Config) -> str:
    """The operator's settings, one a line; no secret is among them."""
    shown = {name: getattr(config, name) for name in SETTINGS}
    shown |= {"exporter_port": config.exports_on, "dcgm_url": config.asks_dcgm}
    return "\n".join(
        f"{name}={' '.join(value) if isinstance(value, tuple) else '' if value is None else value}"
        for name, value in shown.items()
    )


def settle(place: Place, config: Config) -> Place:
    """The place with what joining and the operator said of the machine."""
    return replace(
        place,
        real=config.simulated is None,
        run_at=Path(config.run_folder) if config.run_folder else None,
        hooks_at=Path(config.hooks_folder) if config.hooks_folder else None,
    )


def use_simulator(place: Place, config: Config) -> None:
    """Put the simulated driver under pynvml, for a node that joined as a simulated one.

    A driver.json alone never does that, nor does a config alone: a real node must
    not come up with invented GPUs. Raises `Fault` when only the config says so.
    """
    if config.simulated is None:
        return
    if not place.driver.exists():
        raise Fault(_("{path} is missing: this node joined as a simulated one.").format(path=place.driver))
    simulator.install(place.folder)


def machine_id(place: Place, *, simulated: bool) -> str:
    """Stable for this node. Where the system has none, one is made in the folder."""
    if simulated:
        return simulator_state.machine_id(place.folder)
    own = place.folder / "machine-id"
    for path in (MACHINE_ID, own):
        found = path.read_text().strip() if path.exists() else ""
        if found:
            return found
    made = uuid.uuid4().hex
    write_whole(own, made.encode(), durable=True)
    return made


def boot_id(place: Place, *, simulated: bool) -> str:
    """Changes with each boot; instances of an earlier boot are gone."""
    return simulator_state.boot_id(place.folder) if simulated else BOOT_ID.read_text().strip()


def forget_foreign_settings() -> None:
    """Drop from the environment what would reconfigure Celery. Call it before Celery is imported."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            del os.environ[name]
