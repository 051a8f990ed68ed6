"""The life of a stay as its holder meets it, on a whole agent as a real process."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agents import processes
from agents import simulator_world as world
from agents.simulator_state import Store
from pool.core.wire import Happened, Policy, Process, Report, Stay
from tests.agents.people import held
from tests.agents.stand_in import Node, StandIn, command, gpu_of

USER = processes.user_name(os.getuid()) or ""


class Scene:
    """One node whose one GPU whoever runs the tests may hold. Nothing outside its folder is touched."""

    def __init__(self, folder: Path, portal: StandIn) -> None:
        self.portal = portal
        self.node = Node(folder / "node", portal)
        self.node.join("1xH100-80GB")
        self.folder = self.node.place.folder
        self.uuid = Store(self.folder).read().gpus[0].uuid

    def stay(self, **more: object) -> Stay:
        fields = {
            "start": datetime.now(UTC) - timedelta(hours=1),
            "end": datetime.now(UTC) + timedelta(hours=1),
        }
        return Stay(
            allocation="a", reservation="r-a", gpu=self.uuid, team="red", owner=USER, users=(USER,),
            **{**fields, **more},  # type: ignore[arg-type]
        )  # fmt: skip

    def say(self, generation: int, *stays: Stay, holds: bool, **policy: object) -> None:
        layout = [held("a", users=(USER,))] if holds else []
        self.portal.say(
            manage=(self.uuid,),
            stays=stays,
            policy=Policy(**policy),  # type: ignore[arg-type]
            commands=(command(self.uuid, generation, *layout, mig=False),),
        )

    def hook(self, event: str, script: str) -> None:
        path = self.node.place.hooks / f"on-{event}.d" / "10-note"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        path.parent.chmod(0o755)

    def run(self, **environment: str) -> int:
        return world.process(self.folder, 0, env=environment, argv=["sleep", "1000"])

    def process(self, report: Report, pid: int) -> Process | None:
        return next((one for one in gpu_of(report, self.uuid).processes or () if one.pid == pid), None)

    def told(self, kind: str) -> list[Happened]:
        """What accepted reports told of one kind, each once."""
        found = {one.n: one for report in list(self.portal.reports) for one in report.happened}
        return [one for _, one in sorted(found.items()) if one.kind == kind]

    def until_told(self, kind: str, count: int = 1) -> list[Happened]:
        self.portal.await_report(lambda _: len(self.told(kind)) >= count)
        return self.told(kind)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with StandIn() as portal:
        one = Scene(tmp_path, portal)
        yield one
        one.node.clear()
        world.stop_processes(one.folder)


def test_a_stay_from_its_start_to_its_overrun(scene: Scene) -> None:
    for event in ("start", "end"):
        scene.hook(event, "echo $GPUPOOL_EVENT of $GPUPOOL_RESERVATION for $GPUPOOL_USERS")
    scene.say(1, scene.stay(), holds=True)
    scene.node.start()
    (started,) = scene.until_told("hook")
    assert started.text == f"start of r-a for {USER}"
    assert (started.allocation, started.data["rc"]) == ("a", 0)
    note = scene.node.place.run / "r-a.json"
    assert json.loads(note.read_text())["ending"] is False

    pid = scene.run(GPUPOOL_RESERVATION="r-a")
    report = scene.portal.await_report(lambda report: scene.process(report, pid) is not None)
    one = scene.process(report, pid)
    assert one is not None
    assert (one.allocation, one.by, one.user, one.command) == ("a", "environment", USER, "sleep 1000")
    assert one.started_at is not None

    scene.say(2, scene.stay(ending=True), holds=False)
    scene.portal.await_report(lambda report: gpu_of(report, scene.uuid).generation == 2)
    scene.portal.await_report(lambda report: scene.process(report, pid) is None)
    (signal,) = scene.until_told("signal")
    assert (signal.data["pid"], signal.data["signal"], signal.allocation) == (pid, 15, "a")
    assert processes.started(pid) is None

    scene.say(2, holds=False)
    ended = scene.until_told("hook", 2)[1]
    assert ended.text == f"end of r-a for {USER}"
    scene.portal.await_report(lambda _: not note.exists())


def test_before_the_end_the_holders_terminal_says_so_and_nobody_elses(scene: Scene) -> None:
    master, slave = os.openpty()
    terminals = scene.node.place.root / "dev/pts"
    terminals.mkdir(parents=True)
    (terminals / "0").symlink_to(os.ttyname(slave))
    os.fchmod(slave, 0o620)
    scene.say(1, scene.stay(end=datetime.now(UTC) + timedelta(minutes=5), url="https://p/r/1"), holds=True)
    scene.node.start()
    (told,) = scene.until_told("line")
    assert told.data == {"terminals": 1}
    ready, _, _ = select.select([master], [], [], 10)
    assert ready
    assert "https://p/r/1" in os.read(master, 4096).decode()
    os.close(master)
    os.close(slave)


def test_after_a_kill_of_the_agent_nothing_is_run_or_said_twice(scene: Scene) -> None:
    scene.hook("start", "echo begun")
    scene.say(1, scene.stay(), holds=True)
    scene.node.start()
    scene.until_told("hook")
    scene.portal.await_report(lambda report: not report.happened)
    assert scene.node.process is not None
    scene.node.process.kill()
    scene.node.process.wait()
    newest = scene.portal.reports[-1].seq
    scene.node.start()
    scene.portal.await_report(lambda report: report.seq > newest + 3)
    assert len(scene.until_told("hook")) == 1
    assert (scene.node.place.run / "r-a.json").exists()


def test_while_the_portal_is_away_an_overrun_is_left_alone(scene: Scene) -> None:
    scene.say(1, scene.stay(), holds=True, grace_s=0, kill=True)
    scene.node.start()
    pid = scene.run(GPUPOOL_RESERVATION="r-a")
    scene.portal.await_report(lambda report: scene.process(report, pid) is not None)
    scene.portal.status = 503
    refused = len(scene.portal.refused)
    scene.say(2, scene.stay(ending=True), holds=False, grace_s=0, kill=True)
    scene.portal.await_refused(lambda _: len(scene.portal.refused) >= refused + 2)
    assert processes.started(pid) is not None
    scene.portal.status = 200
    scene.portal.await_report(lambda report: scene.process(report, pid) is None)
