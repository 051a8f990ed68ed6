"""What is said to holders and to users of a GPU that nobody booked, and that it is said once."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents import terminals
from agents.gpu import Gpu
from agents.happened import Log
from agents.lines import Lines
from pool.core.wire import Process, ShareSeen
from tests.agents.people import GPU, NOON, Node, gpu, held, process, stay
from tests.agents.test_terminals import Terminal

UIDS = {"alice": 1001, "bob": 1002, "red-jobs": 1009}
END = NOON + timedelta(hours=2)


class Scene(Node):
    """A node on which each account has one terminal; what is written to it is only noted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.now = NOON
        self.said: list[tuple[int, str]] = []
        self.log = Log(self.place)
        self.lines = self.make()

    def make(self) -> Lines:
        return Lines(self.place, self.stays, self.log, self.ledger, now=lambda: self.now, uid_of=UIDS.get)

    def tell(self, uid: int, line: str, folder: Path) -> int:
        assert folder == self.place.root / "dev/pts"
        self.said.append((uid, line))
        return 1

    def step(self, *gpus: Gpu, shares: Any = None) -> list[int]:
        """Whom a step tells something."""
        self.said.clear()
        self.lines.step(gpus, shares or {})
        return [uid for uid, _ in self.said]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    one = Scene(tmp_path)
    monkeypatch.setattr(terminals, "tell", one.tell)
    return one


def test_ten_minutes_before_the_end_the_holder_is_told_once(scene: Scene) -> None:
    scene.hear(stay("a", url="https://p/r/1"))
    assert scene.step() == []
    scene.now = END - timedelta(minutes=10, seconds=1)
    assert scene.step() == []
    scene.now = END - timedelta(minutes=10)
    assert scene.step() == [1001]
    (line,) = [text for _, text in scene.said]
    assert "in 10 min" in line
    assert "https://p/r/1" in line
    assert END.astimezone().strftime("%H:%M %Z") in line
    scene.now += timedelta(minutes=5)
    assert scene.step() == []
    scene.now = END
    assert scene.step() == []
    (told,) = scene.log.pending()
    assert (told.kind, told.allocation, told.data) == ("line", "a", {"terminals": 1})


def test_a_restart_says_nothing_twice(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.now = END - timedelta(minutes=9)
    assert scene.step() == [1001]
    scene.lines = scene.make()
    assert scene.step() == []


def test_a_new_end_is_told_again(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.now = END - timedelta(minutes=5)
    assert scene.step() == [1001]
    scene.hear(stay("a", end=END + timedelta(hours=1)))
    assert scene.step() == []
    scene.now = END + timedelta(minutes=55)
    assert scene.step() == [1001]


def test_a_booking_of_many_slices_ends_once(scene: Scene) -> None:
    scene.hear(stay("a", reservation="r"), stay("b", reservation="r", gpu="GPU-2"))
    scene.now = END - timedelta(minutes=5)
    assert scene.step() == [1001]


def test_all_accounts_of_the_holder_are_told(scene: Scene) -> None:
    scene.hear(stay("a", users=("alice", "red-jobs", "nobody-here")))
    scene.now = END - timedelta(minutes=5)
    assert scene.step() == [1001, 1009]


@pytest.mark.parametrize(
    "other",
    [
        stay("a", ending=True),
        stay("a", end=None),
        stay("a", start=END - timedelta(minutes=2)),
        stay("a", users=()),
    ],
)
def test_who_has_no_end_to_expect_is_told_nothing(scene: Scene, other: Any) -> None:
    scene.hear(other)
    scene.now = END - timedelta(minutes=5)
    assert scene.step() == []


def test_each_notice_is_told_with_its_reason(scene: Scene) -> None:
    until = NOON + timedelta(minutes=15)
    scene.hear(stay("a", notice_until=until, why="reclaim"))
    assert scene.step() == [1001]
    assert "reclaim" in scene.said[0][1]
    assert until.astimezone().strftime("%H:%M %Z") in scene.said[0][1]
    assert scene.step() == []
    scene.hear(stay("a", notice_until=until + timedelta(minutes=5)))
    assert scene.step() == [1001]
    scene.hear(stay("a"))
    assert scene.step() == []


def test_the_pool_can_switch_them_off(scene: Scene) -> None:
    scene.hear(stay("a", notice_until=NOON), lines=False)
    assert scene.step() == []


def test_a_holder_is_told_also_while_the_portal_is_away(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.clock += 1000
    scene.now = END - timedelta(minutes=5)
    assert scene.step() == [1001]


# --- Too much memory ----------------------------------------------------------


def over(state: str = "over") -> dict[str, list[ShareSeen]]:
    return {GPU: [ShareSeen(allocation="a", state=state, memory_used_mib=1500)]}


@pytest.mark.parametrize(("policy", "ends"), [("warn", False), ("end", True)])
def test_who_takes_too_much_memory_is_told_once_and_what_will_happen(
    scene: Scene, policy: Any, ends: bool
) -> None:
    scene.hear(stay("a"), over_memory=policy, over_grace_s=300)
    assert scene.step(shares=over()) == [1001]
    assert "1500 MiB" in scene.said[0][1]
    assert ("ended in 5 min" in scene.said[0][1]) is ends
    assert scene.step(shares=over()) == []
    assert scene.step(shares=over("ok")) == []
    assert scene.step(shares=over()) == [1001]


def test_a_share_that_nothing_is_known_of_has_nobody_to_tell(scene: Scene) -> None:
    scene.hear()
    assert scene.step(shares=over()) == []
    scene.hear(stay("a"), lines=False)
    assert scene.step(shares=over()) == []


# --- Users of an unbooked GPU -------------------------------------------------

BOB = process(uid=1002, user="bob")


@pytest.mark.parametrize(("policy", "uids"), [("look", []), ("line", [1002]), ("kill", [1002])])
def test_foreign_use_is_spoken_to_as_the_pool_says(scene: Scene, policy: Any, uids: list[int]) -> None:
    scene.hear(foreign=policy)
    assert scene.step(gpu(BOB)) == uids
    assert all(("ended" in text) is (policy == "kill") for _, text in scene.said)


def test_one_user_is_told_once_while_anything_of_theirs_runs(scene: Scene) -> None:
    scene.hear()
    assert scene.step(gpu(BOB, process(101, uid=1002))) == [1002]
    scene.lines = scene.make()
    assert scene.step(gpu(process(102, uid=1002))) == []
    assert scene.step(gpu()) == []
    assert scene.step(gpu(BOB)) == [1002]


@pytest.mark.parametrize(
    "other", [process(uid=0, user="root"), process(system=True), process(allocation="a"), Process(pid=5)]
)
def test_root_the_system_and_holders_are_not_foreign(scene: Scene, other: Process) -> None:
    scene.hear()
    assert scene.step(gpu(other)) == []


def test_on_a_booked_an_observed_or_a_lost_gpu_nobody_is_told(scene: Scene) -> None:
    scene.hear(stay("a"))
    assert scene.step(gpu(BOB)) == []
    scene.hear()
    scene.hold(held("a"))
    assert scene.step(gpu(BOB)) == []
    scene.hold()
    assert scene.step(replace(gpu(BOB), lost=True)) == []
    scene.ledger.keep_rules([], False)
    assert scene.step(gpu(BOB)) == []
    scene.ledger.keep_rules([GPU], False)
    assert scene.step(gpu(BOB)) == [1002]


def test_while_the_portal_is_away_nobody_can_say_what_is_booked(scene: Scene) -> None:
    scene.hear()
    assert scene.step(gpu(BOB)) == [1002]
    scene.clock += 1000
    assert scene.step(gpu(process(uid=1001))) == []
    scene.hear()
    assert scene.step(gpu(BOB)) == []  # told before


def test_a_line_that_reached_no_terminal_is_no_event(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "tell", lambda *_: 0)
    scene.hear()
    scene.step(gpu(BOB))
    assert scene.log.pending() == ()


def test_it_is_written_to_a_real_terminal(tmp_path: Path) -> None:
    node = Node(tmp_path)
    terminal = Terminal(node.place.root / "dev/pts", "0")
    node.hear(stay("a", end=NOON + timedelta(minutes=5)))
    lines = Lines(
        node.place, node.stays, Log(node.place), node.ledger, now=lambda: NOON, uid_of=lambda _: os.getuid()
    )
    lines.step([])
    assert "in 5 min" in terminal.read()
    terminal.close()
