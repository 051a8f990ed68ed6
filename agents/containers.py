"""Which container a process is in, and what says there for whom it runs: texts of /proc and of runtimes.

The control groups of a process name its container: they are set by the runtime, and a tenant can
only choose those below its own user's slice, which therefore count for little (`rootless`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ID = r"(?P<id>[0-9a-f]{64})"
#: Last parts of a control group's path, by the runtime that names them so.
_SCOPES = (
    ("docker", re.compile(rf"(?:^|/)docker[-/]{_ID}(?:\.scope)?(?:/|$)")),
    ("podman", re.compile(rf"(?:^|/)libpod-{_ID}(?:\.scope)?(?:/|$)")),
    ("crio", re.compile(rf"(?:^|/)crio-{_ID}(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"(?:^|[/:-])(?:cri-containerd|nerdctl)[-:]{_ID}(?:\.scope)?(?:/|$)")),
    ("kubernetes", re.compile(rf"(?:^|/)kubepods[^/]*/(?:.*/)?{_ID}(?:/|$)")),
    ("containerd", re.compile(rf"(?:^|/){_ID}(?:/|$)")),
    ("lxc", re.compile(r"(?:^|/)lxc(?:\.payload[./]|/)(?P<id>[\w.-]+)")),
)
_USERS_OWN = re.compile(r"(?:^|/)user\.slice/|/user@\d+\.service(?:/|$)")

#: The kind of CDI device that the agent hands out; its names are allocations.
CDI_KIND = "gpupool.io/slice"
#: Labels and annotations by which somebody says for which booking a container runs.
ALLOCATION_LABEL = "gpupool.io/allocation"
RESERVATION_LABEL = "gpupool.io/reservation"
#: The agent's own file for an allocation, mounted by its CDI spec: `<run>/slices/<allocation>`;
#: where `<run>` is a file system of its own, the path within begins there.
_MOUNT = re.compile(r"/slices/(?P<allocation>[\w-]{1,64})$")
_MOST_TEXT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Container:
    """`rootless`: below a user's own slice, where that user makes control groups at will."""

    runtime: str
    id: str
    rootless: bool = False

    def __str__(self) -> str:
        return f"{self.runtime}:{self.id[:12]}"


@dataclass(frozen=True, slots=True)
class Labels:
    """What a container says of itself: CDI devices handed out by the agent, and labels."""

    devices: frozenset[str] = frozenset()
    allocation: str | None = None
    reservation: str | None = None


def container_of(cgroup: str) -> Container | None:
    """The container in the text of /proc/PID/cgroup (cgroups(7): hierarchy:controllers:path)."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        for runtime, scope in _SCOPES:
            found = scope.search(path)
            if found:
                if runtime == "containerd" and "kubepods" in path:
                    runtime = "kubernetes"
                return Container(runtime, found["id"], rootless=bool(_USERS_OWN.search(path)))
    return None


def mounted_slices(mountinfo: str) -> frozenset[str]:
    """Allocations whose own file is mounted in a process's namespace, by /proc/PID/mountinfo.

    The fourth field is the path within the file system of the host, which nobody
    inside a container can choose.
    """
    found = (
        _MOUNT.search(fields[3]) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4
    )
    return frozenset(one["allocation"] for one in found if one)


def labels(container: Container, root: Path) -> Labels:
    """What the runtime noted of a container on this machine, in files only root can write.

    Docker keeps labels and CDI requests in its own files; the others keep an OCI
    configuration with annotations. Where nothing can be read, nothing is said.
    """
    if container.rootless or not re.fullmatch(r"[0-9a-f]{64}", container.id):
        return Labels()
    devices: set[str] = set()
    marks: dict[str, str] = {}
    for note in _notes(container.id, root):
        devices |= set(_cdi_devices(note))
        for part in (note.get("annotations"), _inside(note, "Config", "Labels")):
            if isinstance(part, dict):
                marks.update({key: value for key, value in part.items() if isinstance(value, str)})
    devices |= {one for value in marks.values() for one in _slices(value.split(","))}
    return Labels(frozenset(devices), marks.get(ALLOCATION_LABEL), marks.get(RESERVATION_LABEL))


def _notes(container: str, root: Path) -> Iterator[dict[str, Any]]:
    docker = root / "var/lib/docker/containers" / container
    tasks = root / "run/containerd/io.containerd.runtime.v2.task"
    paths = [docker / "config.v2.json", docker / "hostconfig.json"]
    paths += [tasks / space / container / "config.json" for space in ("moby", "k8s.io", "default")]
    for store in ("run/containers/storage", "var/lib/containers/storage"):
        paths.append(root / store / "overlay-containers" / container / "userdata/config.json")
    for path in paths:
        try:
            with path.open("rb") as file:
                note = json.loads(file.read(_MOST_TEXT))
        except (OSError, ValueError):
            continue
        if isinstance(note, dict):
            yield note


def _cdi_devices(note: dict[str, Any]) -> Iterator[str]:
    """Docker's host configuration names CDI devices as requests to the driver `cdi`."""
    requests = note.get("DeviceRequests")
    for one in requests if isinstance(requests, list) else ():
        if isinstance(one, dict) and one.get("Driver") == "cdi":
            names = one.get("DeviceIDs")
            yield from _slices(names if isinstance(names, list) else ())


def _slices(names: Any) -> Iterator[str]:
    for name in names:
        if isinstance(name, str) and name.strip().startswith(f"{CDI_KIND}="):
            yield name.strip().partition("=")[2]


def _inside(note: dict[str, Any], *keys: str) -> Any:
    value: Any = note
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
