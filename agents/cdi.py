"""One CDI specification per allocation, so that a container engine can hand in exactly that slice.

Written to the CDI specification 0.6 (cncf-tags/container-device-interface, SPEC.md): kind, device
names, annotations and container edits as there. The driver's libraries come from NVIDIA's own
`nvidia-ctk cdi generate`, which knows where they are. Not here: who holds what (access).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.devices import Node
from agents.gpu import DriverRefusal
from agents.machine import program, run
from agents.place import Place, write_whole
from pool.core.connect import KIND

VERSION = "0.6.0"
_PREFIX = KIND.replace("/", "-")
#: A device name: letters, digits and _ - . : between a letter or digit at each end.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_GPU, _INPUTS = "gpupool.io/gpu", "gpupool.io/inputs"
#: What the driver's generator says of all devices alike and containers need; its device files are not taken.
_SHARED_EDITS = ("mounts", "hooks")
_TOOL = "nvidia-ctk"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the machine in the container."""

    host: str
    container: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """What a container of one allocation gets."""

    allocation: str
    nodes: tuple[Node, ...]
    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()


def works(place: Place) -> bool:
    """A real machine needs NVIDIA's generator; a simulated one has no libraries to hand in."""
    return not place.real or program(place, _TOOL) is not None


def bring(place: Place, gpu: str, wanted: Mapping[str, Slice], check: Callable[[], None]) -> bool:
    """Have a specification for each of `wanted` and for nothing else on this GPU; True if anything changed.

    What is there is looked up on disk, so what an earlier agent left is taken back too.
    Raises `DriverRefusal` (access).
    """
    present = _present(place, gpu)
    leaving = [name for name in present if name not in wanted]
    missing = [one for name, one in wanted.items() if present.get(name) != _digest(place, one)]
    for name in leaving:
        check()
        _remove(place, name)
    edits = _shared_edits(place) if missing else {}
    for one in missing:
        check()
        _write(place, gpu, one, edits)
    return bool(leaving or missing)


def specification(gpu: str, one: Slice, edits: Json, inputs: str = "") -> Json:
    """The whole document. Raises `DriverRefusal` for an allocation that is no device name."""
    if not _NAME.fullmatch(one.allocation):
        raise DriverRefusal("access", None, f"{one.allocation!r} cannot name a device")
    own = {
        "env": [f"{name}={value}" for name, value in one.environment],
        "deviceNodes": [
            {
                **{"path": node.path, "type": "c", "major": node.major, "minor": node.minor},
                "permissions": node.permissions,
            }
            for node in one.nodes
        ],
        "mounts": [_mount(mount) for mount in one.mounts],
    }
    document: Json = {
        "cdiVersion": VERSION,
        "kind": KIND,
        "annotations": {_GPU: gpu, _INPUTS: inputs},
        "devices": [{"name": one.allocation, "containerEdits": {key: own[key] for key in own if own[key]}}],
    }
    return document | ({"containerEdits": edits} if edits else {})


def _mount(mount: Mount) -> Json:
    options = ["bind", "nosuid", "nodev", "rw" if mount.writable else "ro"]
    return {"hostPath": mount.host, "containerPath": mount.container, "options": options}


def _folder(place: Place) -> Path:
    """One of the two folders that every engine reads; this one is empty after a boot."""
    return place.root / "var/run/cdi"


def _file(place: Place, allocation: str) -> Path:
    return _folder(place) / f"{_PREFIX}-{allocation}.json"


def mark(place: Place, allocation: str) -> Path:
    """A file that is mounted into the container, and by which its processes are known for whose they are."""
    return place.run / "slices" / allocation


def _present(place: Place, gpu: str) -> dict[str, str]:
    """The allocations with a specification on this GPU, and from what each was made; "" if it is broken."""
    found = {}
    for path in _folder(place).glob(f"{_PREFIX}-*.json"):
        allocation = path.stem.removeprefix(f"{_PREFIX}-")
        try:
            notes = json.loads(path.read_bytes())["annotations"]
            if notes[_GPU] == gpu:
                found[allocation] = str(notes[_INPUTS]) if mark(place, allocation).exists() else ""
        except (OSError, ValueError, KeyError, TypeError):
            continue  # nothing of ours wrote this: each file is written whole
    return found


def _write(place: Place, gpu: str, one: Slice, edits: Json) -> None:
    document = specification(gpu, one, edits, _digest(place, one))
    own = mark(place, one.allocation)
    try:
        for folder in (own.parent, _folder(place)):
            folder.mkdir(parents=True, exist_ok=True)
        own.touch()
        own.chmod(0o444)
        path = _file(place, one.allocation)
        write_whole(path, json.dumps(document, indent=1).encode(), durable=False)
        path.chmod(0o644)  # an engine without root's rights reads it too
    except OSError as error:
        raise DriverRefusal("access", None, f"the CDI specification was not written: {error}") from error


def _remove(place: Place, allocation: str) -> None:
    try:
        _file(place, allocation).unlink(missing_ok=True)
        mark(place, allocation).unlink(missing_ok=True)
    except OSError as error:
        raise DriverRefusal("access", None, f"a CDI specification was not removed: {error}") from error


def _digest(place: Place, one: Slice) -> str:
    """Says whether a file was made from the same; a new driver has other libraries."""
    driver = ""
    with suppress(OSError):
        driver = (place.root / "sys/module/nvidia/version").read_text(errors="replace").strip()
    text = json.dumps([VERSION, driver, asdict(one)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _shared_edits(place: Place) -> Json:
    """Libraries and hooks that every container needs; raises `DriverRefusal` when they cannot be had."""
    tool = program(place, _TOOL)
    if tool is None:
        if place.real:
            raise DriverRefusal("access", None, f"{_TOOL} is not installed")
        return {}
    said = run([tool, "cdi", "generate", "--format=json", "--device-name-strategy=uuid"], "access")
    try:
        edits = json.loads(said)["containerEdits"]
        found = {key: edits[key] for key in _SHARED_EDITS if edits.get(key)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DriverRefusal("access", None, f"{_TOOL} does not describe the driver") from error
    return found
