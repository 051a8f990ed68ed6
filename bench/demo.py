"""`python -m bench.demo`: how soon a click is a slice, what the demo weighs, how long its second start takes.

It always measures a demo of its own in a new folder.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import processes
from bench.goals import Board
from bench.http import Client
from bench.stack import Demo, Stack

CLICKS = 5
PATIENCE_S = 30.0
#: As often as the page of a reservation asks.
POLL_S = 0.1
RESERVATIONS = "/api/v1/reservations"
ASK = {
    "team": "vision",
    "pool": "main",
    "title": "benchmark",
    "ask": {"kind": "mig", "profile": "1g.10gb", "count": 2},
    "start": None,
    "duration": "PT2H",
    "class": "interactive",
}


async def until(client: Client, pk: str, state: str) -> dict[str, Any]:
    """The reservation once it is in `state`; a TimeoutError if that takes too long."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            body = (await client.ask("GET", f"{RESERVATIONS}/{pk}")).body
            if body["state"] == state:
                return dict(body)
            await asyncio.sleep(POLL_S)


async def click(client: Client) -> float:
    """Seconds from sending a booking for now to seeing it active, with its slices' UUIDs."""
    begun = time.perf_counter()
    made = await client.ask("POST", RESERVATIONS, ASK)
    assert made.status == 201, made
    active = await until(client, made.body["id"], "active")
    seconds = time.perf_counter() - begun
    assert len({one["mig_uuid"] for one in active["allocations"]} - {None}) == 2, active
    await client.ask("POST", f"{RESERVATIONS}/{made.body['id']}/release", {})
    await until(client, made.body["id"], "ended")
    return seconds


async def clicks(stack: Stack) -> list[float]:
    client = Client(stack.url, stack.token)
    taken = [await click(client) for _ in range(CLICKS)]
    await client.close()
    return taken


def weigh(demo: Demo, board: Board) -> None:
    """The heaviest agent, and everything that the demo started."""
    assert demo.process is not None
    family = processes.family(demo.process.pid)
    agents = [pid for pid in family if " -m agents run" in processes.command(pid)]
    assert len(agents) == 5, agents
    board.at_most("demo.agent_memory", max(processes.resident_mb(pid) for pid in agents), "MB", 70)
    board.at_most("demo.whole_memory", sum(processes.share_mb(pid) for pid in family), "MB", 1536)


def main() -> int:
    board = Board()
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-", dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o711)
        with Demo(state) as demo:
            taken = asyncio.run(clicks(demo.stack))
            board.at_most("demo.click_to_active", statistics.median(taken), "s", 2)
            weigh(demo, board)
        with Demo(state) as again:
            board.at_most("demo.second_start", again.seconds, "s", 30)
    return board.exit_code()


if __name__ == "__main__":
    sys.exit(main())
