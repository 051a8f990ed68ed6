"""A worker alone, as a process: `python -m tests.agents.listener URL NODE` says what it hears."""

from __future__ import annotations

import logging
import sys
import threading

from agents import worker
from agents.config import forget_foreign_settings
from pool.core.wire import Command


class LoudLine(worker.Line):
    def set(self, up: bool) -> None:
        super().set(up)
        print("up" if up else "down", flush=True)


def take(command: Command) -> None:
    print("got", command.id, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    forget_foreign_settings()
    worker.run(sys.argv[1], sys.argv[2], take, LoudLine(), threading.Event())
