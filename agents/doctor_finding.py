"""One thing that the doctor has found, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"  # works as it is, but should be known
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` says to a person what is, `advice` what to do."""

    grade: Grade
    text: str
    advice: str = ""


def ok(text: str) -> Finding:
    return Finding(Grade.OK, text)


def note(text: str, advice: str = "") -> Finding:
    return Finding(Grade.NOTE, text, advice)


def wrong(text: str, advice: str = "") -> Finding:
    return Finding(Grade.WRONG, text, advice)
