"""Of those that the database refused to change together, the ones that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from pool.models import Reservation, SetAside
from pool.services import lanes, suspects
from pool.services.lanes import Swept
from tests.scene import NOON, Scene, add_node, hours, make_scene

pytestmark = pytest.mark.django_db

#: The database refuses to change what has this title.
_REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.title = 'bad' THEN RAISE EXCEPTION 'a bad row' USING ERRCODE = 'data_exception'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON pool_reservation FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def scene() -> Scene:
    made = make_scene()
    add_node(made.pool)
    return made


def booked(scene: Scene, titles: Sequence[str]) -> list[Reservation]:
    rows = [scene.book(start=NOON + hours(1)) for _ in titles]
    for row, title in zip(rows, titles, strict=True):
        Reservation.objects.filter(pk=row.pk).update(title=title)
    with connection.cursor() as cursor:
        cursor.execute(_REFUSING)
    return rows


def refused(rows: Sequence[Reservation]) -> DatabaseError:
    with pytest.raises(DatabaseError, match="a bad row") as told, transaction.atomic():
        suspects.update([row.pk for row in rows], {"state_reason": "time_up"})
    return told.value


def test_it_sets_the_same_on_all_and_raises_their_versions(scene: Scene) -> None:
    rows = booked(scene, ["", ""])
    suspects.update([rows[0].pk], {"state_reason": "time_up"})
    found = Reservation.objects.order_by("created_at", "pk").values_list("state_reason", "version")
    assert list(found) == [("time_up", 2), (rows[1].state_reason, 1)]


def test_those_that_are_refused_are_found_and_nothing_is_changed(scene: Scene) -> None:
    rows = booked(scene, ["bad", "", "", "bad", ""])
    error = refused(rows)
    assert suspects.among(error, pool_id=scene.pool.pk) == {rows[0].pk, rows[3].pk}
    assert set(Reservation.objects.values_list("version", flat=True)) == {1}


def test_no_more_are_looked_for_at_once_than_it_takes_a_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "MOST", 1)
    rows = booked(scene, ["", "bad", "bad"])
    assert suspects.among(refused(rows), pool_id=scene.pool.pk) == {rows[1].pk}


def test_what_goes_now_has_no_suspects(scene: Scene) -> None:
    rows = booked(scene, ["bad"])
    error = refused(rows)
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER refuse ON pool_reservation")
    assert suspects.among(error, pool_id=scene.pool.pk) == set()


def test_another_error_has_none_and_costs_no_statement(
    scene: Scene, django_assert_num_queries: pytest.FixtureRequest
) -> None:
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert suspects.among(ValueError("a bad row"), pool_id=scene.pool.pk) == set()


def test_the_lane_does_the_rest_at_once_and_each_of_them_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = booked(scene, ["", "bad", "", "bad", ""])
    swept: list[int] = []
    usual = lanes._sweep

    def counted(*, due: lanes._Due, **more: Any) -> Swept:
        swept.append(len(due.ids))
        return usual(due=due, **more)

    monkeypatch.setattr(lanes, "_sweep", counted)
    assert lanes.due(now=NOON + hours(1)) == Swept(started=3, set_aside=2)
    assert swept == [5, 3, 1, 1]
    assert set(SetAside.objects.values_list("subject", flat=True)) == {str(rows[1].pk), str(rows[3].pk)}
