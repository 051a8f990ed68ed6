"""Who this node is: what joining gave it, and the ids of its machine and boot.

A simulated node takes its ids from its folder, so that several live on one
host; every other takes them from the machine, wherever its folder is.
"""

from __future__ import annotations

import os
import uuid
from gettext import gettext as _
from pathlib import Path

import msgspec

from agents import simulator, simulator_state
from agents.place import Fault, Place, write_whole

MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: Celery reads these behind the settings' back: a broker of its own, or a Django project.
_FOREIGN = ("CELERY_", "KOMBU_", "C_FORCE_", "FORKED_BY_MULTIPROCESSING", "DJANGO_SETTINGS_MODULE")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`token` and the password in `broker_url` are secrets: never log or print them.

    `simulated` is the machine that was asked for at join ("8xH100-80GB"), None on real nodes.
    """

    portal: str
    node: str
    token: str
    broker_url: str | None = None
    report_s: float = 15.0
    simulated: str | None = None

    def __repr__(self) -> str:
        return f"Config(node={self.node!r}, portal={self.portal!r})"


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
