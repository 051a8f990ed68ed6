"""What all lines and grants of a pool say at an instant, in columns over the teams that have some.

Nothing of what is used is known here. Amounts are in milli; times microseconds (fleet_rows.micros).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pool.core.fleet_rows import Bools, Ints, micros
from pool.core.quota_lines import Grant, Line, with_grants

#: A team and a model, None for any.
Key = tuple[int, str | None]


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
        found, ahead = {team}, [team]
        while ahead:
            fresh = [one for one in self._children.get(ahead.pop(), ()) if one not in found]
            found.update(fresh)
            ahead += fresh
        return frozenset(found)

    @cached_property
    def _children(self) -> dict[int | None, list[int]]:
        children: dict[int | None, list[int]] = defaultdict(list)
        for one, above in self.parents.items():
            children[above].append(one)
        return children


@dataclass(frozen=True, eq=False)
class Terms:
    """Tables [team, column] while nothing changes; the last column is for any model, the others are models.

    `guaranteed` and `kept` (of it, what nobody else may borrow) are as the lines say, `has` where
    there is a line. `own`: what is guaranteed to the team's own work, less what the teams below
    it are guaranteed, which is `asked` of it. `top` is what the teams at the top ask together.
    """

    guaranteed: Ints
    kept: Ints
    has: Bools
    own: Ints
    asked: Ints
    top: Ints

    def over(self) -> Ints:
        """[team]: what teams below are guaranteed of models beyond the team's lines for these models."""
        found: Ints = np.maximum(0, self.asked - self.guaranteed)[:, :-1].sum(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Charter:
    """The lines and grants of a pool and its tree of teams; to be kept while none of them changes.

    `models` are the first columns of its tables, those of the pool's GPUs first.
    """

    lines: tuple[Line, ...]
    grants: tuple[Grant, ...]
    parents: Mapping[int, int | None]
    models: tuple[str, ...]
    _known: dict[int, Terms] = field(default_factory=dict, repr=False)
    _nodes: dict[int, int] = field(default_factory=dict, repr=False)

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.parents)

    @cached_property
    def all_lines(self) -> dict[Key, Line]:
        """Also those that stand for grants without a line."""
        return {(line.team, line.model): line for line in with_grants(self.lines, self.grants)}

    @cached_property
    def grants_of(self) -> dict[Key, list[Grant]]:
        found: dict[Key, list[Grant]] = defaultdict(list)
        for grant in self.grants:
            found[grant.team, grant.model].append(grant)
        return dict(found)

    @cached_property
    def teams(self) -> tuple[int, ...]:
        """Those that have a line or a grant: the rows of the tables. Who is below somebody comes after."""
        having = {team for team, _ in self.all_lines}
        return tuple(sorted(having, key=lambda team: (len(self.tree.path(team)), team)))

    @cached_property
    def row(self) -> dict[int, int]:
        """The row of each team in the tables."""
        return {team: number for number, team in enumerate(self.teams)}

    def node(self, team: int) -> int:
        """The row of the team, or of the next above it that has lines; -1 where there is none."""
        if team not in self._nodes:
            rows = (self.row[one] for one in self.tree.path(team) if one in self.row)
            self._nodes[team] = next(rows, -1)
        return self._nodes[team]

    @cached_property
    def above(self) -> Ints:
        """[team]: the row of the next team above it that has lines; -1 at the top."""
        rows = [
            next((self.row[one] for one in self.tree.path(team)[1:] if one in self.row), -1)
            for team in self.teams
        ]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def levels(self) -> tuple[Ints, ...]:
        """The rows by how many teams with lines are above them, those with the most first."""
        depth = np.zeros(len(self.teams), dtype=np.int64)
        for number, above in enumerate(self.above.tolist()):
            depth[number] = 0 if above < 0 else depth[above] + 1
        deepest = int(depth.max(initial=-1))
        return tuple(np.flatnonzero(depth == one) for one in range(deepest, -1, -1))

    @cached_property
    def weights(self) -> Ints:
        """[team]: the largest weight of its lines."""
        found = np.ones(len(self.teams), dtype=np.int64)
        for (team, _), line in self.all_lines.items():
            found[self.row[team]] = max(found[self.row[team]], line.weight)
        return found

    @cached_property
    def columns(self) -> dict[str | None, int]:
        return {**{model: number for number, model in enumerate(self.models)}, None: len(self.models)}

    @cached_property
    def edges(self) -> Ints:
        """Every instant at which a grant begins or ends, in order."""
        found = {micros(edge) for one in self.grants for edge in (one.period.start, one.period.end) if edge}
        return np.array(sorted(found), dtype=np.int64)

    def edges_in(self, start: int, end: int) -> Ints:
        """Those after `start` and before `end`."""
        return self.edges[(self.edges > start) & (self.edges < end)]

    def edges_of(self, teams: Collection[int], start: int, end: int) -> Ints:
        """Those of the grants of these teams alone."""
        mine = [one.period for one in self.grants if one.team in teams]
        found = {micros(edge) for period in mine for edge in (period.start, period.end) if edge}
        return np.array(sorted(edge for edge in found if start < edge < end), dtype=np.int64)

    def own_at(self, team: int, times: Ints) -> Ints:
        """[time, column]: what is guaranteed to the team's own work, at each of these sorted instants."""
        return self._at("own", team, times)

    def guaranteed_at(self, team: int, times: Ints) -> Ints:
        """[time, column]: what the team's lines guarantee."""
        return self._at("guaranteed", team, times)

    def own_of(self, rows: Ints, times: Ints) -> Ints:
        """[entry, column]: what is guaranteed to the own work of each of `rows` at its instant."""
        stretch = np.searchsorted(self.edges, times, side="right")
        found = np.zeros((len(times), len(self.models) + 1), dtype=np.int64)
        for number in np.flatnonzero(np.bincount(stretch)).tolist() if len(times) else ():
            here = np.flatnonzero(stretch == number)
            found[here] = self.terms(int(times[here[0]])).own[rows[here]]
        return found

    def _at(self, table: str, team: int, times: Ints) -> Ints:
        stretch = np.searchsorted(self.edges, times, side="right")
        found = np.zeros((len(times), len(self.models) + 1), dtype=np.int64)
        if team in self.row:
            for number in sorted(set(stretch.tolist())):
                here = stretch == number
                terms = self.terms(int(times[here][0]))
                found[here] = getattr(terms, table)[self.row[team]]
        return found

    def segment(self, instant: int) -> int:
        """The number of the stretch between two edges in which `instant` lies."""
        return int(np.searchsorted(self.edges, instant, side="right"))

    def terms(self, instant: int) -> Terms:
        """What holds at that instant."""
        number = self.segment(instant)
        if number not in self._known:
            self._known[number] = self._terms(instant)
        return self._known[number]

    @cached_property
    def _standing(self) -> tuple[Ints, Ints, Bools, Ints]:
        """The lines without grants: guaranteed, lend (-1: all), has; and where each line is."""
        shape = (len(self.teams), len(self.models) + 1)
        at = np.array(
            [(self.row[team], self.columns[model]) for team, model in self.all_lines], dtype=np.int64
        ).reshape(-1, 2)
        guaranteed, lend = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
        has = np.zeros(shape, dtype=np.bool_)
        lines = self.all_lines.values()
        guaranteed[at[:, 0], at[:, 1]] = [line.guaranteed_milli for line in lines]
        lend[at[:, 0], at[:, 1]] = [-1 if line.lend_milli is None else line.lend_milli for line in lines]
        has[at[:, 0], at[:, 1]] = True
        return guaranteed, lend, has, at

    def _terms(self, instant: int) -> Terms:
        base, lend, has, _ = self._standing
        guaranteed = base.copy()
        for grant in self.grants:
            if micros(grant.period.start) <= instant < micros(grant.period.end):
                guaranteed[self.row[grant.team], self.columns[grant.model]] += grant.guaranteed_milli
        kept = np.where(lend < 0, 0, np.maximum(0, guaranteed - lend))
        asked = np.zeros_like(guaranteed)
        top = np.zeros(guaranteed.shape[1], dtype=np.int64)
        for rows in self.levels:
            # What a team has no line for passes on; its line for any bounds every model.
            claim = np.where(has[rows], guaranteed[rows], asked[rows])
            claim[:, :-1][has[rows][:, -1:] & ~has[rows][:, :-1]] = 0
            above = self.above[rows]
            np.add.at(asked, above[above >= 0], claim[above >= 0])
            top += claim[above < 0].sum(axis=0)
        own = np.maximum(0, guaranteed - asked)
        over = np.maximum(0, asked - guaranteed)[:, :-1].sum(axis=1)
        own[:, -1] = np.maximum(0, guaranteed[:, -1] - asked[:, -1] - over)
        return Terms(guaranteed, kept, has, own, asked, top)


def charter(
    lines: Sequence[Line],
    grants: Sequence[Grant],
    parents: Mapping[int, int | None],
    models: Sequence[str],
) -> Charter:
    """`models` are the pool's; what lines are for besides comes after them."""
    named = {one.model for one in lines} | {one.model for one in grants}
    more = sorted({model for model in named if model is not None} - set(models))
    return Charter(tuple(lines), tuple(grants), parents, (*models, *more))
