"""The MPS control daemon of one GPU, spoken to as NVIDIA's MPS guide describes.

It is started and asked by `nvidia-cuda-mps-control`, with a folder of its own, and knows no other GPU.
Limits are set on the server side, since a client may unset its own. Tested against a stand-in.
Not here: which shares there are, and whether something may be changed (sharing).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from agents import acl, processes
from agents.gpu import DriverRefusal
from agents.machine import program, run
from agents.place import Place
from pool.core import connect

log = logging.getLogger("agents.sharing")

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
#: Clients that one GPU serves at a time, since Volta.
MOST_CLIENTS = 48
#: The daemon is given one GPU, which so is its first.
_DEVICE = 0
_PATIENCE_S = 10.0
_LOOK_S = 0.02
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


def works(place: Place) -> bool:
    return program(place, CONTROL) is not None


class Mps:
    """The daemon of one GPU; keeps nothing but where it is."""

    def __init__(self, place: Place, gpu: str) -> None:
        self._place = place
        self._gpu = gpu
        self._pipe = Path(connect.pipe(gpu, str(place.run)))
        self._logs = self._pipe.with_name("log")

    def alive(self) -> bool:
        """Whether the daemon that noted its pid in the folder still runs. Cheap: asks nobody."""
        pid = self._pid()
        return pid is not None and processes.started(pid) is not None and processes.name(pid) == CONTROL

    def start(self, account: int | None, *, multi_user: bool) -> None:
        """Start the daemon for one account, or for any. Raises `DriverRefusal` (sharing).

        It outlives the agent: below systemd as a service of its own, which the agent's limits do not bind.
        """
        self._prepare(account)
        words = [self._program(), "-d", *(["-multiuser-server"] if multi_user else [])]
        settings = {**self._settings(), "CUDA_VISIBLE_DEVICES": self._gpu}
        runner = program(self._place, "systemd-run")
        if runner is not None and (self._place.root / "run/systemd/system").is_dir():
            own = [f"--setenv={name}={value}" for name, value in settings.items()]
            # A name of its own each time: the last one's unit may still be on its way out.
            unit = f"--unit=gpupool-mps-{self._gpu}-{time.monotonic_ns():x}"
            kind = ("--service-type=forking", "--property=KillMode=process")  # servers outlive their daemon
            words = [runner, "--quiet", "--collect", *kind, unit, *own, *words]
            settings = {}
        run(words, "sharing", environment=settings)
        if not self._until(self.alive):
            raise DriverRefusal("sharing", None, "the MPS daemon did not come up")
        log.info("%s: started its MPS daemon", self._gpu)

    def quit(self) -> None:
        """End daemon and servers; harmless when there is none. Raises `DriverRefusal` when it stays."""
        if self.alive():
            with suppress(DriverRefusal):  # it may close the line before it has answered
                self.ask("quit")
            if not self._until(lambda: not self.alive()):
                raise DriverRefusal("sharing", None, "the MPS daemon did not end")
            log.info("%s: ended its MPS daemon", self._gpu)

    def ask(self, command: str) -> str:
        """The daemon's answer to one command. Raises `DriverRefusal` (sharing)."""
        return run([self._program()], "sharing", told=f"{command}\n", environment=self._settings()).strip()

    def limits(self, server: int | None = None) -> tuple[float | None, float | None]:
        """Memory in MiB and percent of the threads that a client gets at most: of new servers, or of one."""
        if server is None:
            memory = self.ask(f"get_default_device_pinned_mem_limit {_DEVICE}")
            threads = self.ask("get_default_active_thread_percentage")
        else:
            memory = self.ask(f"get_device_pinned_mem_limit {server} {_DEVICE}")
            threads = self.ask(f"get_active_thread_percentage {server}")
        return memory_mib(memory), percent(threads)

    def limit(self, memory: int, threads: int, check: Callable[[], None]) -> bool:
        """Set both for servers to come and for those that run; True if any was other before.

        New clients of a running server keep to it, old ones to what held when they came.
        Raises `DriverRefusal` (sharing) unless it reads back: a limit that is not in force is none.
        """
        changed = False
        for server in (None, *self.servers()):
            if _fits(self.limits(server), memory, threads):
                continue
            check()
            changed = True
            default, which = ("default_", "") if server is None else ("", f"{server} ")
            self.ask(f"set_{default}device_pinned_mem_limit {which}{_DEVICE} {memory}M")
            self.ask(f"set_{default}active_thread_percentage {which}{threads}")
            if not _fits(self.limits(server), memory, threads):
                raise DriverRefusal("sharing", None, "the MPS daemon does not take its limits")
        return changed

    def servers(self) -> tuple[int, ...]:
        """Pids of the servers: one for an account that has clients now."""
        return _pids(self.ask("get_server_list"))

    def clients(self) -> tuple[int, ...]:
        """Pids of all clients."""
        return tuple(pid for server in self.servers() for pid in _pids(self.ask(f"get_client_list {server}")))

    def end_orphans(self, pids: Iterable[int]) -> None:
        """End servers of this GPU whose daemon is dead, out of these processes: they serve nobody."""
        for pid in pids:
            with suppress(OSError):  # it ended by itself
                handle = os.pidfd_open(pid)
                try:
                    if processes.name(pid) == SERVER and self._is_ours(pid):
                        signal.pidfd_send_signal(handle, signal.SIGTERM)
                        log.info("%s: ended the MPS server %d, whose daemon is dead", self._gpu, pid)
                finally:
                    os.close(handle)

    def clear(self) -> None:
        """Forget the folder's files; the logs of the last daemon stay until the next."""
        for path in self._pipe.glob("*"):
            path.unlink(missing_ok=True)

    def _prepare(self, account: int | None) -> None:
        """Folders that the clients reach, and nobody else's where there is only one account."""
        own = self._pipe.parent
        try:
            own.mkdir(parents=True, exist_ok=True)
            own.parent.chmod(0o755)
            acl.close_to_all_but(own, account)
            for folder in (self._pipe, self._logs):
                if folder.is_symlink():
                    folder.unlink()
                folder.mkdir(exist_ok=True)
                folder.chmod(0o755)
            self.clear()
        except OSError as error:
            raise DriverRefusal("sharing", None, f"the folder of the MPS daemon: {error}") from error

    def _is_ours(self, pid: int) -> bool:
        wanted = f"CUDA_MPS_PIPE_DIRECTORY={self._pipe}".encode()
        try:
            return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _program(self) -> str:
        found = program(self._place, CONTROL)
        if found is None:
            raise DriverRefusal("sharing", None, f"{CONTROL} is not installed")
        return found

    def _settings(self) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self._pipe), "CUDA_MPS_LOG_DIRECTORY": str(self._logs)}

    def _pid(self) -> int | None:
        try:
            return int((self._pipe / f"{CONTROL}.pid").read_text().strip())
        except (OSError, ValueError):
            return None

    def _until(self, so: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while not so():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True


def _pids(said: str) -> tuple[int, ...]:
    return tuple(int(word) for word in said.split() if word.isdecimal())


def memory_mib(said: str) -> float | None:
    """From "20480M" or "20G", with or without words before it; None for no limit."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*([KMG])", said.upper())
    return float(found[1]) * _MIB[found[2]] if found else None


def percent(said: str) -> float | None:
    """From "25.0", with or without words before it."""
    found = re.search(r"\d+(?:\.\d+)?", said)
    return float(found[0]) if found else None


def _fits(limits: tuple[float | None, float | None], memory: int, threads: int) -> bool:
    """The daemon may round memory to whole GiB when it tells it."""
    told, part = limits
    if told is None or part is None:
        return False
    near = abs(told - memory) < (1024 if told % 1024 == 0 else 1)
    return near and abs(part - threads) < 0.5
