"""What the tables of reservations refuse, whatever the code above them believes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from psycopg.types.range import Int4Range, TimestamptzRange

from pool.models import Allocation, Gpu, Reservation
from pool.models.reservations import SHARED, new_id
from tests.scene import NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool, mig_gpus=2)
    return made


@pytest.fixture
def booked(scene: Scene) -> Reservation:
    return Reservation.objects.create(
        team=scene.vision,
        pool=scene.pool,
        owner=scene.lena,
        booked_by=scene.lena,
        ask={},
        klass="batch",
        state="scheduled",
        period=TimestamptzRange(NOON, NOON + hours(1)),
        created_at=NOON,
        charge_milli=125,
    )


def allocate(booked: Reservation, start: int = 0, size: int = 1, at: float = 0, **more: Any) -> Allocation:
    period = TimestamptzRange(NOON + hours(at), NOON + hours(at + 1))
    key = new_id()
    wanted = {
        "id": key,
        "reservation": booked,
        "gpu": Gpu.objects.get(index=0),
        "kind": "mig",
        "model": "H100-80GB",
        "span": Int4Range(start, start + size),
        "period": period,
        "blocked": period,
        "tenancy": key,
        "holds": True,
        "charge_milli": 125,
    }
    return Allocation.objects.create(**wanted | more)


def refuses(name: str, booked: Reservation, **more: Any) -> None:
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        allocate(booked, **more)


# --- One slice, one holder ----------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{}, {"start": 2, "size": 2}, {"start": 3, "size": 4}, {"start": 0, "size": 8, "at": 0.5}]
)
def test_two_cannot_hold_one_slice_at_one_time(booked: Reservation, other: dict[str, Any]) -> None:
    allocate(booked, 0, 4)
    refuses("allocation_no_overlap", booked, **other)


@pytest.mark.parametrize("other", [{"start": 4, "size": 4}, {"at": 1}, {"at": -1}, {"holds": False}])
def test_what_only_touches_or_does_not_hold_is_no_overlap(booked: Reservation, other: dict[str, Any]) -> None:
    allocate(booked, 0, 4)
    allocate(booked, **other)


def test_another_gpu_is_another_place(booked: Reservation) -> None:
    allocate(booked)
    allocate(booked, gpu=Gpu.objects.get(index=1))


def test_a_time_without_end_overlaps_all_that_follows(booked: Reservation) -> None:
    forever = TimestamptzRange(NOON, None)
    allocate(booked, period=forever, blocked=forever)
    refuses("allocation_no_overlap", booked, at=10_000)


def test_what_is_blocked_counts_and_not_what_was_booked(booked: Reservation) -> None:
    allocate(booked, blocked=TimestamptzRange(NOON, NOON + hours(1) + timedelta(minutes=5)))
    refuses("allocation_no_overlap", booked, at=1)
    allocate(booked, at=1.1)


#: A share of the whole grid.
SHARE = {
    "size": 8,
    "kind": "share",
    "tenancy": SHARED,
    "share_memory_mib": 1024,
    "share_compute_pct": 0,
    "share_limit_pct": 100,
}


def test_shares_overlap_one_another_and_nothing_else(booked: Reservation) -> None:
    allocate(booked, **SHARE)
    allocate(booked, **SHARE)
    refuses("allocation_no_overlap", booked, start=0, size=8)


def test_one_mps_server_is_one_accounts_at_a_time(booked: Reservation) -> None:
    allocate(booked, **SHARE, mps_user="lena")
    allocate(booked, **SHARE, mps_user="lena")
    refuses("allocation_one_mps_user", booked, **SHARE, mps_user="milo")
    allocate(booked, **SHARE, mps_user="milo", at=1)


@pytest.mark.parametrize(
    "odd",
    [
        SHARE | {"share_memory_mib": None},
        SHARE | {"share_compute_pct": 101},
        SHARE | {"share_limit_pct": 0},
        {"share_memory_mib": 1024},
        {"mps_user": "lena"},
        {"tenancy": SHARED},
    ],
)
def test_a_share_has_its_figures_and_nothing_else_has_any(booked: Reservation, odd: dict[str, Any]) -> None:
    refuses("allocation_share", booked, **odd)


def test_two_may_change_places_in_one_transaction(booked: Reservation) -> None:
    one, other = allocate(booked, 0, 4), allocate(booked, 4, 4)
    one.span, other.span = other.span, one.span
    with pytest.raises(IntegrityError), transaction.atomic():
        one.save()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        one.save()
        other.save()
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


# --- Media ----------------------------------------------------------------------------


def test_one_instance_of_a_gpu_takes_the_media_extensions(booked: Reservation) -> None:
    allocate(booked, 0, takes_media=True, media_group=0)
    refuses("allocation_one_media", booked, start=1, takes_media=True, media_group=0)
    allocate(booked, 1, takes_media=True, media_group=0, at=1)


def test_all_media_engines_leave_room_only_for_instances_without(booked: Reservation) -> None:
    allocate(booked, 0, takes_media=True, media_group=1)
    refuses("allocation_media_group", booked, start=1, media_group=0)
    allocate(booked, 1, media_group=None)


# --- Rows that make no sense ------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"span": Int4Range(1, 1)},
        {"period": TimestamptzRange(empty=True)},
        {"blocked": TimestamptzRange(empty=True)},
        {"blocked": TimestamptzRange(NOON + timedelta(seconds=1), NOON + hours(1))},
    ],
)
def test_a_rectangle_has_two_sides_and_is_blocked_from_its_start(
    booked: Reservation, odd: dict[str, Any]
) -> None:
    refuses("allocation_rectangle", booked, **odd)


def test_a_tenancy_is_ones_own_or_shared(booked: Reservation) -> None:
    refuses("allocation_share|allocation_tenancy", booked, tenancy=new_id())


def test_what_is_clean_does_not_hold(booked: Reservation) -> None:
    refuses("allocation_clean_is_free", booked, cleaned_at=NOON)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("reservation_state", {"state": "lost"}),
        ("reservation_period_not_empty", {"period": TimestamptzRange(empty=True)}),
    ],
)
def test_a_reservation_has_a_state_and_a_time(booked: Reservation, name: str, values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        Reservation.objects.filter(pk=booked.pk).update(**values)
