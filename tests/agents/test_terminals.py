"""One line on the terminals of one account, and on nobody else's."""

from __future__ import annotations

import os
import pwd
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agents.terminals import tell, uid_of


class Terminal:
    """A pseudo-terminal of ours: the master reads what was written to the slave."""

    def __init__(self, folder: Path, name: str, mode: int = 0o620) -> None:
        self.master, self.slave = os.openpty()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(os.ttyname(self.slave))
        os.fchmod(self.slave, mode)

    def read(self) -> str:
        ready, _, _ = select.select([self.master], [], [], 0)
        return os.read(self.master, 4096).decode() if ready else ""

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    made = [Terminal(tmp_path, "0"), Terminal(tmp_path, "1")]
    yield made
    for one in made:
        one.close()


def test_each_terminal_of_the_account_gets_the_line(terminals: list[Terminal], tmp_path: Path) -> None:
    assert tell(os.getuid(), "Ende um 14:00 – speichern", tmp_path) == 2
    assert [one.read().strip() for one in terminals] == ["Ende um 14:00 – speichern"] * 2


def test_whoever_said_mesg_n_is_left_alone(terminals: list[Terminal], tmp_path: Path) -> None:
    os.fchmod(terminals[0].slave, 0o600)
    assert tell(os.getuid(), "x", tmp_path) == 1
    assert terminals[0].read() == ""
    assert terminals[1].read().strip() == "x"


def test_another_account_gets_nothing(terminals: list[Terminal], tmp_path: Path) -> None:
    assert tell(54321, "x", tmp_path) == 0
    assert [one.read() for one in terminals] == ["", ""]


def test_no_sequence_that_drives_a_terminal_gets_through(terminals: list[Terminal], tmp_path: Path) -> None:
    tell(os.getuid(), "a\x1b]0;title\x07b\nc", tmp_path)
    assert terminals[0].read().strip() == "a ]0;title b c"


def test_a_full_terminal_is_passed_over(terminals: list[Terminal], tmp_path: Path) -> None:
    os.set_blocking(terminals[0].slave, False)
    with suppress(BlockingIOError):
        while os.write(terminals[0].slave, b"x" * 1000):
            pass
    assert tell(os.getuid(), "x", tmp_path) == 1


def test_files_and_other_names_are_no_terminals(terminals: list[Terminal], tmp_path: Path) -> None:
    (tmp_path / "2").write_text("kept")
    (tmp_path / "2").chmod(0o660)
    (tmp_path / "ptmx").symlink_to(os.ttyname(terminals[0].slave))
    (tmp_path / "3").symlink_to(tmp_path / "gone")
    assert tell(os.getuid(), "x", tmp_path) == 2
    assert (tmp_path / "2").read_text() == "kept"


def test_a_machine_without_terminals_is_fine(tmp_path: Path) -> None:
    assert tell(os.getuid(), "x", tmp_path / "none") == 0


def test_an_account_has_a_uid_or_none_here() -> None:
    assert uid_of(pwd.getpwuid(0).pw_name) == 0
    assert uid_of("nobody-has-this-name") is None
