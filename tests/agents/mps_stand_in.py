"""A stand-in for NVIDIA's MPS control daemon, with the interface that the MPS guide describes.

One file, three programs: the control program (`-d` starts the daemon, otherwise commands on standard
input), the daemon, and a CUDA client that allocates what it is told to. Servers and clients are real
processes; memory is only counted. A client may only tighten what its server allows.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
MOST_CLIENTS = 48


#: The control program, asked many times: it imports little, and starts the daemon through this file.
_PROGRAM = """#!{python} -SE
import os, socket, sys
os.environ["MPS_STAND_IN_BIN"] = {folder!r}
if "-d" in sys.argv:
    os.execv({python!r}, [{python!r}, "-SE", {file!r}, "start", *sys.argv[1:]])
try:
    os.chdir(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    for command in sys.stdin.read().splitlines():
        with socket.socket(socket.AF_UNIX) as line:
            line.connect("control")
            line.sendall(b"command " + command.encode())
            line.shutdown(socket.SHUT_WR)
            sys.stdout.write(line.makefile().read())
except OSError:
    sys.exit("Cannot find MPS control daemon process")
"""


def install(root: Path) -> Path:
    """Put the control program and the server into a machine's root."""
    folder = root / "usr/bin"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / CONTROL
    file = str(Path(__file__).resolve())
    program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder), file=file))
    program.chmod(0o755)
    shutil.copy(shutil.which("sleep") or "/bin/sleep", folder / SERVER)
    return program


def _start(words: list[str]) -> int:
    """`nvidia-cuda-mps-control -d`."""
    noted = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / f"{CONTROL}.pid"
    if noted.exists():
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    if any(word != "-multiuser-server" for word in words):
        return 1
    me = str(Path(__file__).resolve())
    ready, write = os.pipe()
    subprocess.Popen(
        [CONTROL, "-SE", me, "daemon", str(write), *words],
        executable=sys.executable,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[write],
        start_new_session=True,
    )
    os.close(write)
    return 0 if os.read(ready, 1) else 1


def _connected(uid: int | None = None) -> socket.socket:
    """The folder's path may be longer than a socket's name, so it is gone to first."""
    os.chdir(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    if uid is not None:
        os.setuid(uid)
    one = socket.socket(socket.AF_UNIX)
    one.connect("control")
    return one


class Server:
    """One account's server (uid None: everybody's), with the limits of new clients."""

    def __init__(self, uid: int | None, daemon: Daemon) -> None:
        self.memory, self.percent = daemon.memory, daemon.percent
        self.clients: dict[int, Client] = {}
        self.uid = uid
        program = os.open(Path(os.environ["MPS_STAND_IN_BIN"]) / SERVER, os.O_RDONLY)
        self.process = subprocess.Popen(
            [SERVER, "2147483647"],
            executable=f"/proc/self/fd/{program}",  # its account may not see the test's folder
            pass_fds=[program],
            user=None if uid in (None, os.getuid()) else uid,
        )
        os.close(program)


class Client:
    """A connection of one client process, and what it has."""

    def __init__(self, line: socket.socket, pid: int, uid: int, ask: dict[str, Any]) -> None:
        self.line, self.pid, self.uid, self.ask = line, pid, uid, ask
        self.used = 0
        self.server: Server | None = None
        self.memory: int | None = None

    def say(self, **words: Any) -> None:
        self.line.sendall(json.dumps(words).encode() + b"\n")


class Daemon:
    def __init__(self, multi_user: bool) -> None:
        self.multi_user = multi_user
        self.memory: int | None = None
        self.percent = 100.0
        self.servers: list[Server] = []
        self.waiting: list[Client] = []
        self.clients: dict[socket.socket, Client] = {}
        self.over = False

    def serve(self, ready: int) -> None:
        os.chdir(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        listener = socket.socket(socket.AF_UNIX)
        Path("control").unlink(missing_ok=True)
        listener.bind("control")
        Path("control").chmod(0o666)
        listener.listen(64)
        Path(f"{CONTROL}.pid").write_text(f"{os.getpid()}\n")
        os.write(ready, b"1")
        os.close(ready)
        found = selectors.DefaultSelector()
        found.register(listener, selectors.EVENT_READ)
        while not self.over:
            for key, _ in found.select():
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is listener:
                    found.register(listener.accept()[0], selectors.EVENT_READ)
                elif not self.hear(line):
                    found.unregister(line)
                    line.close()
        Path(f"{CONTROL}.pid").unlink(missing_ok=True)

    def hear(self, line: socket.socket) -> bool:
        """One request; False when the other side has gone."""
        said = line.recv(4096)
        if not said:
            self.leave(line)
            return False
        if said.startswith(b"command "):
            answer = self.obey(said.decode().split()[1:])
            line.sendall(f"{answer}\n".encode() if answer else b"")
            return False
        ask = json.loads(said)
        if "alloc" in ask:
            client = self.clients[line]
            fits = client.memory is None or client.used + ask["alloc"] <= client.memory
            client.used += ask["alloc"] if fits else 0
            client.say(fits=fits)
        else:
            pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.waiting.append(Client(line, pid, uid, ask))
            self.admit()
        return True

    def admit(self) -> None:
        """Give waiting clients their server; without multi-user one account is served at a time."""
        for client in list(self.waiting):
            uid = None if self.multi_user else client.uid
            server = next((one for one in self.servers if one.uid == uid), None)
            if server is None and any(one.clients for one in self.servers):
                continue
            if server is None:
                self.end_servers()
                server = Server(uid, self)
                self.servers.append(server)
            self.waiting.remove(client)
            if len(server.clients) >= MOST_CLIENTS:
                client.say(refused="too many clients")
                continue
            server.clients[client.pid] = client
            self.clients[client.line] = client
            client.server = server
            client.memory = _least(server.memory, client.ask["memory"])
            client.say(memory=client.memory, percent=_least(server.percent, client.ask["percent"]))

    def leave(self, line: socket.socket) -> None:
        client = self.clients.pop(line, None)
        self.waiting = [one for one in self.waiting if one.line is not line]
        if client and client.server:
            client.server.clients.pop(client.pid, None)
            self.admit()

    def end_servers(self) -> None:
        for server in self.servers:
            server.process.terminate()
            server.process.wait()
        self.servers = []

    def obey(self, words: list[str]) -> str:
        """The commands of the control program; an answer, or nothing."""
        name, rest = words[0], words[1:]
        stubborn = Path(os.environ["MPS_STAND_IN_BIN"], "takes-no-limits").exists()
        match name:
            case "quit":
                self.end_servers()
                self.over = True
            case "get_server_list":
                return "\n".join(str(one.process.pid) for one in self.servers)
            case "get_client_list":
                return "\n".join(str(pid) for pid in self.server(rest[0]).clients)
            case "get_default_device_pinned_mem_limit":
                return _memory(self.memory)
            case "get_device_pinned_mem_limit":
                return _memory(self.server(rest[0]).memory)
            case "get_default_active_thread_percentage":
                return f"{self.percent:.1f}"
            case "get_active_thread_percentage":
                return f"{self.server(rest[0]).percent:.1f}"
            case _ if stubborn:
                return ""
            case "set_default_device_pinned_mem_limit":
                self.memory = _mib(rest[1])
            case "set_device_pinned_mem_limit":
                self.server(rest[0]).memory = _mib(rest[2])
            case "set_default_active_thread_percentage":
                self.percent = float(rest[0])
            case "set_active_thread_percentage":
                self.server(rest[0]).percent = float(rest[1])
        return ""

    def server(self, pid: str) -> Server:
        return next(one for one in self.servers if one.process.pid == int(pid))


def _least(one: Any, other: Any) -> Any:
    return min((value for value in (one, other) if value is not None), default=None)


def _mib(word: str) -> int:
    return int(word[:-1]) * (1024 if word[-1] == "G" else 1)


def _memory(mib: int | None) -> str:
    """Whole GiB are told as such."""
    if mib is None:
        return ""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def client(uid: int | None) -> None:
    """A CUDA program: connects by its environment, then allocates each number of MiB that it reads."""
    memory = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    ask = {
        "memory": _mib(memory.split("=")[1]) if memory else None,
        "percent": float(percent) if percent else None,
    }
    with _connected(uid) as line:
        line.sendall(json.dumps(ask).encode() + b"\n")
        answers = line.makefile()
        print(answers.readline().strip(), flush=True)
        for wish in sys.stdin:
            line.sendall(json.dumps({"alloc": int(wish)}).encode() + b"\n")
            print(answers.readline().strip(), flush=True)


class Program:
    """A running client, for tests. `connected` is what its server allows it."""

    def __init__(self, settings: dict[str, str], uid: int | None = None) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-S", "-E", str(Path(__file__).resolve()), "client"),
                *([] if uid is None else [str(uid)]),
            ],
            env={"PATH": os.environ["PATH"], **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def connected(self) -> dict[str, Any]:
        """Waits until a server has taken it."""
        return self._answer()

    def allocates(self, mib: int) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{mib}\n")
        self._process.stdin.flush()
        return bool(self._answer()["fits"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def kill_daemon(pipe: Path) -> None:
    """As a crash would: servers and files stay."""
    pid = int((pipe / f"{CONTROL}.pid").read_text())
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert ended(handle), "the daemon lives on"


def ended(handle: int) -> bool:
    """Wait for the end of the process behind a pidfd."""
    with os.fdopen(handle):
        return bool(select.select([handle], [], [], 10)[0])


def clear_away(run: Path) -> None:
    """End what a test left running: daemons by the pids they noted, and their servers."""
    for noted in run.glob(f"mps/*/pipe/{CONTROL}.pid"):
        pid = int(noted.read_text())
        if not _lives(pid):
            continue
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
        for one in (pid, *map(int, children.stdout.split())):
            os.kill(one, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(CONTROL.encode())
    except OSError:
        return False


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "start":
        sys.exit(_start([word for word in rest if word != "-d"]))
    if role == "daemon":
        Daemon("-multiuser-server" in rest).serve(int(rest[0]))
    if role == "client":
        client(int(rest[0]) if rest else None)
