"""Who else gives out the GPUs of this machine: kubelet's device plugin, MIG manager, slurmd.

Somebody who cannot be asked counts as there: two hands on one GPU are worse than
one that only looks on.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

DEVICE_PLUGIN, MIG_MANAGER, SLURMD = "device-plugin", "mig-manager", "slurmd"

#: Sockets by which kubelet reaches plugins that give out NVIDIA GPUs: device plugins (NVIDIA's and
#: HAMi's name theirs so) and the DRA driver.
_SOCKETS = (
    "var/lib/kubelet/device-plugins/nvidia*.sock",
    "var/lib/kubelet/plugins/gpu.nvidia.com/*.sock",
)
#: The services of the machine itself; a control group that has processes is one that runs.
_SERVICES = {
    "nvidia-mig-manager.service": MIG_MANAGER,
    "slurmd.service": SLURMD,
}
#: Names as the kernel keeps them, at most 15 characters: also of programs in containers.
_PROGRAMS = {
    "nvidia-device-p": DEVICE_PLUGIN,
    "gpu-kubelet-plu": DEVICE_PLUGIN,
    "nvidia-mig-mana": MIG_MANAGER,
    "slurmd": SLURMD,
    "slurmstepd": SLURMD,
}
_PATIENCE_S = 0.5


def managed_by(root: Path = Path("/")) -> tuple[str, ...]:
    """Names of those found running here, or set up to run at the next boot; sorted."""
    return tuple(sorted({*_by_sockets(root), *_by_services(root), *_by_programs(root)}))


def _by_sockets(root: Path) -> Iterator[str]:
    for pattern in _SOCKETS:
        if any(_answers(path) for path in root.glob(pattern)):
            yield DEVICE_PLUGIN


def _answers(path: Path) -> bool:
    """False only for a socket that somebody left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(_PATIENCE_S)
        try:
            door.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK)
    return True


def _by_services(root: Path) -> Iterator[str]:
    """A MIG manager runs once at each boot: being set up is enough. slurmd counts while it runs."""
    for service, name in _SERVICES.items():
        if name == MIG_MANAGER and _is_set_up(root, service):
            yield name
        try:
            runs = bool((root / "sys/fs/cgroup/system.slice" / service / "cgroup.procs").read_text().strip())
        except OSError:
            runs = False
        if runs:
            yield name


def _is_set_up(root: Path, service: str) -> bool:
    """A link to it stands where systemd looks at a boot."""
    wants = (root / "etc/systemd/system").glob("*.wants")
    return any(os.path.lexists(folder / service) for folder in wants)


def _by_programs(root: Path) -> Iterator[str]:
    for path in root.glob("proc/[0-9]*/comm"):
        try:
            name = path.read_text(errors="replace").strip()
        except OSError:  # it has ended meanwhile
            continue
        if name in _PROGRAMS:
            yield _PROGRAMS[name]
