"""Stays, processes and GPUs for the tests of who uses what, and a /proc of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agents.gpu import Gpu, Instance
from agents.place import Place
from agents.record import GpuRecord, Ledger, Made
from agents.stays import Stays
from pool.core.wire import Held, Policy, Process, Share, Stay
from tests.agents.stand_in import command

GPU = "GPU-1"
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def stay(allocation: str = "a", **more: Any) -> Stay:
    """Alice's, on GPU-1, from 10 to 14 o'clock."""
    fields = {
        "reservation": f"r-{allocation}",
        "gpu": GPU,
        "team": "red",
        "owner": "alice",
        "users": ("alice",),
        "start": NOON - timedelta(hours=2),
        "end": NOON + timedelta(hours=2),
    }
    return Stay(allocation=allocation, **{**fields, **more})


def held(
    allocation: str = "a", *, users: Sequence[str] = ("alice",), share: bool = False, **more: Any
) -> Held:
    """The whole GPU, or a share of it."""
    fields: dict[str, Any] = {
        "owner": "alice/red",
        "profile": None,
        "profile_id": None,
        "start": 0,
        "size": 8,
        "reservation": f"r-{allocation}",
        "share": Share(memory_mib=1000, compute_pct=10, limit_pct=10) if share else None,
    }
    return Held(allocation=allocation, users=tuple(users), **{**fields, **more})


def wants(*some: Held, made: Sequence[Made] = (), mig: bool = False) -> GpuRecord:
    return GpuRecord(wanted=command(GPU, 1, *some, mig=mig), applied=1, made=tuple(made))


def process(pid: int = 100, **more: Any) -> Process:
    fields = {"uid": 1001, "user": "alice", "name": "python", "started": "5", "memory_mib": 100}
    return Process(pid=pid, **{**fields, **more})


def gpu(*processes: Process, **more: Any) -> Gpu:
    return Gpu(GPU, 0, "NVIDIA H100", mig=False, instances=(), processes=processes, **more)


def slices(*instances: Instance, processes: tuple[Process, ...] = ()) -> Gpu:
    """A GPU in MIG mode; like the driver, it shows its instances' processes as its own as well."""
    inside = tuple(one for instance in instances for one in instance.processes or ())
    return Gpu(GPU, 0, "NVIDIA H100", mig=True, instances=instances, processes=(*inside, *processes))


def instance(gi: int, start: int, *processes: Process) -> Instance:
    return Instance(gi, 0, f"MIG-{gi}", 19, "1g.10gb", start, 1, processes=processes)


def made(allocation: str, start: int) -> Made:
    return Made(profile_id=19, start=start, size=1, allocation=allocation, owner="alice/red")


class Node:
    """What the agent has on disk of one node, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.place.make()
        self.boot = "boot-1"
        self.clock = 1000.0
        self.ledger = Ledger(self.place, lambda: self.boot)
        self.ledger.keep_rules([GPU], False)
        self.stays = Stays(self.place, lambda: self.boot, lambda: self.clock)

    def hear(self, *stays: Stay, **policy: Any) -> None:
        self.stays.heed(stays, Policy(**policy), 15.0)

    def hold(self, *some: Held) -> None:
        self.ledger.want(command(GPU, self.ledger.gpu(GPU).generation + 1, *some, mig=False))


def write_proc(
    root: Path,
    pid: int,
    *,
    uid: int = 1001,
    line: Sequence[str] = ("python", "train.py"),
    short: str = "python",
    started: str = "5000",
    tty: int = 0,
    environment: Mapping[str, str] | None = None,
    cgroup: str = "0::/user.slice/user-1001.slice/session-1.scope\n",
    uid_map: str = "         0          0 4294967295\n",
    mountinfo: str = "",
    exe: Path | None = None,
) -> None:
    """The files of one process as the kernel writes them (proc(5)); without `io`, as for somebody else's."""
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (root / "self").mkdir(exist_ok=True)
    after = ["S", "1", str(pid), str(pid), str(tty), "-1", "0", "0", "0", "0", "0", "150", "50"]
    after += ["0", "0", "20", "0", "1", "0", started, "0"]
    (folder / "stat").write_text(f"{pid} ({short}) {' '.join(after)}\n")
    (folder / "status").write_text(f"Name:\t{short}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in line))
    (folder / "comm").write_text(f"{short}\n")
    (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (environment or {}).items()))
    (folder / "cgroup").write_text(cgroup)
    (folder / "uid_map").write_text(uid_map)
    (folder / "mountinfo").write_text(mountinfo)
    (folder / "exe").unlink(missing_ok=True)
    if exe is not None:
        (folder / "exe").symlink_to(exe)
