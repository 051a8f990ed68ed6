"""Which policy a pool is placed by."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.mix import learn
from pool.core.placement import prior
from pool.models import PoolMix
from pool.queries import clock, mixes
from tests.scene import NOON, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    mixes.forget()


def test_a_pool_of_which_nothing_was_learnt_is_placed_by_the_prior() -> None:
    assert mixes.policy(make_scene().pool.pk) is prior()


def test_what_was_learnt_is_read_once_and_looked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_scene().pool
    PoolMix.objects.create(pool=pool, mix=learn(()).as_json(), at=NOON)
    first = mixes.policy(pool.pk)
    assert first is not prior()
    assert mixes.policy(pool.pk) is first
    PoolMix.objects.update(at=NOON + timedelta(days=1))
    assert mixes.policy(pool.pk) is first
    later = clock.real_now() + mixes.LOOK
    monkeypatch.setattr(clock, "real_now", lambda: later)
    assert mixes.policy(pool.pk) is not first
