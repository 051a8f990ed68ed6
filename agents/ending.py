"""Ends what still runs for a stay that is over: SIGTERM, grace, and SIGKILL where the pool allows it.

What is to be taken back soon gets the signal before that its owner asked for, once.

The same for a share that takes too much memory, for foreign use, and after an error that cost an
application its memory. It signals only what the report before showed, and only what is allowed now.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from gettext import gettext as _
from types import MappingProxyType

from agents import signals
from agents.attribution import booked, everything_on, host
from agents.gpu import Gpu
from agents.happened import Log
from agents.record import Ledger
from agents.signals import Outcome, Seen
from agents.stays import Stays
from pool.core.wire import SIGNALS, Process, ShareSeen, Stay

log = logging.getLogger("agents.ending")

Key = tuple[int, str]
Send = Callable[[Seen, signal.Signals, str], Outcome]
#: So long a process may be nobody's before that is told.
ALERT_S = 5.0
#: State of a share whose holder takes more memory than was booked.
OVER = "over"
NO_SHARES: Mapping[str, Sequence[ShareSeen]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Due:
    """A process that is to go, and why: over, memory, foreign, xid, or recalled (soon).

    `kill`: SIGKILL if it does not.
    """

    process: Process
    gpu: str
    why: str
    kill: bool


class Ending:
    """Asked at each report by the watch, with GPUs whose processes are attributed.

    It does nothing while the portal is away, where the GPU may not be changed
    (frozen, observed), or to what is not attributed; the only exception is a GPU
    that nobody booked, where the pool says so. A process that is no longer to go,
    since its stay was extended, say, is left alone at once.
    """

    def __init__(
        self,
        stays: Stays,
        log: Log,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.monotonic,
        send: Send = signals.send,
    ) -> None:
        self._stays = stays
        self._log = log
        self._ledger = ledger
        self._clock = clock
        self._send = send
        self._lock = threading.Lock()
        self._boot_id = ""
        self._forget()

    def _forget(self) -> None:
        self._told: dict[Key, float] = {}  # SIGTERM was sent, or could not be
        self._killed: set[Key] = set()
        self._nobodys: dict[Key, float] = {}  # unattributed, since when
        self._alerted: set[Key] = set()
        self._over_since: dict[str, float] = {}
        self._foreign_since: dict[Key, float] = {}
        self._broken: set[Key] = set()
        self._warned: set[tuple[Key, str]] = set()  # processes, and for which allocation

    def step(self, gpus: Sequence[Gpu], shares: Mapping[str, Sequence[ShareSeen]] = NO_SHARES) -> None:
        """Signal what is due: stays that are ending, shares over their memory, foreign use where the pool
        says so. `shares` are those in force, by GPU UUID. Tells once of what is unattributed."""
        with self._lock:
            self._notice_boot()
            self._alert(gpus)
            self._note_memory(shares)
            if not self._stays.here():
                return
            due = {}
            for gpu in gpus:
                if not gpu.lost and self._ledger.forbidden(gpu.uuid) is None:
                    due.update({key: one for one in self._due(gpu) if (key := _key(one.process))})
                    self._warn(gpu)
            self._press(due)
            self._foreign_since = {key: at for key, at in self._foreign_since.items() if key in self._nobodys}

    def end_application(self, gpu: Gpu, gi: int | None) -> None:
        """An error of the card ended this application's memory (Xid 94): what runs there is told to go.

        Without an instance the driver does not say whose application it was: nothing
        is done then unless all that runs belongs to one allocation.
        """
        with self._lock:
            self._notice_boot()
            if not self._stays.here() or gpu.lost or self._ledger.forbidden(gpu.uuid) is not None:
                return
            hit = [one for one in _within(gpu, gi) if not one.system]
            if gi is None and len({one.allocation for one in hit}) != 1:
                return
            known = [one for one in hit if one.allocation is not None]
            due = {key: Due(one, gpu.uuid, "xid", False) for one in known if (key := _key(one))}
            self._broken |= set(due)
            for key, one in due.items():
                self._terminate(key, one)

    def _notice_boot(self) -> None:
        """Pids of an earlier boot mean nothing."""
        boot_id = self._stays.boot_id()
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self._forget()

    def _due(self, gpu: Gpu) -> Iterator[Due]:
        policy = self._stays.policy
        for one in everything_on(gpu):
            if one.system:
                continue
            if self._is_over(one.allocation):
                yield Due(one, gpu.uuid, "over", policy.kill)
            elif _key(one) in self._broken:
                yield Due(one, gpu.uuid, "xid", policy.kill)
            elif policy.over_memory == "end" and self._is_greedy(one.allocation):
                yield Due(one, gpu.uuid, "memory", policy.kill)
        if policy.foreign == "kill" and not booked(self._ledger.gpu(gpu.uuid), self._stays.on(gpu.uuid)):
            yield from self._foreign(gpu)

    def _warn(self, gpu: Gpu) -> None:
        """The signal that an owner asked for, to what is attributed to an allocation that is recalled."""
        wanted = self._ledger.gpu(gpu.uuid).wanted
        held = wanted.layout.held if wanted else ()
        signals_of = {one.allocation: one.signal for one in held if one.phase == "checkpoint"}
        for one in everything_on(gpu):
            key, name = _key(one), signals_of.get(one.allocation or "", "")
            if (
                key is None
                or one.system
                or name not in SIGNALS
                or (key, one.allocation or "") in self._warned
            ):
                continue
            self._warned.add((key, one.allocation or ""))
            self._signal(Due(one, gpu.uuid, "recalled", False), signal.Signals[name])

    def _is_over(self, allocation: str | None) -> bool:
        stay = self._stays.of(allocation) if allocation else None
        return stay is not None and stay.ending and not self._goes_on(stay)

    def _goes_on(self, stay: Stay) -> bool:
        """Back-to-back is one stay: its end is none while the layout with the next part is under way.

        Once that is here, what runs is attributed to the next part by itself.
        """
        wanted = self._ledger.gpu(stay.gpu).wanted
        held = {one.allocation for one in wanted.layout.held} if wanted else set()
        return any(
            next_.start == stay.end and not next_.ending and next_.allocation not in held
            for next_ in self._stays.on(stay.gpu)
            if (next_.team, next_.owner) == (stay.team, stay.owner)
        )

    def _is_greedy(self, allocation: str | None) -> bool:
        """A share that was over its memory for longer than the pool allows."""
        since = self._over_since.get(allocation or "")
        return since is not None and self._clock() - since >= self._stays.policy.over_grace_s

    def _foreign(self, gpu: Gpu) -> Iterator[Due]:
        """Users' processes on a GPU that nobody booked; they had a line to their terminals and the grace."""
        there = [one for one in everything_on(gpu) if is_foreign(one)]
        for one in there:
            key = _key(one)
            if key is None:
                continue
            since = self._foreign_since.setdefault(key, self._clock())
            if self._clock() - since >= self._stays.policy.grace_s:
                yield Due(one, gpu.uuid, "foreign", True)

    def _press(self, due: Mapping[Key, Due]) -> None:
        now, grace_s = self._clock(), self._stays.policy.grace_s
        self._told = {key: at for key, at in self._told.items() if key in due}
        self._killed &= set(due)
        self._broken &= set(due)
        for key, one in due.items():
            if key not in self._told:
                self._terminate(key, one)
            elif one.kill and key not in self._killed and now - self._told[key] >= grace_s:
                self._killed.add(key)
                self._signal(one, signal.SIGKILL)

    def _terminate(self, key: Key, due: Due) -> None:
        self._told[key] = self._clock()
        self._signal(due, signal.SIGTERM)

    def _signal(self, due: Due, number: signal.Signals) -> None:
        one = due.process
        seen = Seen(self._boot_id, one.pid, one.started, one.uid)
        outcome = self._send(seen, number, self._stays.boot_id())
        if outcome is Outcome.GONE:
            return
        text = _("{signal} to {process}: {why}")
        if outcome is Outcome.REFUSED:
            text = _("{signal} to {process} is not permitted: {why}")
        said = text.format(signal=number.name, process=_named(one), why=due.why)
        log.info("%s: %s", due.gpu, said)
        self._log.add(
            "signal",
            said,
            gpu=due.gpu,
            allocation=one.allocation,
            pid=one.pid,
            signal=int(number),
            why=due.why,
            sent=outcome is Outcome.SENT,
        )

    def _note_memory(self, shares: Mapping[str, Sequence[ShareSeen]]) -> None:
        """Since when each share is over its memory; the first time is told."""
        over = {
            one.allocation: (uuid, one) for uuid, some in shares.items() for one in some if one.state == OVER
        }
        self._over_since = {name: at for name, at in self._over_since.items() if name in over}
        for name, (uuid, one) in over.items():
            if name not in self._over_since:
                self._over_since[name] = self._clock()
                used = one.memory_used_mib
                self._log.add("over_memory", one.detail, gpu=uuid, allocation=name, memory_used_mib=used)

    def _alert(self, gpus: Sequence[Gpu]) -> None:
        """Tell once of each process that is nobody's for a while: a start takes a moment.

        Also whoever holds the slice or GPU on which it runs: mostly it is their own, under another account.
        Not on GPUs that are only observed: there nothing is anybody's by a booking.
        """
        before, self._nobodys, now = self._nobodys, {}, self._clock()
        for gpu in gpus:
            if gpu.lost or self._ledger.forbidden(gpu.uuid) == "observe":
                continue
            for one in everything_on(gpu):
                key = _key(one)
                if key is None or one.system or one.allocation is not None:
                    continue
                self._nobodys[key] = before.get(key, now)
                if key not in self._alerted and now - self._nobodys[key] >= ALERT_S:
                    self._alerted.add(key)
                    said = _("{process} belongs to no booking").format(process=_named(one))
                    whose = host(gpu, self._ledger.gpu(gpu.uuid), one)
                    told = {"pid": one.pid, "uid": one.uid, "user": one.user}
                    self._log.add("unattributed", said, gpu=gpu.uuid, allocation=whose, **told)
        self._alerted &= set(self._nobodys)


def is_foreign(process: Process) -> bool:
    """Some user's, as far as can be told: not the machine's own and not its root's."""
    plain = process.uid not in (None, 0) or process.container is not None
    return not process.system and process.allocation is None and process.uid is not None and plain


def _named(process: Process) -> str:
    return f"{process.pid} ({process.name}, {process.user or process.uid})"


def _key(process: Process) -> Key | None:
    """None for what could not be read: it can never be matched again."""
    return None if process.started is None else (process.pid, process.started)


def _within(gpu: Gpu, gi: int | None) -> tuple[Process, ...]:
    if gi is None:
        return everything_on(gpu)
    found = next((one.processes for one in gpu.instances or () if one.gi == gi), None)
    return found or ()
