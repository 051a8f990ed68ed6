"""Whether quota holds by the rows alone: caps, memory, firm work, what is lent, what is guaranteed.

The rules of docs/quota.md once more, counted in the plainest way: instant by instant, team by team.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property

from pool.queries.consistency_places import Ground
from pool.queries.consistency_rows import Book, Difference, Line, Use

ANY = ""


def differences(book: Book) -> list[Difference]:
    """Everything of this pool's quota that must not be, from now on."""
    check = _Check(book)
    return [*check.limits("cap"), *check.limits("memory"), *check.instants()]


class Moment:
    """One instant: what is there, and what of it is inside its team's guarantee or borrowed."""

    def __init__(self, book: Book, instant: datetime, uses: Sequence[Use]) -> None:
        self.book, self.instant = book, instant
        self.uses = sorted(uses, key=lambda use: use.order)
        self.lines = book.keys
        self.guaranteed = {key: book.limit(*key, "guaranteed", instant) or 0 for key in self.lines}

    def children(self, team: int) -> list[int]:
        """The next teams below that have lines, through teams that have none."""
        having = {one for one, _ in self.lines}
        found = []
        for one in having - {team}:
            above = next((up for up in self.book.path(one)[1:] if up in having), None)
            if above == team:
                found.append(one)
        return sorted(found)

    @cached_property
    def own(self) -> dict[tuple[int, str], int]:
        """What is guaranteed to each team's own work: its lines, less what its children take of them."""
        found = {}
        for team in {one for one, _ in self.lines}:
            asked = self._asked(team)
            over = 0
            for model in {model for _, model in (*self.lines, *((0, one) for one in asked))} - {ANY}:
                line = self.guaranteed.get((team, model), 0)
                found[team, model] = max(0, line - asked[model])
                over += max(0, asked[model] - line)
            found[team, ANY] = max(0, self.guaranteed.get((team, ANY), 0) - asked[ANY] - over)
        return found

    def _asked(self, team: int) -> Counter[str]:
        """What the teams below are guaranteed, by model: as their lines say, or as theirs below ask."""
        asked: Counter[str] = Counter()
        for child in self.children(team):
            below = self._asked(child)
            for model in {*below, *(one for its, one in self.lines if its == child)}:
                if (child, model) in self.lines:
                    asked[model] += self.guaranteed[child, model]
                elif model == ANY or (child, ANY) not in self.lines:
                    asked[model] += below[model]
        return asked

    @cached_property
    def borrowed(self) -> dict[Use, int]:
        """What of each use is outside its own team's guarantee: only those with some."""
        left = Counter(self.own)
        found = {}
        for use in self.uses:
            inside = min(use.milli, left[use.team, use.model])
            left[use.team, use.model] -= inside
            more = min(use.milli - inside, left[use.team, ANY])
            left[use.team, ANY] -= more
            if use.milli > inside + more:
                found[use] = use.milli - inside - more
        return found

    @cached_property
    def used(self) -> Counter[tuple[int, str]]:
        """By team and model, with all that the teams below use."""
        found: Counter[tuple[int, str]] = Counter()
        for use in self.uses:
            for team in self.book.path(use.team):
                found[team, use.model] += use.milli
        return found

    @cached_property
    def unused(self) -> list[tuple[Line, int]]:
        """What is left of every guarantee to a team's own work."""
        mine: Counter[tuple[int, str]] = Counter()
        for use in self.uses:
            mine[use.team, use.model] += use.milli
        over: Counter[int] = Counter()
        for (team, model), milli in mine.items():
            over[team] += max(0, milli - self.own.get((team, model), 0))
        found = []
        for (team, model), own in sorted(self.own.items()):
            left = own - (over[team] if model == ANY else mine[team, model])
            line = next((one for one in self.book.lines if (one.team, one.model) == (team, model)), None)
            if left > 0:
                found.append((line or Line(team, model, 0, 0, None, "slots", 1, None), left))
        return found


class _Check:
    def __init__(self, book: Book) -> None:
        self.book = book
        self.capacity = Counter(card.model for card in book.cards)

    # --- Limits at every instant ----------------------------------------------

    def limits(self, field: str) -> Iterator[Difference]:
        """The peak of each line's use against its cap (or its memory), at every instant from now on."""
        for team, model in sorted(self.book.keys):
            below = self.book.below(team)
            mine = [use for use in self.book.uses if use.team in below and model in (ANY, use.model)]
            milli: Callable[[Use], int] = (
                (lambda use: use.milli) if field == "cap" else (lambda use: use.memory)
            )
            for instant, used, there in _levels(mine, milli, self._edges(mine, [team])):
                most = self.book.limit(team, model, field, instant)
                if most is not None and used > most:
                    numbers = {"used": used, field: most, "model": model or None}
                    yield self._differs(f"over_{field}", team, instant, numbers, there)
                    break

    def _edges(self, uses: Iterable[Use], teams: Iterable[int]) -> list[datetime]:
        whose = set(teams)
        times = [(use.since, use.until) for use in uses]
        times += [(grant.since, grant.until) for grant in self.book.grants if grant.team in whose]
        later = {at for both in times for at in both if at is not None and at > self.book.now}
        return sorted(later | {self.book.now})

    # --- What depends on everybody --------------------------------------------

    def instants(self) -> Iterator[Difference]:
        """Firm work inside its guarantee, nothing borrowed that is not lent, every guarantee obtainable."""
        told: set[tuple[str, str]] = set()
        for instant, _, there in _levels(
            self.book.uses, lambda use: use.milli, self._edges(self.book.uses, self.book.teams)
        ):
            moment = Moment(self.book, instant, there)
            for one in (*self._firm(moment), *self._lent(moment), *self._obtainable(moment)):
                if (one.rule, one.subject) not in told:
                    told.add((one.rule, one.subject))
                    yield one

    def _firm(self, moment: Moment) -> Iterator[Difference]:
        for use, milli in moment.borrowed.items():
            if use.firm:
                numbers = {"borrowed": milli, "reservation": str(use.reservation)}
                mine = [one for one in moment.uses if one.team == use.team]
                yield self._differs("firm_over_guaranteed", use.team, moment.instant, numbers, mine)

    def _lent(self, moment: Moment) -> Iterator[Difference]:
        """Where something is borrowed, what is used and what others keep is no more than there is."""
        borrowers = sorted({(use.team, use.model) for use in moment.borrowed})
        total = Counter[str]()
        for use in moment.uses:
            total[use.model] += use.milli
        for team, model in borrowers:
            claims = self._claims(moment, team)
            for name, used, kept, there in (
                (model, total[model], claims[model], 1000 * self.capacity[model]),
                (ANY, total.total(), claims[ANY], 1000 * self.capacity.total()),
            ):
                if used + kept > there and kept:
                    numbers = {"model": name or None, "used": used, "kept": kept, "capacity": there}
                    yield self._differs("not_lent", team, moment.instant, numbers, moment.uses, pool=True)

    def _claims(self, moment: Moment, team: int) -> Counter[str]:
        """What all but the team and those above it are guaranteed, neither lend nor use; ANY: together."""
        path = set(self.book.path(team))
        having = sorted({one for one, _ in moment.lines})
        tops = [
            one
            for one in having
            if one not in path and not any(up in having and up not in path for up in self.book.path(one)[1:])
        ]
        return sum((self._claim(moment, one) for one in tops), Counter())

    def _claim(self, moment: Moment, team: int) -> Counter[str]:
        below = sum((self._claim(moment, child) for child in moment.children(team)), Counter[str]())
        kept = {model: self._kept(moment, team, model) for its, model in moment.lines if its == team}
        claim: Counter[str] = Counter()
        alone, over = 0, 0
        for model in sorted({*self.capacity, *kept, *below} - {ANY}):
            used = moment.used[team, model]
            own = max(0, kept.get(model, 0) - used)
            over += max(0, used - moment.guaranteed.get((team, model), 0))
            alone += own
            claim[model] = max(own, below[model])
        alone += max(0, kept.get(ANY, 0) - over)
        claim[ANY] = max(alone, below[ANY], claim.total())
        return claim

    def _kept(self, moment: Moment, team: int, model: str) -> int:
        line = next((one for one in self.book.lines if (one.team, one.model) == (team, model)), None)
        if line is None or line.lend is None:
            return 0
        return max(0, moment.guaranteed[team, model] - line.lend)

    def _obtainable(self, moment: Moment) -> Iterator[Difference]:
        """All that is guaranteed would find a place now, if all that may be taken back made way.

        What is preemptible and inside its own guarantee is guaranteed an amount and no place: as the last
        resort it makes way, too, and then has to find as much elsewhere (core.astray).
        """
        stays = [use for use in moment.uses if use.firm]
        missing = Ground(self.book.cards, stays).missing(Moment(self.book, moment.instant, stays).unused)
        if missing is None:
            return
        line, milli = missing
        numbers = {"model": line.model or None, "unit": line.unit, "missing": milli}
        found = self._differs("not_obtainable", line.team, moment.instant, numbers, moment.uses, pool=True)
        # More is promised than there is, whoever uses it: nobody's booking has made it so.
        too_much = Ground(self.book.cards, ()).missing(Moment(self.book, moment.instant, ()).unused)
        yield replace(found, kept=True) if too_much else found

    # --- Words ------------------------------------------------------------------

    def _differs(
        self,
        rule: str,
        team: int,
        instant: datetime,
        numbers: Mapping[str, object],
        there: Iterable[Use],
        *,
        pool: bool = False,
    ) -> Difference:
        """It is kept from earlier if a limit changed after the last of those that are there was granted."""
        teams: list[int | None] = [*self.book.teams, None] if pool else [*self.book.path(team)]
        changed = max(self.book.changed.get(one, 0) for one in teams)
        kept = changed > max((use.grown for use in there), default=0)
        told = {**numbers, "at": instant.isoformat()}
        return Difference(rule, self.book.name, self.book.teams[team], told, kept)


def _levels(
    uses: Iterable[Use], amount: Callable[[Use], int], edges: Sequence[datetime]
) -> Iterator[tuple[datetime, int, list[Use]]]:
    """What is there from each of these sorted instants until the next: how much, and which."""
    begin: dict[datetime, list[Use]] = defaultdict(list)
    end: dict[datetime, list[Use]] = defaultdict(list)
    first = edges[0]
    for use in uses:
        # What is recalled before it begins is never there.
        if use.until is None or use.until > max(use.since, first):
            begin[max(use.since, first)].append(use)
            if use.until is not None:
                end[use.until].append(use)
    there: dict[Use, None] = {}
    level = 0
    for instant in edges:
        for use in end[instant]:
            del there[use]
            level -= amount(use)
        for use in begin[instant]:
            there[use] = None
            level += amount(use)
        yield instant, level, list(there)
