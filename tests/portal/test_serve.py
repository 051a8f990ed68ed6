"""The web server's socket: shared among processes of one account, never with another program."""

from __future__ import annotations

import socket

import pytest

from portal.serve import shared_socket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_several_processes_serve_one_port_and_outlive_one_another() -> None:
    port = free_port()
    with shared_socket("127.0.0.1", port) as one, shared_socket("127.0.0.1", port) as other:
        one.listen()
        other.listen()
        one.close()
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"x")
            accepted, _ = other.accept()
            with accepted:
                assert accepted.recv(1) == b"x"


def test_a_port_of_another_program_is_not_taken_from_it() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(OSError, match="in use"):
            shared_socket("127.0.0.1", stranger.getsockname()[1])


def test_answers_are_not_held_back_to_be_sent_with_later_ones() -> None:
    """asyncio sets TCP_NODELAY on what it accepts only if the protocol is named."""
    with shared_socket("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_it_serves_ipv6_too() -> None:
    with shared_socket("::1", 0) as bound:
        assert bound.family == socket.AF_INET6
