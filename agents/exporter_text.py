"""Prometheus' text format, version 0.0.4: families with their samples, written out.

Own, because prometheus-client renames counters ("..._total") and dcgm-exporter's keep their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, value: float | None, labels: Labels) -> None:
        """A value that was not measured (None, or no number) makes no sample: it is not 0."""
        if value is not None and math.isfinite(value):
            self.samples.append((labels, value))


def text(families: Iterable[Family]) -> str:
    """The families that have a sample, in the order given."""
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {help_text}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        inner = ",".join(f'{name}="{_escaped(word)}"' for name, word in labels.items() if word)
        yield f"{family.name}{{{inner}}} {_number(value)}" if inner else f"{family.name} {_number(value)}"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Whole numbers without a point, everything else so that it reads back the same."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
