"""What the portal told: kept over restarts, and no longer believed in when it is silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.stays import Stays
from pool.core.wire import Policy
from tests.agents.people import GPU, Node, stay


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_was_told_is_there_after_a_restart(node: Node) -> None:
    node.stays.heed([stay("a"), stay("b", gpu="GPU-2")], Policy(kill=True), 15)
    after = Stays(node.place, lambda: node.boot)
    assert after.all() == (stay("a"), stay("b", gpu="GPU-2"))
    assert after.of("b") == stay("b", gpu="GPU-2")
    assert after.on(GPU) == (stay("a"),)
    assert after.policy == Policy(kill=True)
    assert after.of("c") is None
    assert after.boot_id() == "boot-1"


def test_the_portal_is_away_until_it_was_heard_and_after_three_silent_periods(node: Node) -> None:
    assert not node.stays.here()
    node.stays.heed([], Policy(), 10)
    assert node.stays.here()
    node.clock += 30
    assert node.stays.here()
    node.clock += 0.1
    assert not node.stays.here()
    node.stays.heed([], Policy(), 10)
    assert node.stays.here()


def test_a_restart_begins_without_the_portal(node: Node) -> None:
    node.hear(stay())
    assert not Stays(node.place, lambda: node.boot).here()


def test_the_same_word_again_writes_nothing(node: Node) -> None:
    node.hear(stay())
    path = node.place.folder / "stays.json"
    before = path.stat()
    node.hear(stay())
    assert path.stat().st_ino == before.st_ino
    node.hear(stay(ending=True))
    assert path.stat().st_ino != before.st_ino


def test_a_file_that_cannot_be_read_is_as_none(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.hear(stay())
    (node.place.folder / "stays.json").write_text("{")
    assert Stays(node.place, lambda: node.boot).all() == ()
    assert "cannot be read" in caplog.text


def test_only_the_agents_account_reads_it(node: Node) -> None:
    node.hear(stay())
    assert os.stat(node.place.folder / "stays.json").st_mode & 0o077 == 0
