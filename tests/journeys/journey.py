"""What every journey does: book, wait for what must come, look at the simulated driver, check the whole.

Waiting always has a condition. `await_whole` is what must hold again within
60 s of the end of any fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg

from agents import simulator
from agents.driver import Driver
from agents.gpu import Gpu
from agents.simulator_state import Machine, Store
from tests.stack import Stack, await_

#: Seconds within which everything is as it should be, once a fault is over (DESIGN 6).
CONVERGED_S = 60.0
#: A booking is answered within this, whatever Redis does.
ANSWER_S = 1.5
NODE = "node-1"
AGENT = f"agent {NODE}"
MODEL = "H100-80GB"
SLICE = {"kind": "mig", "profile": "1g.10gb", "count": 1}
TWO_SLICES = SLICE | {"count": 2}
WHOLE_GPU = {"kind": "gpu", "model": MODEL, "count": 1}

OVERLAPS = """
SELECT a.id, b.id FROM pool_allocation a JOIN pool_allocation b ON b.gpu_id = a.gpu_id AND b.id > a.id
WHERE a.holds AND b.holds AND a.span && b.span AND a.blocked && b.blocked
"""
_IN_USE = """
SELECT gpu.uuid, lower(one.span), upper(one.span) - lower(one.span), one.profile_id, one.mig_uuid
FROM pool_allocation one
JOIN pool_reservation booked ON booked.id = one.reservation_id
JOIN pool_gpu gpu ON gpu.id = one.gpu_id
WHERE one.holds AND one.kind = 'mig' AND booked.state = 'active'
"""
_MOVING = "SELECT id, state, state_reason FROM pool_reservation WHERE state IN ('starting', 'ending')"
_OPEN = "SELECT gpu_id, generation, trouble FROM pool_command WHERE state = 'open'"
_ASIDE = "SELECT lane, subject, error FROM pool_setaside"
_LEFT = """
SELECT id::text FROM pool_reservation
WHERE state NOT IN ('ended', 'cancelled', 'denied', 'preempted', 'expired', 'failed', 'ending')
"""


class Journey:
    """One running product with one simulated node, and somebody who uses it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.folder = stack.agent_folder(NODE)

    # --- Booking --------------------------------------------------------------

    def ask(
        self,
        ask: dict[str, Any],
        *,
        start: datetime | None = None,
        minutes: int = 60,
        user: str = "lena",
        title: str = "",
        key: str | None = None,
    ) -> httpx.Response:
        """POST a booking; `start` None means now."""
        body = {
            "team": "speech" if user == "sam" else "vision",
            "pool": "main",
            "title": title,
            "ask": ask,
            "start": start.isoformat() if start else None,
            "duration": f"PT{minutes}M",
            "class": "interactive",
        }
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.stack.ask("POST", "/reservations", body, user, **headers)

    def book(self, ask: dict[str, Any], **wish: Any) -> Any:
        """A booking that is granted."""
        answer = self.ask(ask, **wish)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def seen(self, booked: Any) -> Any:
        """The reservation as REST shows it now."""
        status, body = self.stack.rest("GET", f"/reservations/{booked['id']}", user="anna")
        assert status == 200, body
        return body

    def await_state(self, booked: Any, state: str, patience: float = CONVERGED_S) -> Any:
        def reached() -> Any:
            seen = self.seen(booked)
            return seen if seen["state"] == state else None

        return await_(reached, f"{booked['id']} is {state}", patience)

    def active(self, ask: dict[str, Any], **wish: Any) -> Any:
        return self.await_state(self.book(ask, **wish), "active")

    def release(self, booked: Any, user: str = "lena") -> Any:
        status, body = self.stack.rest("POST", f"/reservations/{booked['id']}/release", {}, user)
        assert status == 200, body
        return body

    def history(self, booked: Any) -> list[str]:
        """What happened to it, as verbs of the audit."""
        rows = self.rows("SELECT verb FROM pool_event WHERE reservation_id = %s ORDER BY id", booked["id"])
        return [verb for (verb,) in rows]

    # --- The portal's clock ---------------------------------------------------

    def now(self) -> datetime:
        rows = self.rows("SELECT seconds FROM pool_clockoffset")
        return datetime.now(UTC) + timedelta(seconds=rows[0][0] if rows else 0)

    def forward_to(self, instant: datetime) -> None:
        """Move the clock that bookings go by; freshness and leases go by real time."""
        seconds = int((instant - datetime.now(UTC)).total_seconds()) + 1
        self.rows(
            "INSERT INTO pool_clockoffset (id, seconds) VALUES (1, %s)"
            " ON CONFLICT (id) DO UPDATE SET seconds = EXCLUDED.seconds RETURNING id",
            seconds,
        )

    # --- Looking --------------------------------------------------------------

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.servers.database_url, autocommit=True) as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def pool_locked(self) -> Iterator[None]:
        """Hold the pool's row, so that whoever decides waits for us."""
        with psycopg.connect(self.stack.servers.database_url) as connection:
            connection.execute("SELECT id FROM pool_pool FOR NO KEY UPDATE")
            yield
            connection.rollback()

    def waiting_for_lock(self) -> bool:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return bool(self.rows(waits)[0][0])

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """The node's simulated driver, as any program on the node would open it."""
        simulator.install(self.folder)
        try:
            with Driver() as driver:
                yield driver
        finally:
            simulator.uninstall()

    def gpus(self) -> tuple[Gpu, ...]:
        with self.driver() as driver:
            return driver.look().gpus

    def instances(self) -> list[tuple[str, int, int, int, str | None]]:
        """GPU, start, size, profile id and MIG UUID of every instance on the node, whoever made it."""
        return sorted(
            (gpu.uuid, one.start, one.size, one.profile_id, one.mig_uuid)
            for gpu in self.gpus()
            for one in gpu.instances or ()
        )

    def machine(self) -> Machine:
        return Store(self.folder).read()

    def serials(self) -> list[int]:
        """Numbers that the driver never gives again: an instance made anew has another one."""
        return sorted(one.serial for gpu in self.machine().gpus for one in gpu.instances)

    def usable(self) -> set[int]:
        """The numbers of those that something can run in."""
        return {one.serial for gpu in self.machine().gpus for one in gpu.instances if one.inner}

    def record(self) -> dict[str, Any]:
        """What the agent has on record, by GPU."""
        path: Path = self.folder / "record.json"
        found: dict[str, Any] = json.loads(path.read_text())["gpus"] if path.exists() else {}
        return found

    def is_making(self) -> bool:
        """The agent has put down that an instance may be there."""
        return any(
            made["state"] == "making" for gpu in self.record().values() for made in gpu.get("made", ())
        )

    def node(self) -> Any:
        return self.stack.rest("GET", f"/nodes/{NODE}", user="anna")[1]

    def await_known(self) -> None:
        """While the web server was away no report was taken: two good ones, and GPUs are offered again."""
        await_(lambda: not self.node()["unknown"], "the node is known", CONVERGED_S)

    def health(self) -> Any:
        """/healthz; a web server that does not answer is as bad as one that says so."""
        try:
            return self.stack.client.get(f"{self.stack.url}/healthz").json()
        except httpx.TransportError as error:
            return {"status": "no answer", "why": repr(error)}

    # --- All is whole ---------------------------------------------------------

    def await_whole(
        self, foreign: tuple[tuple[str, int, int, int, str | None], ...] = (), patience: float = CONVERGED_S
    ) -> None:
        """Nothing is booked twice, and within 60 s: nothing is on its way any more, what is active is on
        the driver exactly once and nothing else is (but `foreign`), and the portal is well."""
        wrong: list[str] = []

        def whole() -> bool:
            assert not self.rows(OVERLAPS)
            wrong[:] = self._wrong(foreign)
            return not wrong

        try:
            await_(whole, "all is whole", patience)
        except AssertionError as error:
            raise AssertionError(f"{error}: {'; '.join(wrong)}") from None

    def _wrong(self, foreign: tuple[Any, ...]) -> list[str]:
        found = [f"moving: {row}" for row in self.rows(_MOVING)]
        found += [f"open command: {row}" for row in self.rows(_OPEN)]
        found += [f"set aside: {row}" for row in self.rows(_ASIDE)]
        wanted, there = sorted([*self.rows(_IN_USE), *foreign]), self.instances()
        if wanted != there:
            found.append(f"in use {wanted}, but on the driver {there}")
        health = self.health()
        if health["status"] != "ok":
            found.append(f"health {health}")
        return found

    def give_all_back(self) -> None:
        """Release whatever is left, as an admin may."""
        for (left,) in self.rows(_LEFT):
            self.stack.rest("POST", f"/reservations/{left}/release", {}, "anna")
