"""Runs the web server: `python -m portal.serve --port 8000`. What it serves is portal/asgi.py."""

from __future__ import annotations

import argparse

import uvicorn


def main() -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are finished first."""
    parser = argparse.ArgumentParser(prog="python -m portal.serve", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    uvicorn.run(
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


if __name__ == "__main__":
    main()
