"""The agent as a person meets it: its commands, and the whole of it as a real process that gets killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agents import simulator_world as world
from agents.__main__ import main
from agents.config import Config
from agents.simulator_state import Store
from pool.core.wire import GpuReport
from tests.agents.node_broker import NODE, SECRET, Broker, running
from tests.agents.stand_in import TOKEN, Node, StandIn, command, gpu_of, slice_

A, B = slice_("a", 0), slice_("b", 1)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as one:
        yield one


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running() as one:
        yield one


@pytest.fixture
def node(stand_in: StandIn, tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path / "node", stand_in, NODE)
    yield one
    one.clear()
    if one.place.driver.exists():
        world.stop_processes(one.place.folder)


def uuid_of(node: Node, index: int = 0) -> str:
    return Store(node.place.folder).read().gpus[index].uuid


def in_force(generation: int, *allocations: str) -> Callable[[GpuReport], bool]:
    return lambda gpu: gpu.generation == generation and set(gpu.held) == set(allocations)


class TestJoin:
    def test_it_stores_the_token_and_shows_it_to_nobody(self, node: Node, stand_in: StandIn) -> None:
        done = node.call(
            "join", "--portal", stand_in.url, "--code", "right", "--name", NODE, "--simulate", "1xH100-80GB"
        )
        assert "joined" in done.stdout
        assert "doctor" in done.stdout
        assert TOKEN not in done.stdout + done.stderr
        stored = msgspec.json.decode(node.place.agent.read_bytes(), type=Config)
        assert (stored.token, stored.node, stored.simulated) == (TOKEN, NODE, "1xH100-80GB")
        assert stat.S_IMODE(os.stat(node.place.agent).st_mode) == 0o600
        assert stand_in.asks[0].machine_id == Store(node.place.folder).read().machine_id

    def test_it_makes_the_machine_that_was_asked_for(self, node: Node) -> None:
        domain = "0b6b1ab9-3f5e-4f0c-9d4b-8f1d8f6a7b11"
        node.join("4xGB200-186GB", "--fabric", domain, "--mig", "1,2")
        machine = Store(node.place.folder).read()
        assert [gpu.mig for gpu in machine.gpus] == [False, True, True, False]
        assert {gpu.cluster for gpu in machine.gpus} == {domain}

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["--code", "wrong", "--name", "node-1"], "This code is not valid"),
            (["--code", "right", "--name", "node:*"], "not a node's name"),
            (["--code", "right", "--name", "n" * 64], "not a node's name"),
            (["--code", "right", "--name", "node-1", "--simulate", "9xABACUS"], "cannot be simulated"),
            (["--code", "right", "--name", "node-1", "--mig", "0"], "say --simulate too"),
        ],
    )
    def test_it_says_why_it_could_not(
        self,
        stand_in: StandIn,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        words: list[str],
        says: str,
    ) -> None:
        assert main(["join", "--state", str(tmp_path), "--portal", stand_in.url, *words]) == 1
        assert says in capsys.readouterr().err
        assert not (tmp_path / "agent.json").exists()

    def test_a_refused_join_keeps_the_former_one(
        self, stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["join", "--state", str(tmp_path), "--portal", stand_in.url, "--name", "node-1", "--code"]
        assert main([*words, "right"]) == 0
        before = (tmp_path / "agent.json").read_bytes()
        assert main([*words, "wrong"]) == 1
        assert (tmp_path / "agent.json").read_bytes() == before

    def test_a_portal_that_does_not_answer_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [
            "join",
            "--state",
            str(tmp_path),
            "--portal",
            "http://127.0.0.1:1",
            "--name",
            "n",
            "--code",
            "c",
        ]
        assert main(words) == 1
        assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


class TestFreezeAndStatus:
    def test_freezing_needs_neither_portal_nor_join(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["freeze", "--state", str(tmp_path)]) == 0
        assert (tmp_path / "frozen").exists()
        assert main(["freeze", "--state", str(tmp_path), "--off"]) == 0
        assert main(["freeze", "--state", str(tmp_path), "--off"]) == 0
        assert not (tmp_path / "frozen").exists()

    def test_status_of_a_node_that_has_not_joined_says_what_to_do(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["status", "--state", str(tmp_path)]) == 1
        assert "agents join" in capsys.readouterr().err

    def test_status_before_the_first_report(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        node.join()
        assert main(["status", "--state", str(node.place.folder)]) == 0
        said = capsys.readouterr().out
        assert "not running" in said
        assert "No report yet" in said

    def test_status_tells_slices_troubles_and_no_secret(
        self, node: Node, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
    ) -> None:
        node.join("2xH100-80GB", "--mig", "0,1")
        one, other = uuid_of(node), uuid_of(node, 1)
        stand_in.say(manage=(one,), commands=(command(one, 3, A), command(other, 2, A)))
        node.start()
        stand_in.await_gpu(one, in_force(3, "a"))
        seen = stand_in.await_report(lambda report: gpu_of(report, other).trouble is not None).seq
        stand_in.await_report(lambda report: report.seq > seen)  # by now it has left the former for `status`
        words = ["status", "--state", str(node.place.folder)]
        assert main(words) == 0
        said = capsys.readouterr().out
        for part in ("Agent: running", "1g.10gb @0+1 MIG-", "generation 3", "observe", "H100"):
            assert part in said
        node.call("freeze")
        stand_in.await_report(lambda report: report.frozen)
        assert main(words) == 0
        assert "FROZEN here" in capsys.readouterr().out
        assert main(["status", "--json", "--state", str(node.place.folder)]) == 0
        raw = capsys.readouterr().out
        assert json.loads(raw)["last"]["report"]["gpus"][0]["held"] == ["a"]
        assert TOKEN not in said + raw

    def test_simulate_is_passed_on(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        node.join()
        before = Store(node.place.folder).read().boot_id
        assert main(["simulate", "--state", str(node.place.folder), "reboot"]) == 0
        assert Store(node.place.folder).read().boot_id != before
        assert main(["simulate", "--state", str(node.place.folder), "lose", "--gpu", "9"]) == 2


class TestSettings:
    def test_an_operator_shows_and_changes_them(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        node.join()
        words = ["config", "--state", str(node.place.folder)]
        assert main([*words, "pause_units=nvidia-dcgm", "exporter_port=9411"]) == 0
        assert "next start" in capsys.readouterr().out
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "pause_units=nvidia-dcgm\n" in said
        assert "exporter_port=9411\n" in said
        assert TOKEN not in said
        assert stat.S_IMODE(os.stat(node.place.agent).st_mode) == 0o600

    def test_what_is_no_setting_changes_nothing(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        node.join()
        before = node.place.agent.read_bytes()
        assert main(["config", "--state", str(node.place.folder), "token=mine"]) == 1
        assert "no NAME=VALUE" in capsys.readouterr().err
        assert node.place.agent.read_bytes() == before

    def test_doctor_answers_before_anything_was_joined(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["doctor", "--state", str(tmp_path)])
        assert capsys.readouterr().out.strip()
        assert not (tmp_path / "agent.json").exists()


class TestRun:
    def test_a_command_comes_through_the_broker_and_is_reported(
        self, node: Node, stand_in: StandIn, broker: Broker
    ) -> None:
        stand_in.broker_url = broker.urls()["tcp"]
        node.join()
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,), next_report_s=60.0)
        node.start(CELERY_BROKER_URL="redis://127.0.0.1:1/0", DJANGO_SETTINGS_MODULE="portal.settings")
        stand_in.await_report(lambda report: report.broker)
        broker.publish(command(uuid, 1, A, B))
        gpu = stand_in.await_gpu(uuid, in_force(1, "a", "b"))
        assert gpu.instances is not None
        assert len({one.mig_uuid for one in gpu.instances}) == 2
        broker.publish(command(uuid, 2))
        stand_in.await_gpu(uuid, lambda gpu: gpu.generation == 2 and gpu.instances == ())
        assert node.end() == 0
        said = node.log.read_text()
        assert TOKEN not in said
        assert SECRET not in said

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_ends_within_two_seconds(
        self, node: Node, stand_in: StandIn, broker: Broker, number: signal.Signals
    ) -> None:
        stand_in.broker_url = broker.urls()["tcp"]
        node.join()
        node.start()
        stand_in.await_report(lambda report: report.broker)
        before = time.monotonic()
        assert node.end(number) == 0
        assert time.monotonic() - before < 2

    def test_it_ends_within_two_seconds_also_beside_a_silent_broker(
        self, node: Node, stand_in: StandIn, broker: Broker
    ) -> None:
        stand_in.broker_url = broker.urls()["tcp"]
        node.join()
        node.start()
        stand_in.await_report(lambda report: report.broker)
        assert broker.server.pid is not None
        os.kill(broker.server.pid, signal.SIGSTOP)
        try:
            before = time.monotonic()
            assert node.end() == 0
            assert time.monotonic() - before < 2
        finally:
            os.kill(broker.server.pid, signal.SIGCONT)

    def test_without_a_broker_commands_come_with_the_answers(self, node: Node, stand_in: StandIn) -> None:
        node.join()
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,), commands=(command(uuid, 1, A),))
        node.start()
        stand_in.await_gpu(uuid, in_force(1, "a"))
        assert node.end() == 0

    def test_a_broker_that_is_not_there_holds_nothing_up(self, node: Node, stand_in: StandIn) -> None:
        stand_in.broker_url = "redis://node-node-1:pw@127.0.0.1:1/0"
        node.join()
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,), commands=(command(uuid, 1, A),))
        node.start()
        gpu = stand_in.await_gpu(uuid, in_force(1, "a"))
        assert gpu.mig
        assert not stand_in.reports[-1].broker

    def test_a_second_agent_on_the_folder_is_refused(self, node: Node, stand_in: StandIn) -> None:
        node.join()
        node.start()
        stand_in.await_report(lambda report: True)
        done = node.call("run", check=False)
        assert done.returncode == 1
        assert "Another agent runs" in done.stderr

    def test_it_stays_small(self, node: Node, stand_in: StandIn, broker: Broker) -> None:
        stand_in.broker_url = broker.urls()["tcp"]
        node.join("8xH100-80GB", "--mig", "0,1,2,3")
        uuid = uuid_of(node)
        held = [slice_(f"s{start}", start) for start in range(7)]
        stand_in.say(manage=(uuid,), commands=(command(uuid, 1, *held),))
        node.start()
        stand_in.await_gpu(uuid, lambda gpu: len(gpu.held) == 7)
        assert node.process is not None
        pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") <= 70e6


class TestKilled:
    def test_between_command_and_report(self, node: Node, stand_in: StandIn, broker: Broker) -> None:
        stand_in.broker_url = broker.urls()["tcp"]
        node.join()
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,))
        node.start()
        last = 0
        layouts = [(A, B), (), (B,), (A, B), ()]
        for generation, (held, delay_s) in enumerate(
            zip(layouts, (0, 0.01, 0.02, 0.04, 0.005), strict=True), 1
        ):
            stand_in.await_report(lambda report: report.broker)
            wanted = command(uuid, generation, *held)
            broker.publish(wanted)
            time.sleep(delay_s)  # a kill -9 has no condition to wait for: the instants are the point
            node.end(signal.SIGKILL)
            stand_in.say(commands=(wanted,))
            stand_in.reports.clear()
            node.start()
            gpu = stand_in.await_gpu(uuid, in_force(generation, *(one.allocation for one in held)))
            assert gpu.instances is not None
            assert [(one.start, one.owned) for one in gpu.instances] == [(one.start, True) for one in held]
            assert last < stand_in.reports[0].seq
            last = stand_in.reports[-1].seq

    def test_a_slice_in_use_survives_the_agent(self, node: Node, stand_in: StandIn) -> None:
        node.join()
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,), commands=(command(uuid, 1, A),))
        node.start()
        before = stand_in.await_gpu(uuid, in_force(1, "a")).instances
        pid = world.process(node.place.folder, 0, 0)
        node.end(signal.SIGKILL)
        node.start()
        report = stand_in.await_report(
            lambda report: report.seq > stand_in.reports[0].seq and bool(gpu_of(report, uuid).held)
        )
        after = gpu_of(report, uuid).instances
        assert before is not None
        assert after is not None
        assert after[0].mig_uuid == before[0].mig_uuid
        os.kill(pid, 0)

    @pytest.mark.parametrize("spec", ["2xA100-80GB", "2xH100-80GB"])
    def test_after_a_boot_everything_is_restored_once_the_portal_answers(
        self, node: Node, stand_in: StandIn, spec: str
    ) -> None:
        node.join(spec)
        uuid = uuid_of(node)
        stand_in.say(manage=(uuid,), commands=(command(uuid, 1, A, B),))
        node.start()
        stand_in.await_gpu(uuid, in_force(1, "a", "b"))
        node.end(signal.SIGKILL)
        world.reboot(node.place.folder)
        stand_in.status = 503
        node.start()
        report = stand_in.await_refused(lambda report: report.dropped >= 2)
        assert gpu_of(report, uuid).instances == ()
        stand_in.say(commands=())
        stand_in.status = 200
        gpu = stand_in.await_gpu(uuid, in_force(1, "a", "b"))
        assert gpu.mig
