"""When a site's programs are run: once for each thing that happened, also over restarts and boots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents.happened import Log
from agents.hook_programs import Run
from agents.hooks import Hooks, environment, next_job
from pool.core.wire import Held
from tests.agents.people import NOON, Node, held, stay

SOON = NOON + timedelta(minutes=15)


class Scene(Node):
    """A node whose programs are only noted, as "event allocation". `gate` shut: they do not return."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[str] = []
        self.runs: list[Run] = []
        self.gate = threading.Event()
        self.gate.set()
        self.news = threading.Condition()
        self.log = Log(self.place)
        self.hooks = self.make()

    def make(self) -> Hooks:
        return Hooks(self.place, self.stays, self.log, run_all=self._run)

    def _run(self, folder: Path, environment: Mapping[str, str]) -> list[Run]:
        assert folder == self.place.hooks / f"on-{environment['GPUPOOL_EVENT']}.d"
        with self.news:
            self.ran.append(f"{environment['GPUPOOL_EVENT']} {environment['GPUPOOL_ALLOCATION']}")
            self.news.notify_all()
        self.gate.wait(10)
        return self.runs

    def notice(self, *some: Held) -> None:
        self.hooks.notice({one.allocation: one for one in some})

    def wait(self, *ran: str) -> None:
        """Until exactly these were run, in this order, and everything is settled."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.ran) >= len(ran), 10), self.ran
        self.settle()
        assert self.ran == list(ran)

    def settle(self) -> None:
        """Until nothing runs and nothing is due."""
        hooks = self.hooks
        for _ in range(10_000):
            with hooks._turn:
                if hooks._at_work is None and next_job(hooks._known, hooks._in_force, self.boot) is None:
                    return
            threading.Event().wait(0.001)
        raise AssertionError("the hooks did not come to rest")

    def restart(self) -> None:
        self.hooks.stop(10)
        self.hooks = self.make()
        self.hooks.start()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    one = Scene(tmp_path)
    one.hooks.start()
    yield one
    one.gate.set()
    one.hooks.stop(10)


def test_a_stay_has_one_start_and_one_end(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.notice(held("a"))
    scene.wait("start a")
    scene.hear(stay("a", ending=True))
    scene.notice()
    scene.wait("start a", "end a")
    scene.hear()
    scene.notice()
    scene.wait("start a", "end a")


def test_it_starts_when_it_is_in_force_and_not_when_it_is_told_of(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice()
    scene.settle()
    assert scene.ran == []
    scene.notice(held("a"))
    scene.wait("start a")


def test_it_is_not_over_while_something_of_it_is_in_force_or_it_only_lost_its_slice(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.hear(stay("a", ending=True))
    scene.notice(held("a"))  # in use: the slice stands
    scene.hear(stay("a"))
    scene.notice()  # a broken card, say: the stay goes on
    scene.wait("start a")


def test_each_notice_is_told_once(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    for until in (SOON, SOON, SOON + timedelta(minutes=5), None):
        scene.hear(stay("a", notice_until=until, why="reclaim"))
        scene.notice(held("a"))
        scene.settle()
    scene.wait("start a", "notice a", "notice a")


def test_ends_come_before_starts_of_the_same_moment(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.hear(stay("b", owner="bob"))
    scene.notice(held("b", owner="bob/red"))
    scene.wait("start a", "end a", "start b")


def test_back_to_back_is_one_stay(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.hear(stay("a", ending=True), stay("b"))
    scene.notice(held("b"))
    scene.wait("start a")
    scene.hear(stay("b", ending=True))
    scene.notice()
    scene.wait("start a", "end b")


@pytest.mark.parametrize(
    "following", [held("b", owner="bob/red"), held("b", start=4, size=4), held("b", profile_id=9)]
)
def test_another_owner_or_place_is_another_stay(scene: Scene, following: Held) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.hear(stay("b"))
    scene.notice(following)
    scene.wait("start a", "end a", "start b")


def test_what_was_run_is_not_run_again_after_a_restart(scene: Scene) -> None:
    scene.hear(stay("a", notice_until=SOON))
    scene.notice(held("a"))
    scene.wait("start a", "notice a")
    scene.restart()
    scene.notice(held("a"))
    scene.wait("start a", "notice a")
    scene.hear()
    scene.notice()
    scene.wait("start a", "notice a", "end a")


def test_an_end_that_came_while_the_agent_was_down_is_run(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.restart()
    scene.settle()
    assert scene.ran == ["start a"]  # nothing before the portal has said how things are
    scene.hear()
    scene.notice()
    scene.wait("start a", "end a")


def test_after_a_boot_the_start_is_run_again_once_the_slice_is_back(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.boot = "boot-2"
    scene.notice()
    scene.settle()
    assert scene.ran == ["start a"]
    scene.notice(held("a"))
    scene.wait("start a", "start a")


def test_a_stay_that_never_started_here_has_no_end(scene: Scene) -> None:
    scene.gate.clear()
    scene.hear(stay("a"), stay("b"))
    scene.notice(held("a"), held("b", start=4, size=4))
    with scene.news:
        assert scene.news.wait_for(lambda: scene.ran == ["start a"], 10)
    scene.hear(stay("a"))
    scene.notice(held("a"))  # b is over before its start was run
    scene.gate.set()
    scene.wait("start a")


def test_who_comes_while_the_end_is_run_has_a_start_of_its_own(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    scene.gate.clear()
    scene.hear()
    scene.notice()
    with scene.news:
        assert scene.news.wait_for(lambda: scene.ran == ["start a", "end a"], 10)
    scene.hear(stay("b"))
    scene.notice(held("b"))
    scene.gate.set()
    scene.wait("start a", "end a", "start b")


def test_a_slow_program_keeps_nobody_waiting(scene: Scene) -> None:
    scene.gate.clear()
    scene.hear(stay("a"))
    scene.notice(held("a"))
    with scene.news:
        assert scene.news.wait_for(lambda: scene.ran == ["start a"], 10)
    scene.notice(held("a"))  # returns
    scene.hooks.stop(0)
    assert scene.ran == ["start a"]


def test_what_each_program_said_is_told(scene: Scene) -> None:
    scene.runs = [Run("10-mount", 3, "no such disk")]
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    (told,) = scene.log.pending()
    assert (told.kind, told.text, told.allocation, told.gpu) == ("hook", "no such disk", "a", "GPU-1")
    assert told.data == {"hook": "10-mount", "rc": 3, "on": "start"}


def test_a_part_that_stumbles_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("disk full")]
    run: Callable[..., Any] = scene._run

    def stumble(*words: Any) -> Any:
        if failures:
            raise failures.pop()
        return run(*words)

    monkeypatch.setattr(scene.hooks, "_run_all", stumble)
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")


def test_a_note_that_cannot_be_read_runs_it_all_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.hear(stay("a"))
    scene.notice(held("a"))
    scene.wait("start a")
    (scene.place.folder / "hooks.json").write_text("{")
    scene.restart()
    scene.notice(held("a"))
    scene.wait("start a", "start a")
    assert "cannot be read" in caplog.text


def test_a_held_slice_that_nothing_is_known_of_runs_nothing(scene: Scene) -> None:
    scene.notice(held("a"))
    scene.settle()
    assert scene.ran == []


def test_the_holder_finds_the_file_while_it_lasts(scene: Scene) -> None:
    path = scene.place.run / "r-a.json"
    scene.hear(stay("a"), stay("later"))
    scene.notice(held("a"))
    assert path.exists()
    assert not (scene.place.run / "r-later.json").exists()
    scene.hear(stay("a", ending=True))
    scene.notice()
    assert path.exists()
    scene.hear()
    scene.notice()
    assert not path.exists()


def test_the_environment_tells_the_reservation() -> None:
    one = stay(
        "a", users=("alice", "red-jobs"), notice_until=SOON, why="reclaim", url="https://p/r/1", end=None
    )
    assert environment("notice", one) == {
        "GPUPOOL_EVENT": "notice",
        "GPUPOOL_RESERVATION": "r-a",
        "GPUPOOL_ALLOCATION": "a",
        "GPUPOOL_GPU": "GPU-1",
        "GPUPOOL_TEAM": "red",
        "GPUPOOL_OWNER": "alice",
        "GPUPOOL_USERS": "alice red-jobs",
        "GPUPOOL_START": "2026-03-02T10:00:00+00:00",
        "GPUPOOL_END": "",
        "GPUPOOL_NOTICE_UNTIL": "2026-03-02T12:15:00+00:00",
        "GPUPOOL_WHY": "reclaim",
        "GPUPOOL_URL": "https://p/r/1",
    }


def test_a_real_program_is_run_with_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = node.place.hooks / "on-start.d"
    folder.mkdir(parents=True)
    for made in (node.place.hooks, folder):
        made.chmod(0o755)
    program = folder / "10-note"
    program.write_text(f"#!/bin/sh\necho $GPUPOOL_RESERVATION >{tmp_path}/note\n")
    program.chmod(0o755)
    log = Log(node.place)
    hooks = Hooks(node.place, node.stays, log)
    hooks.start()
    node.hear(stay("a"))
    hooks.notice({"a": held("a")})
    for _ in range(10_000):
        if log.pending():
            break
        threading.Event().wait(0.001)
    hooks.stop(10)
    assert (tmp_path / "note").read_text() == "r-a\n"
    assert [one.data["rc"] for one in log.pending()] == [0]
