"""A private pair of PostgreSQL and Redis for the demo and the tests.

`start()` brings both up in one folder, under a lock, and `Servers.stop()` ends
them. Importing this module, and `addresses()`, start nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from portal.broker import Redis
from portal.postgres import Postgres
from portal.processes import Account, Fault, server_account
from portal.servers import Place

ROOT = Path(__file__).resolve().parent.parent
#: What `addresses` answers before the first start: well-formed, and reachable by nobody.
NOWHERE = ("postgresql://gpupool@/gpupool?host=/nonexistent", "redis://127.0.0.1:1/0")


def state_folder() -> Path:
    """Where the demo keeps everything: GPUPOOL_DATA_DIR, or `.data` beside manage.py."""
    return Path(os.environ.get("GPUPOOL_DATA_DIR") or ROOT / ".data").absolute()


def addresses(state: Path) -> tuple[str, str]:
    """DATABASE_URL and REDIS_URL of the pair in `state`, as last started."""
    try:
        note = json.loads((state / "servers.json").read_text())
        return note["database_url"], note["redis_url"]
    except (OSError, ValueError, KeyError):
        return NOWHERE


def write_private(path: Path, text: str) -> None:
    """Write a file that only we may read; it is never seen half-written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


class Servers:
    """A running pair. Also a context manager: leaving it stops both.

    `database_url` and `redis_url` are what clients use; the kill and restart
    verbs are for tests of what an outage does.
    """

    def __init__(
        self, state: Path, place: Place, password: str, lock: IO[str], use_system: bool = True
    ) -> None:
        self.state = state
        self.postgres = Postgres(place, use_system)
        self.redis = Redis(place, password, use_system)
        self._lock = lock

    @property
    def database_url(self) -> str:
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        return self.redis.url

    @property
    def redis_password(self) -> str:
        return self.redis.password

    def environment(self) -> dict[str, str]:
        """The variables that point a process at this pair."""
        return {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url}

    def start(self) -> None:
        """Start both; if one fails, the other is not left behind."""
        try:
            self.postgres.start()
            self.redis.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both and give the folder free. Calling it twice is harmless."""
        self.redis.stop()
        self.postgres.stop()
        with contextlib.suppress(OSError):  # something is left in it only after a crash
            self.postgres.place.sockets.rmdir()
        self._lock.close()

    def kill_redis(self) -> None:
        """As a crash: nothing is saved beyond what the append-only file has."""
        self.redis.kill()

    def start_redis(self) -> None:
        """Start it again on the same port; users made at run time are forgotten, as Redis does."""
        self.redis.start()

    def kill_postgres(self) -> None:
        self.postgres.kill()

    def start_postgres(self) -> None:
        self.postgres.start()

    def restart_postgres(self) -> None:
        """A fast shutdown, which breaks every connection, and a start."""
        self.postgres.stop()
        self.postgres.start()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    state: Path, *, durable: bool = True, use_system: bool = True, lock: IO[str] | None = None
) -> Servers:
    """Start the pair of `state`, clearing away what a killed start has left.

    `use_system=False` takes the bundled binaries even where the system has its
    own; `lock` is what `hold` gave, and is ours from now on. Raises `Fault`
    with one sentence: folder in use, nothing to start, a server that does not
    come up.
    """
    state = state.absolute()
    lock = lock or hold(state)
    try:
        account = server_account()
        data = _data_folder(state, account)
        place = Place(data, _socket_folder(data, account), account, durable)
        servers = Servers(state, place, _password(state), lock, use_system)
        servers.start()
    except BaseException:
        lock.close()
        raise
    note: dict[str, Any] = {"database_url": servers.database_url, "redis_url": servers.redis_url}
    write_private(state / "servers.json", json.dumps(note | {"data": str(data)}, indent=2) + "\n")
    return servers


def clear(state: Path) -> None:
    """End what a killed start has left running in `state`, and remove the folder with its data.

    Raises `Fault` if the folder is in use.
    """
    lock = hold(state)
    try:
        account = server_account()
        data = _data_folder(state, account)
        place = Place(data, _socket_folder(data, account), account)
        Redis(place, _password(state)).end_leftover()
        Postgres(place).end_leftover()
        remove(place.sockets, data, state)
    finally:
        lock.close()


def remove(*folders: Path) -> None:
    """Remove folders and all in them; what is gone already is no error."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def hold(state: Path) -> IO[str]:
    """Take the folder, making it first; the kernel gives it free when we end, however we end."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (state / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise Fault(
            f"{state} is in use by another start (process {holder}): "
            "stop that one first, or choose another folder with GPUPOOL_DATA_DIR."
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _password(state: Path) -> str:
    path = state / "redis.password"
    if not path.exists():
        write_private(path, secrets.token_hex(24) + "\n")
    return path.read_text().strip()


def _data_folder(state: Path, account: Account | None) -> Path:
    """Where the servers' data lie: in `state`, or below /var/lib if their account cannot get there.

    Without its note in `state` the folder below /var/lib is of a state that
    somebody removed to start afresh, and goes too.
    """
    if account is None:
        return state
    state.chmod(0o711)
    if account.may_enter(state):
        return state
    data = Path("/var/lib") / f"gpupool-{_digest(state)}"
    if data.exists() and not (state / "servers.json").exists() and not (state / "data.elsewhere").exists():
        shutil.rmtree(data)
    data.mkdir(mode=0o711, parents=True, exist_ok=True)
    (state / "data.elsewhere").write_text(f"{data}\n")
    return data


def _socket_folder(data: Path, account: Account | None) -> Path:
    """A short path (sun_path holds 104 bytes), open to the servers' account and to root alone."""
    owner = os.geteuid() if account is None else account.uid
    folder = Path("/tmp") / f"gp-{_digest(data)}"  # noqa: S108 - private, and checked below
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if account is not None:
            os.chown(folder, account.uid, account.gid)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != owner or stat.S_IMODE(seen.st_mode) != 0o700:
        raise Fault(f"{folder} is not a private folder of the servers' account: remove it and start again.")
    return folder


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]
