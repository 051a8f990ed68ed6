"""States, holds, times, events and layouts that do not agree are found."""

from __future__ import annotations

import pytest

from tests.queries import damaged

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("UPDATE pool_reservation SET state = 'active' WHERE state = 'scheduled'", "state_without_event"),
        ("UPDATE pool_reservation SET version = version + 1", "version_without_event"),
        (
            "UPDATE pool_reservation SET state = 'ended', ended_at = now() WHERE state = 'active'",
            "holds_without_a_state_that_does",
        ),
        ("UPDATE pool_allocation SET holds = false", "holds_nothing"),
        ("UPDATE pool_reservation SET charge_milli = 1", "charges_do_not_add_up"),
        ("UPDATE pool_reservation SET ended_at = NULL WHERE state = 'cancelled'", "end_is_missing"),
        ("UPDATE pool_reservation SET ended_at = now() WHERE state = 'active'", "ended_and_goes_on"),
        ("UPDATE pool_reservation SET started_at = NULL", "start_is_missing"),
        ("UPDATE pool_gpu SET wanted = NULL", "layout_differs"),
        (
            "UPDATE pool_allocation SET blocked = tstzrange(lower(blocked), lower(blocked) + '1 second')"
            " WHERE holds",
            "other_time_than_booked",
        ),
        ("UPDATE pool_reservation SET recall_at = lower(period), preemptible = true", "recalled_for_nobody"),
        (
            """UPDATE pool_event SET after = jsonb_set(after, '{state}', '"ended"')"""
            " WHERE verb = 'reservation.booked'",
            "event_is_missing",
        ),
    ],
)
def test_damage_is_found(sql: str, rule: str) -> None:
    damaged.busy()
    damaged.damage(sql)
    assert rule in damaged.rules()
