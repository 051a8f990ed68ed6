"""Shares of a GPU: brings what keeps them apart (MPS, HAMi-core, nothing) to a layout.

What was brought is on disk, so that it is taken down after a crash, too. A GPU in MIG
mode has no shares. Not here: whose a process is (attribution), what is done about too much memory (ending).
"""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from agents import escapes, mps, processes
from agents.attribution import is_system
from agents.driver import Driver
from agents.escapes import Escapes
from agents.gpu import DriverRefusal, Gpu
from agents.hami import Hami
from agents.mps import MOST_CLIENTS, Mps
from agents.place import Place, write_whole
from pool.core import connect, wire
from pool.core.connect import Part
from pool.core.wire import Held, Layout, Process, ShareSeen

log = logging.getLogger("agents.sharing")

_SHARED_MODE, _PLAIN_MODE, _NOBODY = "exclusive_process", "default", "prohibited"
Check = Callable[[], None]


class Stood(msgspec.Struct, frozen=True, kw_only=True):
    """A share that was brought; by `owner` and `share` the next in a chain is known."""

    owner: str
    share: wire.Share


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of one GPU. `mode` is its compute mode from before, `account` the one that MPS serves."""

    way: wire.Sharing
    shares: dict[str, Stood] = {}
    mode: str = _PLAIN_MODE
    multi_user: bool = False
    account: str = ""


class Sharing:
    """One thread changes (the applier), others look."""

    def __init__(self, place: Place, driver: Driver) -> None:
        self._place = place
        self._driver = driver
        self._hami = Hami(place)
        self._escapes = Escapes()
        self._file = place.folder / "sharing.json"
        self._brought = _load(self._file)

    def offered(self) -> tuple[str, ...]:
        """Ways to share that work on this node, by what is installed: mps, hami, timeslice."""
        works = {"mps": mps.works(self._place), "hami": self._hami.works(), "timeslice": True}
        return tuple(name for name, so in works.items() if so)

    def bring(self, gpu: Gpu, layout: Layout, check: Check) -> bool:
        """Bring the shares of a GPU to its layout (none: take down what was there); True if anything changed.

        Idempotent. `check` raises when nothing may be changed now; it is asked
        before each change. Raises `DriverRefusal` (sharing, in_use, no_permission).
        """
        held = {one.allocation: one for one in layout.held if one.share}
        before = self._brought.get(gpu.uuid)
        changed = False
        if before and (not held or layout.sharing != before.way):
            self._take_down(gpu, before, check)
            before, changed = None, True
        if not held or layout.sharing is None:
            return changed
        if layout.mig or gpu.mig:
            raise DriverRefusal("sharing", None, "a GPU in MIG mode cannot be given in shares")
        if layout.sharing not in self.offered():
            raise DriverRefusal("sharing", None, f"{layout.sharing} is not installed on this node")
        over = _over(before, held.values())
        users = {name: _users(gpu, name) for name in over}
        lingering = {name: one for name, one in over.items() if users[name] or gpu.processes is None}
        changed |= self._set_up(gpu, layout, list(held.values()), before, lingering, check)
        if lingering:
            holders = tuple(one for name in lingering for one in users[name])
            raise DriverRefusal("in_use", None, "a share that is over is still used", holders)
        return changed

    def standing(self, gpu: Gpu, layout: Layout) -> tuple[ShareSeen, ...]:
        """The shares of `layout` that are in force, with the memory that each one's processes use.

        `gpu.processes` are attributed already. Degraded: what keeps it apart does not work now.
        """
        brought = self._brought.get(gpu.uuid)
        if brought is None or brought.way != layout.sharing:
            return ()
        dead = brought.way == "mps" and not Mps(self._place, gpu.uuid).alive()
        common = "the MPS daemon is dead" if dead else ""
        stood = [one for one in layout.held if one.share and one.allocation in brought.shares]
        return tuple(self._seen(gpu, one, brought.way, common) for one in stood)

    def environment(self, gpu: Gpu, layout: Layout, allocation: str) -> dict[str, str]:
        """What the holder of a share has to set, so that its limits are kept."""
        held = next((one for one in layout.held if one.allocation == allocation), None)
        if held is None:
            return {}
        part = Part(allocation, held.reservation, gpu.uuid, share=held.share, sharing=layout.sharing)
        return connect.limits(part, str(self._place.run))

    def _seen(self, gpu: Gpu, held: Held, way: str, trouble: str) -> ShareSeen:
        """Too much memory is told first: it is what something may be done about."""
        assert held.share is not None
        own = [one for one in gpu.processes or () if one.allocation == held.allocation]
        known = [int(one.memory_mib) for one in own if one.memory_mib is not None]
        whole = gpu.processes is not None and len(known) == len(own)
        if way == "hami":
            stands = self._hami.stands(held.allocation)
            trouble = "" if stands else "its folder or the library is gone"
        trouble = trouble or self._escaped(held.allocation, held.share, way, own)
        state = "degraded" if trouble else "ok"
        if sum(known) > held.share.memory_mib:
            state = "over"
            trouble = f"{sum(known)} MiB are used of {held.share.memory_mib}"
        used = sum(known) if whole else None  # part of a sum is none
        return ShareSeen(allocation=held.allocation, state=state, memory_used_mib=used, detail=trouble)

    def _escaped(self, name: str, share: wire.Share, way: str, own: Sequence[Process]) -> str:
        if way == "timeslice":  # which has no limits to escape
            return ""
        look = escapes.without_library if way == "hami" else escapes.looser
        return self._escapes.first(name, own, partial(look, share=share))

    def _set_up(
        self,
        gpu: Gpu,
        layout: Layout,
        held: Sequence[Held],
        before: Brought | None,
        lingering: dict[str, Stood],
        check: Check,
    ) -> bool:
        assert layout.sharing is not None
        mode = gpu.health.compute_mode or _PLAIN_MODE
        after = Brought(
            way=layout.sharing,
            shares={one.allocation: Stood(owner=one.owner, share=one.share) for one in held if one.share}
            | lingering,
            # Nobody's GPU may have been closed to all; that is no mode to go back to.
            mode=before.mode if before else (_PLAIN_MODE if mode == _NOBODY else mode),
            multi_user=layout.multi_user,
            account=_account(held, before) if layout.sharing == "mps" and not layout.multi_user else "",
        )
        changed = False
        if after.way == "mps":
            changed = self._bring_mps(gpu, after, before, held, check)
        elif after.way == "hami":
            changed = self._bring_hami(after, before, held, check)
        if after != before:
            check()
            self._keep(gpu.uuid, after)
            changed = True
            log.info("%s: %d shares by %s", gpu.uuid, len(held), after.way)
        return changed

    def _bring_mps(
        self, gpu: Gpu, after: Brought, before: Brought | None, held: Sequence[Held], check: Check
    ) -> bool:
        """A daemon that runs for the right accounts, with limits on the server's side.

        All clients of a server have one limit there, so it is the largest share's; each client's own
        variables narrow it, and the sum over a share's processes is watched.
        """
        if len(held) > MOST_CLIENTS:
            raise DriverRefusal("sharing", None, f"MPS serves at most {MOST_CLIENTS} clients on a GPU")
        daemon = Mps(self._place, gpu.uuid)
        fits = before is not None and (before.multi_user, before.account) == (after.multi_user, after.account)
        changed = not (fits and daemon.alive())
        if changed:
            self._restart(gpu, daemon, after, before, check)
        elif gpu.health.compute_mode not in (_SHARED_MODE, None):
            check()
            self._driver.set_compute_mode(gpu.uuid, _SHARED_MODE)
            changed = True
        shares = [one.share for one in held if one.share]
        memory, percent = max(one.memory_mib for one in shares), max(one.limit_pct for one in shares)
        return daemon.limit(memory, percent, check) or changed

    def _restart(self, gpu: Gpu, daemon: Mps, after: Brought, before: Brought | None, check: Check) -> None:
        """Only while nothing runs there: a server that is ended takes all its clients along.

        First it is noted, so that a crash leaves nothing that nobody would take down.
        """
        _refuse_if_used(gpu, "MPS cannot be started")
        check()
        self._keep(gpu.uuid, msgspec.structs.replace(after, shares=before.shares if before else {}))
        daemon.quit()
        daemon.end_orphans(one.pid for one in gpu.processes or () if _is_system(one))
        self._driver.set_compute_mode(gpu.uuid, _SHARED_MODE)
        daemon.start(_uid(after.account), multi_user=after.multi_user)

    def _bring_hami(self, after: Brought, before: Brought | None, held: Sequence[Held], check: Check) -> bool:
        changed = False
        for one in held:
            if not self._hami.stands(one.allocation):
                check()
                self._hami.bring(one)
                changed = True
        for name in set(before.shares if before else ()) - set(after.shares):
            check()
            self._hami.drop(name)
            changed = True
        return changed

    def _take_down(self, gpu: Gpu, brought: Brought, check: Check) -> None:
        """The GPU becomes as it was before it was shared; what still runs is left alone, and in the way."""
        _refuse_if_used(gpu, "a share that is over is still used")
        check()
        if brought.way == "mps":
            daemon = Mps(self._place, gpu.uuid)
            daemon.quit()
            daemon.end_orphans(one.pid for one in gpu.processes or () if _is_system(one))
            daemon.clear()
            if gpu.health.compute_mode != brought.mode:
                self._driver.set_compute_mode(gpu.uuid, brought.mode)
        elif brought.way == "hami":
            for name in brought.shares:
                self._hami.drop(name)
        self._keep(gpu.uuid, None)
        log.info("%s: is not shared any more", gpu.uuid)

    def _keep(self, uuid: str, brought: Brought | None) -> None:
        after = {name: one for name, one in self._brought.items() if name != uuid}
        if brought is not None:
            after[uuid] = brought
        write_whole(self._file, msgspec.json.encode(after), durable=True)
        self._brought = after
        self._escapes.forget(name for one in after.values() for name in one.shares)


def _account(held: Sequence[Held], before: Brought | None) -> str:
    """The one account that all holders have: a server serves no second. Raises `DriverRefusal` (sharing).

    One that is served already stays, since another would need another server.
    """
    common = set(held[0].users).intersection(*(one.users for one in held[1:]))
    if before and before.account in common:
        return before.account
    if common:
        return next(name for name in held[0].users if name in common)
    if len({one.owner for one in held}) == 1:
        return ""
    raise DriverRefusal("sharing", None, "MPS serves one account on a GPU, and these have none in common")


def _uid(account: str) -> int | None:
    with suppress(KeyError):
        return pwd.getpwnam(account).pw_uid if account else None
    return None


def _over(before: Brought | None, held: Collection[Held]) -> dict[str, Stood]:
    """Shares that are over, without those whose owner goes on with the same in another allocation."""
    names = {one.allocation for one in held}
    heirs = [(one.owner, one.share) for one in held]
    left = before.shares.items() if before else ()
    return {name: one for name, one in left if name not in names and (one.owner, one.share) not in heirs}


def _users(gpu: Gpu, allocation: str) -> tuple[Process, ...]:
    """The processes that run for it."""
    found = gpu.processes or ()
    return tuple(one for one in found if allocation in (one.allocation, _marked(one)))


def _marked(one: Process) -> str | None:
    return processes.facts_of(one).marks.get("GPUPOOL_ALLOCATION")


def _refuse_if_used(gpu: Gpu, detail: str) -> None:
    """What cannot be read counts as in use."""
    if gpu.processes is None:
        raise DriverRefusal("in_use", None, f"{detail}: its processes cannot be read")
    users = tuple(one for one in gpu.processes if not _is_system(one))
    if users:
        raise DriverRefusal("in_use", None, detail, users)


def _is_system(one: Process) -> bool:
    return one.system or is_system(one, processes.facts_of(one))


def _load(path: Path) -> dict[str, Brought]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Brought])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        log.error("%s cannot be read (%s): shares are brought anew", path, error)
        return {}
