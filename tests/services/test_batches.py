"""How large a batch is, and what is left out of it."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from pool.models import SetAside
from pool.queries import clock
from pool.services import batches
from pool.services.batches import Aside, Pace


def test_it_grows_to_what_the_lock_may_be_held_for() -> None:
    pace = Pace()
    assert pace.size == 40
    pace.learn(40, 0.02)
    assert pace.size == 160
    pace.learn(160, 0.16)
    assert pace.size == 80


def test_it_never_leaves_its_bounds() -> None:
    pace = Pace()
    pace.learn(40, 5.0)
    assert pace.size == batches.LEAST_BATCH
    pace.learn(20, 0.0)
    assert pace.size == batches.BATCH


def test_a_few_rows_tell_nothing_unless_they_took_too_long() -> None:
    pace = Pace()
    pace.learn(1, 0.03)
    assert pace.size == 40
    pace.learn(1, 0.3)
    assert pace.size == batches.LEAST_BATCH


@pytest.mark.django_db
def test_what_is_set_aside_is_hidden_until_its_time_and_cleared_when_it_goes() -> None:
    pk = uuid.uuid4()
    aside = Aside("due")
    aside.put(pk, ValueError("a bad row"))
    assert aside.hidden == Aside("due").hidden == [pk]
    SetAside.objects.update(retry_at=clock.real_now() - timedelta(seconds=1))
    again = Aside("due")
    assert again.hidden == []
    again.clear([pk])
    assert not SetAside.objects.exists()


@pytest.mark.django_db
def test_an_error_of_no_update_makes_nobody_a_suspect() -> None:
    aside = Aside("due")
    assert not aside.suspect(ValueError("a bad row"), pool_id=1)
    assert aside.suspects == set()
