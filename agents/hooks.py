"""A site's own programs at the start, at a notice and at the end of a stay, and the file for prompts.

What was run is on disk: each program runs once for what it is for, and once more only where the
agent ended while it ran, so it should bear being run twice. After a boot on-start.d runs again,
since what it prepared may be gone. Back-to-back is one stay: between its parts nothing runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
from msgspec.structs import replace

from agents import hook_programs
from agents.happened import Log
from agents.hook_programs import Run
from agents.place import Place, write_whole
from agents.prompts import Prompts
from agents.stays import Stays
from pool.core.wire import Held, Stay

log = logging.getLogger("agents.hooks")

Event = Literal["start", "notice", "end"]
RunAll = Callable[..., list[Run]]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A stay that came into force. `started` is the boot in which on-start.d was run, `noticed` the
    notice for which on-notice.d was, `over` that nothing of it is in force any more."""

    stay: Stay
    owner: str
    span: tuple[int, int, int]
    started: str = ""
    noticed: datetime | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    event: Event
    known: Known


class Hooks:
    """Has a thread of its own, so that a slow program silences nothing."""

    def __init__(
        self,
        place: Place,
        stays: Stays,
        log: Log,
        *,
        run_all: RunAll = hook_programs.run_all,
    ) -> None:
        self._folder = place.hooks
        self._path = place.folder / "hooks.json"
        self._stays = stays
        self._log = log
        self._run_all = run_all
        self._prompts = Prompts(place.run)
        self._known = self._load()
        self._in_force: frozenset[str] = frozenset()
        self._at_work: str | None = None  # the allocation that something runs for
        self._turn = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="hooks", daemon=True)

    def start(self) -> None:
        """Begin to work off what `notice` finds."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; a program that runs is left alone."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def notice(self, in_force: Mapping[str, Held]) -> None:
        """Told by the watch after each answer: what is in force now, by allocation. Returns at once.

        on-start.d runs once per allocation that came into force, on-notice.d once per
        new `notice_until`, on-end.d once when it is over.
        """
        with self._turn:
            self._take_in(in_force)
            self._turn.notify_all()
        shown = [one for one in self._stays.all() if one.allocation in in_force or one.ending]
        self._prompts.show(shown)

    def _take_in(self, in_force: Mapping[str, Held]) -> None:
        self._in_force = frozenset(in_force)
        known = {}
        for name, one in self._known.items():
            stay = self._stays.of(name)
            over = name not in in_force and (stay is None or stay.ending)
            known[name] = replace(one, stay=stay or one.stay, over=over)
        before = {name: one for name, one in known.items() if name != self._at_work}
        for name, held in in_force.items():
            stay = self._stays.of(name)
            if name in known or stay is None:
                continue
            earlier = _earlier_part(before, stay, held)
            if earlier is None:
                known[name] = Known(stay=stay, owner=held.owner, span=_span(held))
            else:
                del before[earlier]
                known[name] = replace(known.pop(earlier), stay=stay, over=False)
        never = [name for name, one in known.items() if one.over and not one.started]
        self._keep({name: one for name, one in known.items() if name not in never})

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(job)
            except Exception:  # a full disk, say: the thread must live on
                log.exception("The hooks for %s stumbled", job.known.stay.allocation)
                with self._turn:
                    if not self._stopping:
                        self._turn.wait(1.0)

    def _next(self) -> Job | None:
        """Wait for something to run; None at the end."""
        with self._turn:
            while not self._stopping:
                job = next_job(self._known, self._in_force, self._stays.boot_id())
                if job is not None:
                    self._at_work = job.known.stay.allocation
                    return job
                self._at_work = None
                self._turn.wait()
            return None

    def _do(self, job: Job) -> None:
        boot_id, stay = self._stays.boot_id(), job.known.stay
        runs = self._run_all(self._folder / f"on-{job.event}.d", environment(job.event, stay))
        for run in runs:
            self._log.add(
                "hook",
                run.text,
                gpu=stay.gpu,
                allocation=stay.allocation,
                hook=run.name,
                rc=run.rc,
                on=job.event,
            )
        with self._turn:
            self._settle(job, boot_id)

    def _settle(self, job: Job, boot_id: str) -> None:
        known = dict(self._known)
        now = known.get(job.known.stay.allocation)
        if now is None:  # handed over meanwhile: the next part carries the mark on
            return
        name = now.stay.allocation
        if job.event == "end":
            del known[name]
        elif job.event == "start":
            known[name] = replace(now, started=boot_id)
        else:
            known[name] = replace(now, noticed=job.known.stay.notice_until)
        self._keep(known)

    def _keep(self, known: dict[str, Known]) -> None:
        if known != self._known:
            write_whole(self._path, msgspec.json.encode(known), durable=True)
            self._known = known

    def _load(self) -> dict[str, Known]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Known])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("What hooks were run cannot be read (%s); they run again", error)
            return {}


def next_job(known: Mapping[str, Known], in_force: Collection[str], boot_id: str) -> Job | None:
    """What is to be run next; ends come before starts of the same moment."""
    for one in known.values():
        if one.over:
            return Job("end", one)
    here = [one for name, one in known.items() if name in in_force]
    for one in here:
        if one.started != boot_id:
            return Job("start", one)
    for one in here:
        if one.stay.notice_until is not None and one.stay.notice_until != one.noticed:
            return Job("notice", one)
    return None


def _earlier_part(known: dict[str, Known], stay: Stay, held: Held) -> str | None:
    """The allocation of the same stay that ends as this one begins: same place, same chain of one owner."""
    for name, one in known.items():
        if one.over and (one.stay.gpu, one.span, one.owner) == (stay.gpu, _span(held), held.owner):
            return name
    return None


def _span(held: Held) -> tuple[int, int, int]:
    return (-1 if held.profile_id is None else held.profile_id, held.start, held.size)


def environment(event: Event, stay: Stay) -> dict[str, str]:
    """What a program learns of the stay; times in ISO 8601 with their offset, empty where there is none."""
    return {
        "GPUPOOL_EVENT": event,
        "GPUPOOL_RESERVATION": stay.reservation,
        "GPUPOOL_ALLOCATION": stay.allocation,
        "GPUPOOL_GPU": stay.gpu,
        "GPUPOOL_TEAM": stay.team,
        "GPUPOOL_OWNER": stay.owner,
        "GPUPOOL_USERS": " ".join(stay.users),
        "GPUPOOL_START": stay.start.isoformat(),
        "GPUPOOL_END": stay.end.isoformat() if stay.end else "",
        "GPUPOOL_NOTICE_UNTIL": stay.notice_until.isoformat() if stay.notice_until else "",
        "GPUPOOL_WHY": stay.why,
        "GPUPOOL_URL": stay.url,
    }
