"""The way to the portal: what is sent, what is understood, and what no error ever shows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agents.place import Fault
from agents.post import JOIN, REPORTS, NoAnswer, Refused, portal
from pool.core.wire import Answer, JoinAnswer, JoinAsk, Report
from tests.agents.stand_in import TOKEN, StandIn

ASK = JoinAsk(code="right", node="node-1", machine_id="m", agent="1")


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as one:
        yield one


def report(seq: int = 1) -> Report:
    return Report(
        agent="1",
        node="node-1",
        machine_id="m",
        boot_id="b",
        seq=seq,
        sampled_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_a_report_carries_the_token_and_its_length(stand_in: StandIn) -> None:
    answer = portal(stand_in.url).ask(REPORTS, report(4), Answer, TOKEN)
    assert answer.accepted_seq == 4
    assert stand_in.headers[0]["Authorization"] == f"Bearer {TOKEN}"
    assert int(stand_in.headers[0]["Content-Length"]) > 0


def test_joining_is_answered_with_a_token(stand_in: StandIn) -> None:
    assert portal(stand_in.url + "/").ask(JOIN, ASK, JoinAnswer).token == TOKEN


def test_a_refusal_says_the_portals_words(stand_in: StandIn) -> None:
    wrong = JoinAsk(code="wrong", node="node-1", machine_id="m", agent="1")
    with pytest.raises(Refused, match="401 This code is not valid") as caught:
        portal(stand_in.url).ask(JOIN, wrong, JoinAnswer)
    assert caught.value.status == 401


def test_an_answer_that_is_none_is_no_answer(stand_in: StandIn) -> None:
    with pytest.raises(NoAnswer, match="not one of a portal"):
        portal(stand_in.url).ask(REPORTS, report(), JoinAnswer, TOKEN)


def test_a_closed_port_is_no_answer_and_shows_no_token() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoAnswer) as caught:
        portal(f"http://127.0.0.1:{port}").ask(REPORTS, report(), Answer, TOKEN)
    assert TOKEN not in str(caught.value)


def test_a_silent_listener_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        door = portal(f"http://127.0.0.1:{silent.getsockname()[1]}")
        impatient = type(door)(door.url, timeout_s=0.1)
        with pytest.raises(NoAnswer, match="timed out"):
            impatient.ask(REPORTS, report(), Answer, TOKEN)


@pytest.mark.parametrize(
    "address", ["", "portal.example", "ftp://x", "http://", "http://h:99999", "http://u:p@h"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Fault, match="not an address"):
        portal(address)
