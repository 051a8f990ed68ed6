"""services.events: who did what, in the transaction that does it, for good."""

from __future__ import annotations

import uuid

import pytest
from django.db import DatabaseError, transaction

from pool.models import Event
from pool.services import events
from pool.services.trace import request_id
from tests.cast import NOW, Cast


def test_it_keeps_actor_subject_before_and_after(cast: Cast) -> None:
    reservation = uuid.uuid4()
    events.record(
        "reservation.released",
        actor=cast.lena,
        now=NOW,
        team_id=cast.vision.pk,
        pool_id=cast.main.pk,
        reservation_id=reservation,
        before={"state": "active"},
        after={"state": "ending"},
    )
    event = Event.objects.get()
    assert (event.actor, event.actor_label, event.at, event.verb) == (
        cast.lena,
        "lena",
        NOW,
        "reservation.released",
    )
    assert (event.team_id, event.reservation_id) == (cast.vision.pk, reservation)
    assert (event.before, event.after) == ({"state": "active"}, {"state": "ending"})


def test_it_carries_the_id_of_the_request(cast: Cast) -> None:
    mark = request_id.set("r" * 100)
    try:
        events.record("a.b", actor=None, now=NOW)
    finally:
        request_id.reset(mark)
    assert Event.objects.get().request_id == "r" * 64


def test_whoever_is_no_user_has_a_label(cast: Cast) -> None:
    events.record("a.b", actor=None, now=NOW)
    events.record("a.c", actor=None, now=NOW, label="node:dgx-01")
    assert list(Event.objects.order_by("pk").values_list("actor_label", flat=True)) == [
        "system",
        "node:dgx-01",
    ]


def test_many_are_written_in_their_order(cast: Cast) -> None:
    events.write(events.draft(f"a.{n}", actor=None, now=NOW) for n in range(700))
    verbs = list(Event.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == [f"a.{n}" for n in range(700)]


@pytest.mark.parametrize("what", ["update", "delete"])
def test_what_is_written_stays(cast: Cast, what: str) -> None:
    events.record("a.b", actor=None, now=NOW)
    change = {"update": lambda: Event.objects.update(verb="a.c"), "delete": Event.objects.all().delete}[what]
    with pytest.raises(DatabaseError), transaction.atomic():
        change()
    assert Event.objects.get().verb == "a.b"


def test_it_rolls_back_with_what_it_tells_of(cast: Cast) -> None:
    with transaction.atomic():
        events.record("a.b", actor=None, now=NOW)
        transaction.set_rollback(True)
    assert not Event.objects.exists()
