"""Cards and rows are read as the database has them, in few statements and without a Python object a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pool.core.fleet import ALWAYS, NEVER, node_domain, whole_id
from pool.core.fleet_rows import micros
from pool.models import Allocation, Blocker, Gpu, Node, Reservation
from pool.queries import fleet_reading
from pool.queries.fleet_reading import accounts_on, cards_of, profiles_of, records, rows_of
from tests.scene import HALF, NOON, SHARE, Scene, add_node, add_shares, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=2)
    return made


def test_a_row_says_all_that_the_tables_do(scene: Scene) -> None:
    booked = scene.book(HALF, start=NOON + hours(1))
    held = Allocation.objects.get(reservation=booked)
    Allocation.objects.update(cpu_milli=4000, ram_mib=2048)
    (row,) = rows_of(scene.pool.pk, None)
    assert (row["gpu"], row["start"], row["end"]) == (
        held.gpu_id,
        micros(NOON + hours(1)),
        micros(NOON + hours(2)),
    )
    assert (row["since"], row["until"]) == (row["start"], row["end"])
    assert row["mask"] == ((1 << (held.span.upper - held.span.lower)) - 1) << held.span.lower
    assert (row["profile"], row["media"], row["klass"]) == (held.profile_id, 1, 2)
    assert (row["moved"], row["blocker"], row["memory"], row["account"]) == (True, False, 0, 0)
    assert (row["cpu"], row["ram"], row["charge"]) == (4000, 2048, held.charge_milli)
    assert (row["owner"], row["team"]) == (scene.lena.pk, scene.vision.pk)
    assert whole_id(row["reservation"]) == booked.pk


def test_times_are_exact_and_may_have_no_end(scene: Scene) -> None:
    scene.book(HALF)
    odd = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    Allocation.objects.update(blocked=(odd, None), period=(odd + timedelta(microseconds=1), None))
    (row,) = rows_of(scene.pool.pk, None)
    assert (row["start"], row["end"]) == (micros(odd), NEVER)


def test_what_no_longer_holds_is_not_read(scene: Scene) -> None:
    scene.book(HALF)
    Allocation.objects.update(holds=False)
    assert len(rows_of(scene.pool.pk, None)) == 0


def test_a_blocker_was_always_there(scene: Scene) -> None:
    gpu = Gpu.objects.order_by("pk")[0]
    Blocker.objects.create(gpu=gpu, span=(2, 4), since=NOON, kind="foreign")
    (row,) = rows_of(scene.pool.pk, [gpu.pk])
    assert (row["blocker"], row["start"], row["end"], row["mask"]) == (True, ALWAYS, NEVER, 0b1100)


def test_a_share_that_runs_on_masks_nobody_elses(scene: Scene) -> None:
    (gpu,) = add_shares(scene.pool)
    scene.book(SHARE)
    Blocker.objects.create(gpu=gpu, span=(0, 8), since=NOON, kind="overrun")
    assert rows_of(scene.pool.pk, [gpu.pk])["blocker"].tolist() == [False, True]
    Reservation.objects.update(state="ending")
    (row,) = rows_of(scene.pool.pk, [gpu.pk])
    assert (row["memory"], row["compute"], row["limit"]) == (8192, 10, 10)
    assert accounts_on(rows_of(scene.pool.pk, None), {}) == {int(row["account"]): f"user:{scene.lena.pk}"}
    known = {int(row["account"]): "known"}
    assert accounts_on(rows_of(scene.pool.pk, None), known) is known


def test_a_domain_is_the_fabrics_and_else_the_node(scene: Scene) -> None:
    first, second = Gpu.objects.order_by("pk")
    Gpu.objects.filter(pk=first.pk).update(fabric_cluster="00000000-0000", fabric_clique=0)
    Gpu.objects.filter(pk=second.pk).update(fabric_cluster="3f00-1", fabric_clique=7)
    told = {card.id: card.domain for card in cards_of(scene.pool.pk, None)}
    assert told == {first.pk: node_domain("dgx-01"), second.pk: "3f00-1/7"}


def test_links_are_read_where_gpus_may_talk(scene: Scene) -> None:
    links = [{"peer": "GPU-x", "kind": "nvlink", "count": 12}, {"peer": None, "kind": "nvlink", "count": 4}]
    Gpu.objects.update(links=links)
    Gpu.objects.filter(index=1).update(use="whole")
    told = {card.index: card.links for card in cards_of(scene.pool.pk, None)}
    assert told == {0: (), 1: (("GPU-x", 12), ("", 4))}


def test_what_a_node_has_is_on_all_its_cards(scene: Scene) -> None:
    Node.objects.update(block="rack-1", cpu_milli=64_000, memory_mib=512_000, imex="READY")
    cards = cards_of(scene.pool.pk, None)
    assert len({id(card.node) for card in cards}) == 1
    assert (cards[0].node.block, cards[0].node.cpu_milli, cards[0].node.imex) == ("rack-1", 64_000, "READY")


def test_profiles_are_read_once_however_many_gpus_have_them(scene: Scene) -> None:
    fleet_reading._profiles.clear()
    with CaptureQueriesContext(connection) as first:
        cards = cards_of(scene.pool.pk, None)
    assert cards[0].profiles is cards[1].profiles
    with CaptureQueriesContext(connection) as again:
        cards_of(scene.pool.pk, None)
    assert (len(first), len(again)) == (2, 1)


def test_profiles_that_change_between_two_statements_are_those_that_came(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_reading._profiles.clear()
    fetch = fleet_reading._fetch

    def late(sql: str, wanted: object) -> object:
        if sql is fleet_reading._PROFILES:
            Gpu.objects.update(profiles=None)
        return fetch(sql, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(fleet_reading, "_fetch", late)
    assert [card.profiles for card in cards_of(scene.pool.pk, None)] == [(), ()]
    monkeypatch.undo()
    assert not fleet_reading._profiles
    assert [card.profiles for card in cards_of(scene.pool.pk, None)] == [(), ()]


def test_a_gpu_given_for_anything_has_its_profiles_too(scene: Scene) -> None:
    Gpu.objects.filter(index=0).update(use="auto")
    Gpu.objects.filter(index=1).update(use="whole")
    told = {card.index: bool(card.profiles) for card in cards_of(scene.pool.pk, None)}
    assert told == {0: True, 1: False}
    assert profiles_of("nothing-known", "null", 8) == ()


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="wide"):
        records(b"x" * 100)
