"""Two want what is left of one GPU's memory, or of its compute, or its MPS server: one gets it.

Shares may overlap in time and span, so no constraint of the table keeps the
ledgers: the pool's lock does. Whose MPS server it is the table guards, too.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pool.core.errors import Code, Refusal
from pool.core.shapes import Class, ShareAsk
from pool.models import Allocation, Gpu, Pool, Reservation
from pool.services import extension, grants, reservations
from tests.races.runners import (
    Meeting,
    codes,
    think_together,
    together,
    without_the_constraint,
    without_the_lock,
)
from tests.scene import NOON, Scene, add_shares, hours, make_scene

pytestmark = pytest.mark.django_db(transaction=True)

MEMORY = ShareAsk(memory_pct=60, guaranteed=10, limit=10)
COMPUTE = ShareAsk(memory_pct=10, guaranteed=60, limit=60)
LITTLE = ShareAsk(memory_pct=10, guaranteed=10, limit=10)
LATER = NOON + hours(1)


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_shares(made.pool, sharing=Gpu.Sharing.HAMI)
    return made


def both_book(scene: Scene, ask: ShareAsk) -> list[Any]:
    return together(
        lambda: scene.book(ask, start=LATER),
        lambda: scene.book(ask, start=LATER, actor=scene.sam, team="speech"),
    )


def given_away() -> tuple[int, int]:
    """Percent of the memory and of the compute of the one GPU that are given away together."""
    rows = list(Allocation.objects.filter(holds=True))
    memory = Gpu.objects.get().memory_mib
    assert memory is not None
    return (
        round(100 * sum(row.share_memory_mib or 0 for row in rows) / memory),
        sum(row.share_compute_pct or 0 for row in rows),
    )


# --- Memory and compute ---------------------------------------------------------------------


@pytest.mark.parametrize("ask", [MEMORY, COMPUTE])
def test_without_the_lock_both_get_what_is_there_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ask: ShareAsk
) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    assert codes(both_book(scene, ask)) == {"ok": 2}
    assert max(given_away()) > 100


@pytest.mark.parametrize(("ask", "word"), [(MEMORY, "memory_full"), (COMPUTE, "compute_full")])
def test_one_gets_it_and_the_other_hears_what_is_full(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ask: ShareAsk, word: str
) -> None:
    think_together(monkeypatch, 2)
    results = both_book(scene, ask)
    assert codes(results) == {"ok": 1, Code.NO_CAPACITY: 1}
    (refusal,) = (one for one in results if isinstance(one, Refusal))
    assert refusal.data["counts"] == {word: 1}
    assert max(given_away()) <= 100


def test_what_fits_beside_one_another_is_never_refused_because_of_the_race(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 6)
    thin = ShareAsk(memory_pct=20, guaranteed=20, limit=20)
    results = together(*[lambda: scene.book(thin, start=LATER)] * 6)
    assert codes(results) == {"ok": 5, Code.NO_CAPACITY: 1}
    assert given_away()[1] == 100


@pytest.mark.parametrize("ask", [MEMORY, COMPUTE])
@pytest.mark.parametrize("guarded", [True, False])
def test_extending_and_booking_into_the_same_ledger(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ask: ShareAsk, guarded: bool
) -> None:
    first = scene.book(ask)
    if not guarded:
        without_the_lock(monkeypatch, 2)
        _check_together(monkeypatch)
    results = together(
        lambda: reservations.extend(
            actor=scene.lena, reservation_id=first.pk, duration=timedelta(hours=1), now=NOON
        ),
        lambda: scene.book(ask, start=LATER, actor=scene.sam, team="speech"),
    )
    assert codes(results) == ({"ok": 1, Code.NO_CAPACITY: 1} if guarded else {"ok": 2})


def _check_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension has looked before the booking writes, and the other way round."""
    meeting = Meeting(2)
    look, write = extension._check, grants.write

    def looked(*args: Any) -> None:
        look(*args)
        meeting.wait()

    def about_to_write(*args: Any) -> Reservation:
        meeting.wait()
        return write(*args)

    monkeypatch.setattr(extension, "_check", looked)
    monkeypatch.setattr(grants, "write", about_to_write)


# --- One account's MPS server -----------------------------------------------------------------


@pytest.fixture
def mps() -> Scene:
    made = make_scene()
    add_shares(made.pool, sharing=Gpu.Sharing.MPS)
    for person in (made.lena, made.sam):
        person.posix_name = person.username
        person.save()
    return made


def test_without_lock_and_constraint_two_accounts_get_one_server(
    mps: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    with without_the_constraint("allocation_one_mps_user"):
        assert codes(both_book(mps, LITTLE)) == {"ok": 2}
        assert set(Allocation.objects.values_list("mps_user", flat=True)) == {"lena", "sam"}


def test_without_the_lock_the_constraint_still_holds(mps: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    without_the_lock(monkeypatch, 2)
    assert codes(both_book(mps, LITTLE)) == {"ok": 1, Code.NO_CAPACITY: 1}
    assert Allocation.objects.count() == 1


def test_one_account_gets_it_and_the_other_hears_why(mps: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    think_together(monkeypatch, 2)
    results = both_book(mps, LITTLE)
    assert codes(results) == {"ok": 1, Code.NO_CAPACITY: 1}
    (refusal,) = (one for one in results if isinstance(one, Refusal))
    assert refusal.data["counts"] == {"other_user": 1}


def test_where_the_pool_lets_one_server_serve_several_both_get_it(
    mps: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.update(mps_multi_user=True)
    think_together(monkeypatch, 2)
    assert codes(both_book(mps, LITTLE)) == {"ok": 2}
    assert set(Allocation.objects.values_list("mps_user", flat=True)) == {None}


def test_batch_work_that_yields_takes_nothing_from_the_compute(scene: Scene) -> None:
    scene.book(ShareAsk(memory_pct=10, guaranteed=100, limit=100), start=LATER)
    yielding = ShareAsk(memory_pct=10, guaranteed=0, limit=100)
    results = together(*[lambda: scene.book(yielding, start=LATER, klass=Class.BATCH)] * 3)
    assert codes(results) == {"ok": 3}
    assert given_away()[1] == 100
