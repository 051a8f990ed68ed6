"""Lines to terminals: before the end, at a notice, over the booked memory, and on a GPU nobody booked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from gettext import gettext as _
from pathlib import Path

import msgspec

from agents import terminals
from agents.attribution import booked, everything_on
from agents.ending import NO_SHARES, OVER, is_foreign
from agents.gpu import Gpu
from agents.happened import Log
from agents.place import Place, write_whole
from agents.record import Ledger
from agents.stays import Stays
from pool.core.wire import ShareSeen, Stay

log = logging.getLogger("agents.lines")

BEFORE_END = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Line:
    """`key` names what it tells of: the same is never told twice."""

    key: str
    uids: tuple[int, ...]
    text: str
    gpu: str
    allocation: str | None = None


class Lines:
    """Each is written once, over restarts too. Terminals are the devices of the user's own sessions that
    take messages. The pool can switch them off; what is said to users of an unbooked GPU has its own switch.
    """

    def __init__(
        self,
        place: Place,
        stays: Stays,
        log: Log,
        ledger: Ledger,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        uid_of: Callable[[str], int | None] = terminals.uid_of,
    ) -> None:
        self._path = place.folder / "lines.json"
        self._devices = place.root / "dev/pts"
        self._stays = stays
        self._log = log
        self._ledger = ledger
        self._now = now
        self._uid_of = uid_of
        self._said = _load(self._path)

    def step(self, gpus: Sequence[Gpu], shares: Mapping[str, Sequence[ShareSeen]] = NO_SHARES) -> None:
        """Asked at each report by the watch, with GPUs whose processes are attributed, and the shares in
        force by GPU UUID."""
        due = [*self._to_holders(), *self._to_greedy(shares), *self._to_foreigners(gpus)]
        # What is no longer due may be told again; while the portal is away nothing is known to be over.
        said = {one.key for one in due} & self._said if self._stays.here() else set(self._said)
        for one in due:
            if one.key not in said:
                said.add(one.key)
                self._write(one)
        if said != self._said:
            self._said = said
            write_whole(self._path, msgspec.json.encode(sorted(said)), durable=False)

    def _write(self, one: Line) -> None:
        count = sum(terminals.tell(uid, one.text, self._devices) for uid in one.uids)
        if count:
            self._log.add("line", one.text, gpu=one.gpu, allocation=one.allocation, terminals=count)

    def _to_holders(self) -> Iterator[Line]:
        """Also while the portal is away: what it last said is the best that is known."""
        if not self._stays.policy.lines:
            return
        now = self._now()
        for stay in self._stays.all():
            if stay.ending or stay.start > now:
                continue
            if stay.notice_until is not None:
                yield self._line(stay, "notice", stay.notice_until, _taken_back(stay))
            if stay.end is not None and now < stay.end <= now + BEFORE_END:
                yield self._line(stay, "end", stay.end, _ends(stay, stay.end, now))

    def _to_greedy(self, shares: Mapping[str, Sequence[ShareSeen]]) -> Iterator[Line]:
        """Whose share takes more memory than was booked; once until it no longer does."""
        if not self._stays.policy.lines:
            return
        for one in (one for some in shares.values() for one in some if one.state == OVER):
            stay = self._stays.of(one.allocation)
            if stay is not None:
                key = f"memory {one.allocation}"
                yield Line(key, self._uids(stay), self._greedy_text(one), stay.gpu, stay.allocation)

    def _greedy_text(self, one: ShareSeen) -> str:
        text = _("Your share of a GPU takes more memory than was booked ({used} MiB); please give it back.")
        policy = self._stays.policy
        if policy.over_memory == "end":
            text += " " + _("Otherwise what runs there is ended in {minutes} min.")
        return text.format(used=one.memory_used_mib, minutes=max(1, round(policy.over_grace_s / 60)))

    def _uids(self, stay: Stay) -> tuple[int, ...]:
        found = (self._uid_of(user) for user in stay.users)
        return tuple(sorted({uid for uid in found if uid is not None}))

    def _line(self, stay: Stay, what: str, at: datetime, text: str) -> Line:
        # By reservation: a booking of eight GPUs ends once.
        key = f"{what} {stay.reservation} {at.isoformat()}"
        return Line(key, self._uids(stay), text, stay.gpu, stay.allocation)

    def _to_foreigners(self, gpus: Sequence[Gpu]) -> Iterator[Line]:
        """Only while the portal says who booked what, and on GPUs that are the pool's to give."""
        if self._stays.policy.foreign == "look" or not self._stays.here():
            return
        for gpu in gpus:
            if gpu.lost or self._ledger.forbidden(gpu.uuid) is not None:
                continue
            if booked(self._ledger.gpu(gpu.uuid), self._stays.on(gpu.uuid)):
                continue
            there = everything_on(gpu)
            for uid in sorted({one.uid for one in there if is_foreign(one) and one.uid is not None}):
                yield Line(f"foreign {gpu.uuid} {uid}", (uid,), self._foreign_text(gpu), gpu.uuid)

    def _foreign_text(self, gpu: Gpu) -> str:
        text = _("GPU {index} of this machine is not booked; please book it before you use it.")
        if self._stays.policy.foreign == "kill":
            text += " " + _("What runs there without a booking will be ended.")
        return text.format(index=gpu.index)


def _ends(stay: Stay, end: datetime, now: datetime) -> str:
    minutes = max(1, round((end - now).total_seconds() / 60))
    text = _("Your GPU booking ends at {time}, in {minutes} min. Save your work.")
    return text.format(time=_local(end), minutes=minutes) + _more(stay)


def _taken_back(stay: Stay) -> str:
    assert stay.notice_until is not None
    text = _("Your GPU booking may be taken back from {time} on ({why}). Save your work.")
    return text.format(time=_local(stay.notice_until), why=stay.why or _("others need it")) + _more(stay)


def _more(stay: Stay) -> str:
    return " " + _("More: {url}").format(url=stay.url) if stay.url else ""


def _local(at: datetime) -> str:
    """In the machine's own zone, with its name."""
    return at.astimezone().strftime("%H:%M %Z")


def _load(path: Path) -> set[str]:
    try:
        return set(msgspec.json.decode(path.read_bytes(), type=list[str]))
    except (OSError, msgspec.DecodeError):
        return set()
