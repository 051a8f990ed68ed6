"""Geometry of the drawings, as data for templates: the memory grid of a GPU, bars of capacity.

x and width are percentages of the drawing's width, so that a drawing is as
wide as its column while its text keeps its size. No markup is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Boxes narrower than this share of the grid show only their short label on a phone.
NARROW = 0.3


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on the grid: a span in memory slices, whose it is, and what is written on it.

    `tone` is one of mine, team, busy, foreign, blocked, unknown. `place` says where
    it is, where that is not told by its span, and `memory_mib` how much a share has.
    """

    start: int
    size: int
    tone: str
    label: str
    note: str = ""
    href: str = ""
    place: str = ""
    memory_mib: int = 0

    @property
    def short(self) -> str:
        """`1g` for `1g.10gb+me`: what fits on one eighth of a phone."""
        return self.label.partition(".")[0]

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.size

    def overlaps(self, other: Mark) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size

    @property
    def hatched(self) -> bool:
        return self.tone in ("blocked", "unknown")


@dataclass(frozen=True, slots=True)
class Box:
    """A mark in its place. `told`: its text is drawn, because no other text lies there."""

    x: str
    width: str
    narrow: bool
    told: bool
    mark: Mark


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the grid. `boxes` None: what is there is not known."""

    name: str
    note: str
    boxes: tuple[Box, ...] | None


@dataclass(frozen=True, slots=True)
class Tick:
    x: str
    middle: str
    number: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A GPU's memory grid. `key` is unique on the page, for the ids of patterns."""

    key: str
    name: str
    grid: int
    ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar."""

    x: str
    width: str
    tone: str


def percent(value: float, whole: float) -> str:
    """`12.5%`; 0 where there is no whole."""
    return f"{100 * value / whole:.4g}%" if whole else "0%"


def line(name: str, note: str, grid: int, marks: Iterable[Mark] | None) -> Line:
    """A row with a box for each mark that lies on the grid; None keeps "not known"."""
    if marks is None:
        return Line(name, note, None)
    drawn = [m for m in marks if m.start >= 0 and m.size > 0 and m.start + m.size <= grid]
    drawn.sort(key=lambda m: (m.hatched, m.start))
    return Line(name, note, tuple(_box(m, grid, drawn) for m in drawn))


def _box(mark: Mark, grid: int, drawn: Sequence[Mark]) -> Box:
    """What is in the way is drawn last, and its text wins over the text of what it covers, if it has room."""
    narrow = mark.size / grid < NARROW
    covered = any(
        other.hatched and other.size / grid >= NARROW and other.overlaps(mark)
        for other in drawn
        if not mark.hatched
    )
    told = not (mark.hatched and narrow) and not covered
    return Box(percent(mark.start, grid), percent(mark.size, grid), narrow, told, mark)


def drawing(key: str, name: str, grid: int, lines: Sequence[Line], *, ticked: bool = True) -> Drawing:
    """The grid with its axis: a tick for each memory slice, numbered from 0; none for a GPU used whole."""
    places = range(grid) if ticked else ()
    ticks = tuple(Tick(percent(n, grid), percent(n + 0.5, grid), n) for n in places)
    return Drawing(key, name, grid, ticks, tuple(lines))


def bar(whole: float, parts: Iterable[tuple[str, float]]) -> tuple[Part, ...]:
    """Pieces side by side, (tone, amount) each; what exceeds the whole is cut, empty ones fall out."""
    pieces, at = [], 0.0
    for tone, amount in parts:
        amount = min(max(amount, 0), whole - at)
        if amount > 0:
            pieces.append(Part(percent(at, whole), percent(amount, whole), tone))
            at += amount
    return tuple(pieces)
