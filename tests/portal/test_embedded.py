"""The private pair starts, stops, keeps its data, and recovers from whatever was killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from portal import embedded
from portal.processes import Account, Fault, server_account, start_time, wait_until
from portal.servers import Place, reachable

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-tests-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    embedded.clear(folder)


def start(state: Path, use_system: bool = True) -> embedded.Servers:
    return embedded.start(state, durable=False, use_system=use_system)


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def pids(servers: embedded.Servers) -> list[int]:
    found = [servers.postgres.pid, servers.redis.pid]
    assert all(found)
    return [pid for pid in found if pid]


@pytest.mark.parametrize("use_system", [True, False], ids=["system", "bundled"])
def test_it_starts_both_with_all_that_the_tables_need(state: Path, use_system: bool) -> None:
    with start(state, use_system) as servers:
        ask(servers.database_url, "create extension btree_gist")
        assert ask(servers.database_url, "select upper('äöß'), 'ж' ~ '\\w'") == [("ÄÖß", True)]
        assert ask(servers.database_url, "show timezone") == [("UTC",)]
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.acl_whoami() == "default"


def test_redis_answers_nobody_without_the_password(state: Path) -> None:
    with (
        start(state) as servers,
        redis.Redis(port=servers.redis.port) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_postgresql_listens_on_no_network(state: Path) -> None:
    with start(state) as servers:
        assert ask(servers.database_url, "show listen_addresses") == [("",)]


def test_stopping_ends_both(state: Path) -> None:
    with start(state) as servers:
        running = pids(servers)
    assert [start_time(pid) for pid in running] == [None, None]


def test_a_second_start_finds_its_data_and_its_addresses(state: Path) -> None:
    with embedded.start(state) as servers:
        first = servers.environment()
        ask(servers.database_url, "create table kept (x int)")
        with redis.Redis.from_url(servers.redis_url) as client:
            client.set("kept", 1)
    with embedded.start(state) as servers:
        assert servers.environment() == first
        assert embedded.addresses(state) == (first["DATABASE_URL"], first["REDIS_URL"])
        assert ask(servers.database_url, "select count(*) from kept") == [(0,)]
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.get("kept") == b"1"


def test_it_refuses_a_folder_that_is_in_use_and_names_the_user(state: Path) -> None:
    with start(state), pytest.raises(Fault, match=f"in use by another start .process {os.getpid()}."):
        start(state)


def test_it_recovers_from_a_start_that_was_killed(state: Path) -> None:
    """Both servers run on; they are ended first, or two would write the same files."""
    code = (
        "import sys; from pathlib import Path; from portal import embedded\n"
        "s = embedded.start(Path(sys.argv[1]), durable=False)\n"
        "print(s.postgres.pid, s.redis.pid, flush=True); input()"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", code, str(state)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert killed.stdin
    assert killed.stdout
    left = [int(pid) for pid in killed.stdout.readline().split()]
    killed.kill()
    killed.wait()
    killed.stdin.close()
    killed.stdout.close()
    assert len(left) == 2
    assert all(start_time(pid) for pid in left)
    with start(state) as servers:
        assert not any(start_time(pid) for pid in left)
        assert ask(servers.database_url, "select 1") == [(1,)]


def test_it_ends_leftovers_even_when_their_folder_was_removed(state: Path) -> None:
    servers = start(state)
    left = pids(servers)
    servers._lock.close()
    shutil.rmtree(state)
    state.mkdir(mode=0o711)
    with start(state) as again:
        assert set(pids(again)).isdisjoint(left)
        for process in (servers.postgres.process, servers.redis.process):
            assert process is not None
            process.wait(10)


def test_it_leaves_a_stranger_alone_who_has_an_old_pid(state: Path) -> None:
    with start(state) as servers:
        notes = [servers.postgres.data / "postmaster.pid", servers.postgres.place.sockets / "redis.pid"]
        text = notes[0].read_text().splitlines()
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        notes[0].write_text("\n".join([str(stranger.pid), *text[1:]]))
        if not notes[1].parent.exists():  # it goes with the last server, when it is empty
            notes[1].parent.mkdir(mode=0o700)
            owner = servers.postgres.data.stat()
            os.chown(notes[1].parent, owner.st_uid, owner.st_gid)
        notes[1].write_text(f"{stranger.pid}\n")
        with start(state) as servers:
            assert ask(servers.database_url, "select 1") == [(1,)]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_crashed_redis_comes_back_on_its_port_without_the_users_it_was_told(state: Path) -> None:
    with embedded.start(state) as servers, redis.Redis.from_url(servers.redis_url) as client:
        url = servers.redis_url
        client.acl_setuser("node-a", enabled=True, nopass=True)
        client.set("kept", 1)
        client.bgrewriteaof()
        assert wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, 10)
        servers.kill_redis()
        servers.start_redis()
        assert servers.redis_url == url
        assert client.get("kept") == b"1"
        assert client.acl_users() == ["default"]


def test_a_restart_of_postgresql_breaks_connections_and_keeps_rows(state: Path) -> None:
    with start(state) as servers, psycopg.connect(servers.database_url) as connection:
        ask(servers.database_url, "create table kept (x int)")
        servers.restart_postgres()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        assert ask(servers.database_url, "select count(*) from kept") == [(0,)]


def test_redis_moves_when_somebody_has_taken_its_port(state: Path) -> None:
    with start(state) as servers:
        port = servers.redis.port
    with socket.create_server(("127.0.0.1", port)), start(state) as servers:
        assert servers.redis.port != port
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()


def test_redis_keeps_the_program_that_wrote_its_data(state: Path) -> None:
    """An older one, installed later, could not read them."""
    with start(state, use_system=False) as servers:
        assert servers.redis.process is not None
        first = servers.redis.process.args[0]  # type: ignore[index]
    with start(state, use_system=True) as servers:
        assert servers.redis.process is not None
        assert servers.redis.process.args[0] == first  # type: ignore[index]
    (state / "redis.program").write_text("/nonexistent/redis-server\n")
    start(state).stop()


def test_nothing_is_left_running_when_one_of_the_two_cannot_start(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Path:
        raise Fault("No Redis was found.")

    monkeypatch.setattr("portal.broker.redis_binary", missing)
    with pytest.raises(Fault, match="No Redis"):
        start(state)
    assert not (state / "postgresql/postmaster.pid").exists()
    monkeypatch.undo()
    start(state).stop()


def test_it_says_which_postgresql_its_data_need(state: Path) -> None:
    (state / "postgresql").mkdir()
    (state / "postgresql/PG_VERSION").write_text("9\n")
    with pytest.raises(Fault, match="belongs to PostgreSQL 9, which is not installed"):
        start(state)


def test_it_tells_the_last_words_of_a_server_that_does_not_start(state: Path) -> None:
    with start(state):
        pass
    configuration = state / "postgresql/postgresql.conf"
    configuration.write_text(configuration.read_text() + "\nno_such_setting = 1\n")
    with pytest.raises(Fault, match="no_such_setting"):
        start(state)


def test_it_refuses_a_socket_folder_of_somebody_else(state: Path) -> None:
    sockets = Path("/tmp") / f"gp-{embedded._digest(state)}"
    sockets.mkdir(mode=0o777)
    sockets.chmod(0o777)
    try:
        with pytest.raises(Fault, match="not a private folder"):
            start(state)
    finally:
        sockets.rmdir()


def test_settings_of_the_caller_do_not_leak_into_the_servers(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    servers = start(state)
    monkeypatch.undo()
    with servers:
        assert ask(servers.database_url, "show port") == [("5432",)]


def test_servers_outlive_a_signal_to_the_terminal(state: Path) -> None:
    """Ctrl-C reaches the whole foreground group; the servers must end last."""
    with start(state) as servers:
        assert all(os.getsid(pid) == pid != os.getsid(0) for pid in pids(servers))


def test_a_server_that_ignores_its_signals_is_ended_by_force(state: Path) -> None:
    servers = start(state)
    stuck = servers.redis.process
    assert stuck is not None
    servers.redis.stop_signals = ((signal.SIGTERM, 0.1),)
    stuck.send_signal(signal.SIGSTOP)
    servers.stop()
    assert stuck.poll() == -signal.SIGKILL


def test_programs_below_a_closed_home_are_copied_with_what_lies_beside_them(tmp_path: Path) -> None:
    """Their libraries are found relative to them."""
    account = server_account() or Account("nobody", 65534, 65534)
    home = tmp_path / "home"
    for file in ("package/install/bin/server", "package.libs/lib.so"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    place = Place(tmp_path / "data", tmp_path / "sockets", account)
    home.chmod(0o700)
    found = reachable(home / "package/install", [home / "package.libs"], "bin/server", place)
    if os.geteuid() == 0:
        assert found == tmp_path / "data/programs/package/install"
        assert (found / "../../package.libs/lib.so").resolve().exists()
        assert (found / "bin/server").exists()
        (home / "package/install/bin/server").write_text("a later release")
        reachable(home / "package/install", [home / "package.libs"], "bin/server", place)
        assert (found / "bin/server").read_text() == "a later release"
    ours = Place(tmp_path / "data", tmp_path / "sockets", None)
    assert reachable(home / "package/install", [], "bin/server", ours) == home / "package/install"


def test_data_move_out_of_a_closed_home_and_go_with_the_folder(tmp_path: Path) -> None:
    """tmp_path is open to its owner alone, as root's home is."""
    state = tmp_path / "state"
    with start(state) as servers:
        elsewhere = servers.postgres.data.parent
        assert (elsewhere == state) == (os.geteuid() != 0)
        assert ask(servers.database_url, "create table gone (x int)") == []
    shutil.rmtree(state)
    with start(state) as servers, pytest.raises(psycopg.errors.UndefinedTable):
        ask(servers.database_url, "select * from gone")
    embedded.clear(state)
    assert not elsewhere.exists()


def test_a_command_starts_the_pair_for_itself_and_ends_it(state: Path) -> None:
    """`GPUPOOL_EMBEDDED=1 manage.py ...` without DATABASE_URL; `check` needs no server and starts none."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    environment = kept | {"GPUPOOL_EMBEDDED": "1", "GPUPOOL_DATA_DIR": str(state)}
    check = [sys.executable, "manage.py", "check"]
    assert subprocess.run(check, cwd=ROOT, env=environment, check=False).returncode == 0
    assert not (state / "postgresql").exists()
    code = "from django.db import connection as c; k = c.cursor(); print(k.execute('select 42').fetchone())"
    shell = [sys.executable, "manage.py", "shell", "--verbosity", "0", "--command", code]
    done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "(42,)" in done.stdout, done.stderr
    assert not (state / "postgresql/postmaster.pid").exists()
