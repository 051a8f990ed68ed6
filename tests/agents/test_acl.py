"""Who may enter a folder that is kept to one account, tried by real processes under two accounts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.acl import close_to_all_but

ALICE, BOB = 60_001, 60_002
MANY = pytest.mark.skipif(os.geteuid() != 0, reason="root: processes of other accounts are started")

TRY = """
import os, sys
folder, account = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setgid(account)
os.setuid(account)
try:
    names = os.listdir(folder)
except PermissionError:
    sys.exit("kept out")
try:
    os.rename(folder + "/pipe", folder + "/moved")
except PermissionError:
    sys.exit("looks in")
sys.exit("owns it")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below a folder that everybody may pass, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        one = Path(made) / "mps"
        (one / "pipe").mkdir(parents=True)
        yield one


def tried(folder: Path, account: int) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY, str(folder), str(account)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip()


@MANY
def test_only_the_account_gets_in_and_it_owns_nothing(folder: Path) -> None:
    close_to_all_but(folder, ALICE)
    assert tried(folder, ALICE) == "looks in"
    assert tried(folder, BOB) == "kept out"


@MANY
def test_another_account_takes_the_place_of_the_first(folder: Path) -> None:
    close_to_all_but(folder, ALICE)
    close_to_all_but(folder, BOB)
    assert tried(folder, ALICE) == "kept out"
    assert tried(folder, BOB) == "looks in"


@MANY
def test_one_that_an_earlier_version_gave_away_is_taken_back(folder: Path) -> None:
    os.chown(folder, ALICE, -1)
    folder.chmod(0o700)
    close_to_all_but(folder, ALICE)
    assert tried(folder, ALICE) == "looks in"


@MANY
def test_it_is_opened_to_anybody_again(folder: Path) -> None:
    close_to_all_but(folder, ALICE)
    close_to_all_but(folder, None)
    assert tried(folder, BOB) == "looks in"
