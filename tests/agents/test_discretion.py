"""What may be shown of a command line, and what not."""

from __future__ import annotations

import pytest

from agents.discretion import LONGEST, shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["python", "train.py", "--lr", "1e-4"], "python train.py --lr 1e-4"),
        (["x", "--token", "abc"], "x --token ***"),
        (["x", "--hf-token=abc", "y"], "x --hf-token=*** y"),
        (["x", "--password", "--force", "y"], "x --password --force y"),
        (["x", "-password", "a b"], "x -password ***"),
        (["env", "DB_PASSWORD=a b c", "run"], "env DB_PASSWORD=*** run"),
        (["env", "WANDB_API_KEY=1234", "run"], "env WANDB_API_KEY=*** run"),
        (["curl", "-H", "Authorization: Bearer abc.def"], "curl -H Authorization: ***"),
        (["git", "clone", "https://me:pass@host.example/x"], "git clone https://***@host.example/x"),
        (["x", "hf_abcdefghijklmnop"], "x ***"),
        (["x", "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"], "x ***"),
        (["x", "--tokenizer-path", "/models"], "x --tokenizer-path /models"),
        (["x", "--max-tokens=5"], "x --max-tokens=5"),
        (["x", "two\nlines\tand\x1b[31m"], "x two lines and?[31m"),
        (["", ""], None),
        ([], None),
    ],
)
def test_what_looks_secret_is_hidden_and_the_rest_is_shown(words: list[str], line: str | None) -> None:
    assert shown(words) == line


def test_two_options_in_a_row_hide_one_value_each() -> None:
    assert shown(["x", "--secret", "a", "b", "--token", "c", "d"]) == "x --secret *** b --token *** d"


def test_a_long_line_is_cut_and_says_so() -> None:
    line = shown(["x", "y" * 1000])
    assert line is not None
    assert len(line) == LONGEST
    assert line.endswith("…")
