"""What every benchmark prints: one JSON line a figure, with its goal; and whether all were met."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Board:
    """The figures of one benchmark."""

    missed: list[str] = field(default_factory=list)

    def at_most(self, name: str, value: float, unit: str, goal: float) -> None:
        self._line(name, value, unit, goal, value <= goal)

    def at_least(self, name: str, value: float, unit: str, goal: float) -> None:
        self._line(name, value, unit, goal, value >= goal)

    def exit_code(self) -> int:
        return 1 if self.missed else 0

    def _line(self, name: str, value: float, unit: str, goal: float, ok: bool) -> None:
        line = {"name": name, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}
        print(json.dumps(line), flush=True)
        if not ok:
            self.missed.append(name)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """The median of several runs, so that one hiccup of the machine does not decide."""
    return statistics.median(measure() for _ in range(runs))
