"""Teams form a tree: who is above whom, and whose guarantees are carved out of whose.

A child stays within its parent: what the lines of the teams below a team guarantee
has to fit into what its own guarantee, model for model, the rest into the line for any.
The teams without a team with lines above them share the pool itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pool.core.quota_lines import Grant, Line


@dataclass(frozen=True, eq=False)
class Tree:
    """`parents`: each team's parent, None at the top. A team that is not in it stands alone."""

    parents: Mapping[int, int | None]

    def path(self, team: int) -> tuple[int, ...]:
        """The team, its parent, and so on to the top."""
        found = [team]
        while (above := self.parents.get(found[-1])) is not None and above not in found:
            found.append(above)
        return tuple(found)

    def below(self, team: int) -> frozenset[int]:
        """The team and all teams below it."""
        children: dict[int | None, list[int]] = {}
        for one, above in self.parents.items():
            children.setdefault(above, []).append(one)
        found, ahead = {team}, [team]
        while ahead:
            fresh = [one for one in children.get(ahead.pop(), ()) if one not in found]
            found.update(fresh)
            ahead += fresh
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Excess:
    """More is guaranteed than there is: by lines below `team` (None: by all, of the pool).

    `model` None: of all models together. Amounts in milli; `at` is when, ISO.
    """

    team: int | None
    model: str | None
    guaranteed_milli: int
    room_milli: int
    at: str


def excess(
    lines: Sequence[Line],
    grants: Iterable[Grant],
    parents: Mapping[int, int | None],
    capacity: Mapping[str, int],
) -> Excess | None:
    """The first place and instant at which the guarantees do not fit; None when all do.

    For set_line and approvals: hand over the lines as they would be.
    """
    raise NotImplementedError
