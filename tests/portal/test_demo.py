"""The demo starts, recovers from being killed, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.simulator_state import create_state
from portal import demo, demo_parts, embedded
from portal.processes import Fault, start_time, wait_until

ROOT = embedded.ROOT
START_SECONDS = 240.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Run:
    """`python -m portal.demo` as a person would start it."""

    def __init__(self, state: Path, port: int) -> None:
        self.state = state
        self.log = state.parent / f"{state.name}.out"
        self.log.unlink(missing_ok=True)
        call = [sys.executable, "-m", "portal.demo", "--port", str(port), "--state", str(state)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(call, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)

    @property
    def words(self) -> str:
        return self.log.read_text()

    def await_ready(self) -> None:
        assert wait_until(
            lambda: "Ready after" in self.words or self.process.poll() is not None, START_SECONDS
        )
        assert self.process.poll() is None, self.words

    def children(self) -> dict[str, int]:
        note = json.loads((self.state / "children.json").read_text())
        return {name: pid for name, (pid, _) in note.items()}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(90)


def environment(state: Path) -> dict[str, str]:
    """What a shell has after `set -a; . demo.env`."""
    call = ["/bin/sh", "-c", 'set -a; . "$0"; env', str(state / "demo.env")]
    shown = subprocess.run(call, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in shown.stdout.splitlines())


def ask(values: dict[str, str], path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {values['GPUPOOL_TOKEN']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(values["GPUPOOL_URL"] + path, data, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.load(response)


def processes_of(state: Path) -> list[int]:
    """Whoever has the demo's folder in its command line or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(state).encode() in seen and int(entry.name) != os.getpid() and start_time(int(entry.name)):
            found.append(int(entry.name))
    return found


@pytest.fixture
def state() -> Iterator[Path]:
    above = Path(tempfile.mkdtemp(prefix="gpupool-demo-", dir="/tmp"))
    above.chmod(0o711)
    yield above / "data"
    embedded.clear(above / "data")
    shutil.rmtree(above)


def book(values: dict[str, str]) -> str:
    """Two slices from now on; the id, once they are there."""
    wish = {
        "team": "vision",
        "pool": "main",
        "title": "first slices",
        "ask": {"kind": "mig", "profile": "1g.10gb", "count": 2},
        "start": None,
        "duration": "PT2H",
        "class": "interactive",
    }
    made: str = ask(values, "/api/v1/reservations", wish)["id"]
    path = f"/api/v1/reservations/{made}"
    assert wait_until(lambda: ask(values, path)["state"] == "active", 60, 0.2)
    assert len({a["mig_uuid"] for a in ask(values, path)["allocations"]} - {None}) == 2
    return path


def check_address_file(state: Path, values: dict[str, str]) -> None:
    assert (state / "demo.env").stat().st_mode & 0o777 == 0o600
    call = [sys.executable, "manage.py", "migrate", "--check"]
    assert subprocess.run(call, cwd=ROOT, env=values, check=False).returncode == 0


def heard_at(values: dict[str, str]) -> dict[str, str]:
    return {node["name"]: node["received_at"] for node in ask(values, "/api/v1/nodes")["results"]}


def check_that_it_heals(run: Run) -> None:
    """A part that dies is started again."""
    web = run.children()["web"]
    os.kill(web, signal.SIGKILL)
    assert wait_until(lambda: run.children().get("web", web) != web, 30)
    assert "web ended (signal SIGKILL)" in run.words


def check_that_nobody_else_gets_in(run: Run, port: int) -> None:
    second = Run(run.state.with_name("second"), port)
    assert second.process.wait(60) == 1
    assert f"Port {port} is taken" in second.words
    assert not (second.state / "postgresql").exists()
    shutil.rmtree(second.state)
    call = [sys.executable, "-m", "portal.demo", "--port", str(free_port()), "--state", str(run.state)]
    third = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert third.returncode == 1
    assert third.stderr.count("\n") == 1
    assert "is in use by another start" in third.stderr


def start_simulated_process(state: Path) -> int:
    folder = str(state / "agents/dgx-h100-01")
    call = [sys.executable, "-m", "agents", "simulate", "--state", folder, "process", "--gpu", "4"]
    shown = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return int(shown.split()[-1])


@pytest.mark.journey
@pytest.mark.timeout(900)
def test_it_runs_and_recovers_and_ends_with_all_that_it_started(state: Path) -> None:
    port = free_port()
    first = Run(state, port)
    first.await_ready()
    values = environment(state)
    assert all(
        login in first.words for login in ("lead", "member", "approver", "operator", "admin", "stranger")
    )
    check_address_file(state, values)
    reservation = book(values)
    check_that_nobody_else_gets_in(first, port)
    check_that_it_heals(first)
    simulated = start_simulated_process(state)

    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    left = first.children()
    second = Run(state, free_port())
    second.await_ready()
    assert "Ended" in second.words
    assert set(left.values()).isdisjoint(second.children().values())
    assert not any(start_time(pid) for pid in left.values())
    moved = environment(state)
    assert moved["GPUPOOL_TOKEN"] == values["GPUPOOL_TOKEN"]
    assert moved["GPUPOOL_URL"] != values["GPUPOOL_URL"]
    assert ask(moved, reservation)["state"] == "active"
    earlier = heard_at(moved)
    assert wait_until(lambda: all(at > earlier[name] for name, at in heard_at(moved).items()), 40)

    assert start_time(simulated)
    assert second.end(signal.SIGTERM) == 0
    assert wait_until(lambda: not processes_of(state), 10)
    assert not start_time(simulated)


# --- The pieces ---------------------------------------------------------------


def quiet_demo(state: Path) -> demo.Demo:
    state.mkdir(parents=True)
    return demo.Demo(state, 1)


def test_it_refuses_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fault, match=f"Port {port} is taken by another program"):
            demo.refuse_taken_port(port)
    demo.refuse_taken_port(port)


@pytest.mark.parametrize("port", ["0", "65536", "web", "-1", "9" * 5000])
def test_it_refuses_a_port_that_is_none(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", f"--port={port}"])
    with pytest.raises(SystemExit):
        demo.main()
    assert "is no port; choose one from 1 to 65535" in capsys.readouterr().err


def test_a_node_joins_anew_without_its_config_or_its_machine(tmp_path: Path) -> None:
    whole, node = demo.Demo(tmp_path, 1), demo_parts.NODES[0]
    folder = tmp_path / "agents" / node.name
    folder.mkdir(parents=True)
    (folder / "agent.json").touch()
    assert not whole._has_joined(node)
    (folder / "driver.json").touch()
    assert whole._has_joined(node)
    (folder / "agent.json").unlink()
    assert not whole._has_joined(node)


def test_a_step_that_fails_is_told_in_one_sentence_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('noise'); sys.exit('the reason')"
    with pytest.raises(Fault, match=r"^manage.py x failed: the reason \(all of it: .*start.log\)$"):
        quiet_demo(tmp_path / "s")._call("manage.py x", (sys.executable, "-c", code), dict(os.environ))


def test_a_signal_ends_a_step_at_once(tmp_path: Path) -> None:
    starting = quiet_demo(tmp_path / "s")
    starting.stopping = True
    began = time.monotonic()
    with pytest.raises(demo.Stopped):
        starting._call("sleep", ("sleep", "60"), dict(os.environ))
    assert time.monotonic() - began < 10


def test_nothing_is_left_when_a_step_fails(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: demo.Demo, *arguments: str) -> None:
        raise Fault("no tables")

    monkeypatch.setattr(demo.Demo, "_manage", fail)
    with pytest.raises(Fault, match="no tables"):
        demo.Demo(state, free_port()).run()
    assert not processes_of(state)
    embedded.start(state, durable=False).stop()


def test_its_processes_inherit_no_setting_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "GPUPOOL_URL", "PGHOST", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.setenv(name, "somewhere else")
    monkeypatch.setenv("LANG", "C.UTF-8")
    inherited = demo_parts.inherited()
    assert "somewhere else" not in inherited.values()
    assert inherited["LANG"] == "C.UTF-8"


def test_a_shell_reads_every_value_back(tmp_path: Path) -> None:
    odd = {"REDIS_URL": "redis://:p'a$s@x/0", "DATABASE_URL": "postgresql://a@/b?host=/tmp/c&port=1"}
    demo_parts.write_environment(tmp_path / "demo.env", odd, {"lead": "gpp_1_x", "admin": "gpp_2_y"})
    read = environment(tmp_path)
    assert {name: read[name] for name in odd} == odd
    assert (read["GPUPOOL_TOKEN"], read["GPUPOOL_ADMIN_TOKEN"]) == ("gpp_1_x", "gpp_2_y")


def test_an_agent_hears_of_new_ports_and_keeps_its_secrets(tmp_path: Path) -> None:
    config = tmp_path / "agent.json"
    kept = {"portal": "http://127.0.0.1:1", "node": "n", "token": "t", "report_s": 15.0, "simulated": "1xX"}
    config.write_text(json.dumps(kept | {"broker_url": "redis://node-n:s@127.0.0.1:2/0"}))
    demo_parts.readdress(config, "http://127.0.0.1:3", "redis://:other@127.0.0.1:4/0")
    found = json.loads(config.read_text())
    assert found == kept | {
        "portal": "http://127.0.0.1:3",
        "broker_url": "redis://node-n:s@127.0.0.1:4/0",
    }
    assert config.stat().st_mode & 0o077 == 0
    config.write_text(json.dumps(kept | {"broker_url": None}))
    demo_parts.readdress(config, "http://127.0.0.1:3", "redis://:other@127.0.0.1:4/0")
    assert json.loads(config.read_text())["broker_url"] is None


@pytest.mark.parametrize("node", demo_parts.NODES, ids=lambda node: node.name)
def test_every_node_can_be_simulated(node: demo_parts.Node, tmp_path: Path) -> None:
    mig = tuple(int(index) for index in node.mig.split(",") if index)
    create_state(tmp_path, node.machine, seed=node.name, cluster=node.fabric or None, mig=mig)
    assert (tmp_path / "driver.json").exists()


def test_the_two_nodes_of_one_domain_name_the_same_fabric() -> None:
    fabrics = {node.name: node.fabric for node in demo_parts.NODES if node.fabric}
    assert set(fabrics) == {"gb200-01", "gb200-02"}
    assert len(set(fabrics.values())) == 1


def test_the_welcome_tells_address_logins_and_where_to_look(tmp_path: Path) -> None:
    logins = [{"username": "lead", "password": "lead-1", "role": "lead of vision"}]
    text = demo_parts.welcome("http://127.0.0.1:8000", logins, tmp_path, 12.3)
    assert "http://127.0.0.1:8000" in text
    assert re.search(r"lead +lead-1 +lead of vision", text)
    assert str(tmp_path / "demo.env") in text
