"""services.telemetry_happened: what happened once on a node is put down once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from pool.core import wire
from pool.core.shapes import MigAsk
from pool.models import Event, Node
from pool.queries import clock
from pool.services import health, reservations
from pool.services.telemetry_happened import Heard
from tests.cast import Cast, SimNode, enrol_node


def happened(n: int, kind: str = "pause", **over: Any) -> wire.Happened:
    return wire.Happened(n=n, kind=kind, at=over.pop("at", clock.real_now()), **over)


def verbs(node: SimNode) -> list[str]:
    rows = Event.objects.filter(node_id=node.row.pk, verb__in=("node.pause", "node.hook", "reservation.hook"))
    return list(rows.order_by("pk").values_list("verb", flat=True))


def booked(cast: Cast) -> Any:
    return reservations.book(
        actor=cast.lena,
        team="vision",
        pool="main",
        ask=MigAsk(profile="1g.10gb"),
        duration=timedelta(hours=1),
        now=clock.now(),
    )


def test_it_becomes_an_event_of_the_node(node: SimNode) -> None:
    at = clock.real_now() - timedelta(seconds=7)
    one = happened(1, at=at, text="stopped dcgm", gpu=node.gpus[0].uuid, data={"units": ["dcgm"]})
    node.send(node.report(happened=(one,)))
    event = Event.objects.get(verb="node.pause")
    assert (event.actor_label, event.gpu_id) == ("node:node-1", node.rows()[0].pk)
    assert event.after == {
        "node": "node-1",
        "gpu": node.gpus[0].uuid,
        "text": "stopped dcgm",
        "at": at.isoformat(),
        "data": {"units": ["dcgm"]},
    }


def test_what_was_about_a_booking_becomes_an_event_of_it(cast: Cast, node: SimNode) -> None:
    row = booked(cast)
    one = happened(
        1, "hook", allocation=str(row.allocations.get().pk), data={"hook": "on-start.d/10", "rc": 0}
    )
    node.send(node.report(happened=(one,)))
    event = Event.objects.get(verb="reservation.hook")
    assert (event.reservation_id, event.team_id) == (row.pk, cast.vision.pk)


def test_a_node_cannot_speak_of_a_booking_on_another(cast: Cast, node: SimNode) -> None:
    row = booked(cast)
    other = enrol_node(cast.main, "node-2")
    other.send(other.report(happened=(happened(1, "hook", allocation=str(row.allocations.get().pk)),)))
    event = Event.objects.get(verb="node.hook")
    assert (event.reservation_id, event.team_id) == (None, None)


def test_what_is_told_again_is_not_taken_again(node: SimNode) -> None:
    first, second = happened(1), happened(2, "hook")
    node.send(node.report(happened=(first,)))
    node.send(node.report(happened=(first, second)))
    node.send(node.report(happened=(first, second)))
    assert verbs(node) == ["node.pause", "node.hook"]
    assert Node.objects.get().happened_n == 2


def test_an_older_report_tells_nothing_new(node: SimNode) -> None:
    late = node.report(happened=(happened(5),))
    node.send()
    node.send(late)
    assert verbs(node) == []
    assert Node.objects.get().happened_n == 0


@pytest.mark.parametrize(
    "odd", [happened(0), happened(-3), happened(2**60), happened(1, "Rm -rf"), happened(1, "x" * 40)]
)
def test_what_makes_no_sense_is_counted_and_left_out(node: SimNode, odd: wire.Happened) -> None:
    node.send(node.report(happened=(odd, happened(2, "hook"))))
    assert verbs(node) == ["node.hook"]
    assert Node.objects.get().dropped_values == 1


def test_texts_and_times_that_make_no_sense_cost_only_themselves(node: SimNode) -> None:
    naive = datetime(2027, 3, 1, 12)  # noqa: DTZ001
    node.send(node.report(happened=(happened(1, at=naive, text="a\0\u202e" + "b" * 900),)))
    told = Event.objects.get(verb="node.pause").after
    assert told is not None
    assert told == {"node": "node-1", "text": "a" + "b" * 497}


def test_more_than_is_worth_keeping_is_left_out(node: SimNode) -> None:
    node.send(node.report(happened=(happened(1, data={"x": ["y" * 100] * 100}),)))
    told = Event.objects.get(verb="node.pause").after
    assert told is not None
    assert told.keys() == {"node", "at"}
    assert Node.objects.get().dropped_values == 1


def test_xids_go_to_health_once(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Sequence[Heard]] = []
    monkeypatch.setattr(health, "listen", lambda desk, gpu, one, xids: heard.append(tuple(xids)))
    at = clock.real_now()
    xid = happened(1, "xid", at=at, gpu=node.gpus[0].uuid, data={"xid": 48, "gi": None, "ci": None})
    nonsense = happened(2, "xid", gpu=node.gpus[0].uuid, data={"xid": "many"})
    elsewhere = happened(3, "xid", gpu="GPU-of-another", data={"xid": 79})
    node.send(node.report(happened=(xid, nonsense, elsewhere)))
    node.send(node.report(happened=(xid,)))
    assert heard == [(Heard(48, None, None, at),), ()]


def test_no_more_is_taken_than_an_agent_keeps(node: SimNode) -> None:
    node.send(node.report(happened=tuple(happened(n) for n in range(1, 1000))))
    assert len(verbs(node)) == 200
