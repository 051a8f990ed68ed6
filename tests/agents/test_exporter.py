"""The exporter on a port: what is served where, and that nothing has two sources."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from agents import exporter
from agents.exporter import LOOK_EVERY, Exporter, Latest
from agents.exporter_text import CONTENT_TYPE
from agents.place import Place
from tests.agents.metrics import NODE, READ, WHOLE, parse

Make = Callable[..., Exporter]


def two_free_ports() -> int:
    """A port that is free, and the one after it, too."""
    while True:
        with ExitStack() as taken:
            first = taken.enter_context(closing(listener(0))).getsockname()[1]
            try:
                taken.enter_context(closing(listener(first + 1)))
            except (OSError, OverflowError):
                continue
            return int(first)


def listener(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


class Node:
    """A place, what the watch saw last, and the exporters made on them."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.latest: Latest | None = NODE
        self.port = two_free_ports()
        self.made: list[Exporter] = []

    def exporter(self, port: int | None = None) -> Exporter:
        wished = self.port if port is None else port
        one = Exporter(self.place, wished, lambda: self.latest, node="node-1", version="1.2")
        self.made.append(one)
        one.start()
        return one

    def start_dcgm_exporter(self, name: str = "dcgm-exporter") -> None:
        folder = self.place.root / "proc" / "77"
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    for made in one.made:
        made.stop()


def ask(port: int | None, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body."""
    assert port is not None
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def has_dcgm(port: int | None) -> bool:
    return any(name.startswith("DCGM_") for name in parse(ask(port)[2]))


def look_again(one: Exporter) -> None:
    for _ in range(LOOK_EVERY):
        one.refresh()


class TestServing:
    def test_both_kinds_of_series_are_on_the_wished_port(self, node: Node) -> None:
        one = node.exporter()
        status, kind, body = ask(one.port)
        assert (one.port, status, kind) == (node.port, 200, CONTENT_TYPE)
        assert {"gpupool_held", "DCGM_FI_DEV_GPU_UTIL"} <= set(parse(body))

    def test_port_0_serves_nothing(self, node: Node) -> None:
        one = node.exporter(0)
        look_again(one)
        assert one.port is None

    def test_it_answers_at_every_address(self, node: Node) -> None:
        port = node.exporter().port
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            with closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
                connection.request("GET", "/metrics")
                assert connection.getresponse().status == 200

    def test_other_paths_are_told_where_to_look(self, node: Node) -> None:
        port = node.exporter().port
        assert ask(port, "/")[0] == 200
        assert ask(port, "/secret")[0] == 404
        assert ask(port, "/metrics?name=x")[0] == 200
        assert ask(port, "/metrics", "HEAD")[2] == ""
        assert ask(port, "/metrics", "POST")[0] == 501

    def test_before_the_first_sample_the_agent_is_there_and_says_so(self, node: Node) -> None:
        node.latest = None
        assert set(parse(ask(node.exporter().port)[2])) == {"gpupool_agent_info"}

    def test_a_simulated_node_is_named_for_itself_and_not_for_its_host(self, node: Node) -> None:
        found = parse(ask(node.exporter().port)[2])
        assert found["DCGM_FI_DEV_GPU_TEMP"].samples[0].labels["hostname"] == "node-1"

    def test_stopping_gives_the_port_back(self, node: Node) -> None:
        one = node.exporter()
        one.stop()
        assert one.port is None
        listener(node.port).close()

    def test_more_scrapes_than_it_has_room_for_are_closed(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exporter, "MOST_SCRAPES", 1)
        port = node.exporter().port
        silent = socket.create_connection(("127.0.0.1", port or 0), timeout=10)
        with silent, pytest.raises(ConnectionError):
            ask(port)
        assert ask_when_there_is_room(port) == 200

    def test_a_client_that_says_nothing_is_let_go(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exporter._Scrape, "timeout", 0.05)
        port = node.exporter().port
        with socket.create_connection(("127.0.0.1", port or 0), timeout=10) as silent:
            assert silent.recv(1) == b""


def ask_when_there_is_room(port: int | None) -> int:
    """The room of a client that left is free as soon as its thread has noticed."""
    for _ in range(200):
        try:
            return ask(port)[0]
        except ConnectionError:
            continue
    return 0


class TestOneSource:
    def test_a_taken_port_leaves_the_next_and_our_own_series(self, node: Node) -> None:
        with closing(listener(node.port)):
            one = node.exporter()
            assert one.port == node.port + 1
            assert not has_dcgm(one.port)
            assert "gpupool_held" in parse(ask(one.port)[2])

    def test_a_dcgm_exporter_on_any_port_leaves_the_next_and_our_own_series(self, node: Node) -> None:
        node.start_dcgm_exporter()
        one = node.exporter()
        assert one.port == node.port + 1
        assert not has_dcgm(one.port)
        listener(node.port).close()  # free for it

    def test_one_whose_readings_we_have_counts_too(self, node: Node) -> None:
        node.latest = replace(NODE, readings={WHOLE: replace(READ, source="dcgm")})
        assert node.exporter().port == node.port + 1

    def test_another_program_does_not_count(self, node: Node) -> None:
        node.start_dcgm_exporter("dcgm-exporter-x")
        assert has_dcgm(node.exporter().port)

    def test_one_that_starts_later_is_the_only_source_from_the_next_scrape_on(self, node: Node) -> None:
        one = node.exporter()
        assert has_dcgm(one.port)
        node.start_dcgm_exporter()
        assert not has_dcgm(node.port)
        look_again(one)
        assert one.port == node.port + 1
        listener(node.port).close()  # and it gets its port

    def test_without_any_port_the_agent_works_and_takes_one_that_becomes_free(self, node: Node) -> None:
        with closing(listener(node.port)), closing(listener(node.port + 1)):
            one = node.exporter()
            assert one.port is None
        look_again(one)
        assert one.port == node.port

    def test_a_port_that_is_none_is_no_reason_to_end(self, node: Node) -> None:
        assert node.exporter(70000).port is None


def test_the_job_files_follow_the_holders_also_without_a_port(node: Node) -> None:
    one = node.exporter(0)
    one.refresh()
    jobs = node.place.run / "jobs"
    assert (jobs / "1.7").read_text() == "res-m\n"
    node.latest = replace(NODE, held={})
    one.refresh()
    assert not list(jobs.iterdir())
