"""The way to the portal: what is sent, what is understood, and what no error ever shows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agents.place import Fault
from agents.post import JOIN, REPORTS, NoAnswer, Refused, portal
from pool.core.wire import Answer, JoinAnswer, JoinAsk, Report
from tests.agents.certificates import Authority, authority
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


class Secure:
    """The stand-in behind TLS, with a certificate for `name`."""

    def __init__(self, stand_in: StandIn, mine: Authority, name: str) -> None:
        server = stand_in._server
        server.socket = mine.server(name).wrap_socket(server.socket, server_side=True)
        self.url = stand_in.url.replace("http:", "https:")
        self.stand_in = stand_in


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls"))


class TestCertificates:
    def test_a_portal_of_the_sites_own_authority_is_trusted_once_it_is_named(
        self, stand_in: StandIn, mine: Authority
    ) -> None:
        one = Secure(stand_in, mine, "IP:127.0.0.1")
        assert portal(one.url, str(mine.file)).ask(REPORTS, report(), Answer, TOKEN).accepted_seq == 1

    def test_an_unknown_authority_gets_no_token(self, stand_in: StandIn, mine: Authority) -> None:
        one = Secure(stand_in, mine, "IP:127.0.0.1")
        with pytest.raises(NoAnswer, match=r"(?i)certificate verify failed"):
            portal(one.url).ask(REPORTS, report(), Answer, TOKEN)
        assert not stand_in.headers

    def test_a_certificate_for_another_name_gets_no_token(self, stand_in: StandIn, mine: Authority) -> None:
        one = Secure(stand_in, mine, "DNS:other.example")
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):
            portal(one.url, str(mine.file)).ask(REPORTS, report(), Answer, TOKEN)
        assert not stand_in.headers

    def test_a_renewed_authority_counts_without_a_restart(
        self, stand_in: StandIn, mine: Authority, tmp_path: Path
    ) -> None:
        one = Secure(stand_in, mine, "IP:127.0.0.1")
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(authority(tmp_path / "earlier").file.read_bytes())
        door = portal(one.url, str(trusted))
        with pytest.raises(NoAnswer):
            door.ask(REPORTS, report(), Answer, TOKEN)
        trusted.write_bytes(mine.file.read_bytes())
        assert door.ask(REPORTS, report(), Answer, TOKEN).accepted_seq == 1

    def test_the_authorities_are_read_once(self, mine: Authority) -> None:
        trust = portal("https://portal.example", str(mine.file)).trust
        assert trust.context() is trust.context()

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_a_file_without_certificates_is_named(self, tmp_path: Path, content: str | None) -> None:
        file = tmp_path / "ca.pem"
        if content is not None:
            file.write_text(content)
        with pytest.raises(Fault, match=r"ca\.pem is no file of certificates"):
            portal("https://portal.example", str(file))
