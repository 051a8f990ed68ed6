"""Self-play for slices: its games go as the policy goes, and its choice is always the same."""

from __future__ import annotations

import numpy as np
import pytest

from pool.core import selfplay_mig
from pool.core.mig import Profile, models
from pool.core.mix import Form, Kind, Mix, SliceParameters, from_json
from pool.core.selfplay_mig import Asks, Table, choose_slices, play
from pool.core.worth_mig import SliceWorth, Taken, kinds_of, masks, ranked, stretches

A100 = models()["A100-40GB"]
A30 = models()["A30-24GB"]
FIVE = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
UNIT = 10**9


def mix(*names: str, slices: SliceParameters | None = None) -> Mix:
    kinds = tuple(Kind(Form.MIG, profile=name) for name in names)
    return Mix(kinds, (1 / len(names),) * len(names), slices=slices or SliceParameters())


def served_by_policy(asked: Mix, profiles: list[Profile], asks: Asks, gpus: int) -> int:
    """One stream, decided by the functions that booking calls."""
    worth = SliceWorth(asked, A100.name, A100.grid, A100.profiles)
    live: list[tuple[int, int, int, int]] = []
    served = 0
    for kind, start, lasts in zip(asks.kind[0], asks.start[0], asks.lasts[0], strict=True):
        now, end = round(start * UNIT), round((start + lasts) * UNIT)
        live = [entry for entry in live if entry[3] > now]
        columns = np.array(live, dtype=np.int64).reshape(-1, 4).T
        at = stretches(np.full(gpus, 255), Taken(*columns), now, end, asked.slices.horizon * UNIT)
        profile = profiles[kind]
        rows, numbers = ranked(worth.loss(profile, at), at)
        if len(rows):
            mask = masks(profile.size, profile.starts, A100.grid)[numbers[0]]
            live.append((int(rows[0]), mask, now, end))
            served += 1
    return served


def test_its_games_go_as_the_policy_goes() -> None:
    by = SliceParameters(0.7, 0.9, weights=tuple(zip(FIVE, (1.0, 0.7, 0.6, 0.1, -0.2), strict=True)))
    asked = mix(*FIVE, slices=by)
    kinds = kinds_of(asked, A100.name, A100.grid, A100.profiles)
    table = Table(A100.grid, tuple(kinds))
    asks = table.draw(np.random.default_rng(5), 3, 1, 200)
    named = dict(by.weights)
    weights = np.array([[named[kind.name] for kind in kinds]])
    served, slice_time = play(table, asks, np.array([0.7]), np.array([0.9]), weights, 3)
    profiles = [p for kind in kinds for p in A100.profiles if p.name == kind.name]
    assert round(float(served[0]) * 200) == served_by_policy(asked, profiles, asks, 3)
    assert 0 < slice_time[0] < 1


def test_what_it_draws_is_what_the_mix_asks_for() -> None:
    often = Mix((Kind(Form.MIG, profile="1g.5gb"), Kind(Form.MIG, profile="7g.40gb")), (0.8, 0.2))
    table = Table(A100.grid, tuple(kinds_of(often, A100.name, A100.grid, A100.profiles)))
    asks = table.draw(np.random.default_rng(0), 2, 50, 200)
    assert float((asks.kind == 0).mean()) == pytest.approx(0.8, abs=0.02)
    sizes = np.where(asks.kind == 0, 1, 8)
    at_once = float((sizes * asks.lasts).sum() / asks.start[:, -1].sum() / 16)
    assert at_once == pytest.approx(selfplay_mig.LOAD, rel=0.05)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfplay_mig, "GENERATIONS", 3)
    monkeypatch.setattr(selfplay_mig, "DECISIONS", 1500)


@pytest.mark.usefixtures("short")
def test_the_same_seed_chooses_the_same() -> None:
    once, again = (choose_slices(mix(*FIVE), A100.name, A100.grid, A100.profiles, 2) for _ in range(2))
    assert once == again
    assert dict(once.slices.weights).keys() == set(FIVE)


@pytest.mark.usefixtures("short")
def test_what_it_chooses_survives_being_kept() -> None:
    chosen = choose_slices(mix(*FIVE), A100.name, A100.grid, A100.profiles, 2)
    assert from_json(chosen.as_json()) == chosen


@pytest.mark.usefixtures("short")
def test_it_chooses_for_a_grid_of_four() -> None:
    names = ("1g.6gb", "2g.12gb", "4g.24gb")
    chosen = choose_slices(mix(*names), A30.name, A30.grid, A30.profiles, 2)
    assert max(abs(weight) for _, weight in chosen.slices.weights) == 1.0


def test_where_only_one_kind_is_asked_there_is_nothing_to_choose() -> None:
    alone = mix("2g.10gb")
    assert choose_slices(alone, A100.name, A100.grid, A100.profiles) is alone


def test_a_grid_beyond_the_known_ones_is_left_to_the_rule() -> None:
    wide = mix(*FIVE)
    assert choose_slices(wide, "X", 16, A100.profiles) is wide
