"""Runs the web server: `python -m portal.serve --port 8000`. What it serves is portal/asgi.py."""

from __future__ import annotations

import argparse
import socket

import uvicorn


def main() -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are finished first."""
    parser = argparse.ArgumentParser(prog="python -m portal.serve", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--shared",
        action="store_true",
        help="let further processes of this account serve the same port; the kernel spreads the connections",
    )
    asked = parser.parse_args()
    config = uvicorn.Config(
        "portal.asgi:application",
        host=asked.host,
        port=asked.port,
        log_config=None,  # ours is set up with Django's settings
        access_log=False,
        server_header=False,
        limit_concurrency=1_000,
        backlog=2_048,
        timeout_graceful_shutdown=10,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[shared_socket(asked.host, asked.port)] if asked.shared else None)


def shared_socket(host: str, port: int) -> socket.socket:
    """A bound socket of a port that other processes may bind in the same way.

    If one of them dies the others go on. macOS hands all connections to one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only with the protocol named; without it an answer waits 40 ms for its turn.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


if __name__ == "__main__":
    main()
