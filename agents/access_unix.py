"""GPUs closed to every login but its holder's: systemd's device rules on the slices of users.

A GPU that is handed out this way can be opened by nobody's login, except below `user-UID.slice` of its
holder. All other devices stay open, and so do GPUs that are not handed out this way. Root, system services
and the container engine are not bound. Tested against a stand-in for systemctl. Not here: who holds what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from agents import devices
from agents.devices import Node
from agents.gpu import DriverRefusal
from agents.machine import program, run
from agents.place import Place, write_whole

log = logging.getLogger("agents.access")

_ROOT_UID = 0
#: What holds for all logins, and that it does not hold for root's; both are gone after a boot.
_ALL = "run/systemd/system/user-.slice.d/50-gpupool.conf"
_ROOT = "run/systemd/system/user-0.slice.d/60-gpupool.conf"
_HEAD = "# Written by the gpupool agent: GPUs are open to their holders only.\n[Slice]\n"


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """One closed GPU: its device number, and what each user may open of it."""

    minor: int
    grants: dict[int, tuple[tuple[str, str], ...]] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted, on disk. `touched` are the users whose slices ever had rules of their own, and
    which must follow when the general one changes."""

    gpus: dict[str, Closed] = {}
    touched: tuple[int, ...] = ()


def works(place: Place) -> bool:
    """Where systemd runs the machine."""
    return program(place, "systemctl") is not None and (place.root / "run/systemd/system").is_dir()


class Slices:
    """One thread changes. What it gave is on disk first, so that a crash leaves nothing open."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = place.folder / "access.json"
        self._kept = _load(self._file)
        self._sure = False  # whether every touched user's slice is known to follow
        self._loaded = False  # whether systemd is known to have read the general rule

    def bring(self, gpu: str, closed: Closed | None, check: Callable[[], None]) -> bool:
        """Close a GPU to all but those it names, or open it again (None); True if anything changed.

        Raises `DriverRefusal` (access) when systemd does not take it.
        """
        gpus = {uuid: one for uuid, one in self._kept.gpus.items() if uuid != gpu}
        before = self._kept.gpus.get(gpu)
        if closed is not None:
            gpus[gpu] = closed
        if not gpus and self._kept == Kept() and not self._path(_ALL).exists():
            return False
        users = {uid for one in gpus.values() for uid in one.grants}
        wanted = Kept(gpus=gpus, touched=tuple(sorted({*self._kept.touched, *users})))
        if wanted != self._kept:
            check()
            self._keep(wanted)
        if general := self._bring_general(check):
            self._sure = False
        concerned = users | set(before.grants if before else ()) if self._sure else set(wanted.touched)
        self._sure = False
        changed = self._bring_users(sorted(concerned), check)
        self._sure = True
        if not gpus:
            self._keep(Kept())
        return general or changed

    def _bring_users(self, uids: Iterable[int], check: Callable[[], None]) -> bool:
        """One user's refusal must not leave a GPU open to another."""
        refusals, changed = [], False
        for uid in uids:
            try:
                changed |= self._bring_user(uid, check)
            except DriverRefusal as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]
        return changed

    def _bring_general(self, check: Callable[[], None]) -> bool:
        """The rule for all logins; systemd reads such a file only when it loads its units anew.

        That is rare: when a GPU is first closed or the last is opened. A holder's own rule needs no
        reload, which makes running containers lose their GPUs where /dev/char has no links to them.
        """
        lines = "".join(f"DeviceAllow={path} {rights}\n" for path, rights in self._for_everybody())
        texts = {
            _ALL: f"{_HEAD}DevicePolicy=closed\n{lines}",
            _ROOT: f"{_HEAD}DevicePolicy=auto\nDeviceAllow=\n",
        }
        if not self._kept.gpus:
            texts = dict.fromkeys(texts, "")
        stale = {name: text for name, text in texts.items() if _read(self._path(name)) != text}
        if not stale and self._loaded:
            return False
        check()
        for name, text in stale.items():
            self._rewrite(self._path(name), text)
        self._loaded = False
        self._systemctl("daemon-reload")
        self._loaded = True
        return True

    def _bring_user(self, uid: int, check: Callable[[], None]) -> bool:
        """A user's own rule takes the place of the general one, and so repeats it."""
        own = sorted({grant for one in self._kept.gpus.values() for grant in one.grants.get(uid, ())})
        unit = f"user-{uid}.slice"
        rules = [*self._for_everybody(), *own] if self._kept.gpus else []
        if _cards(self._shown(unit)) == _cards(rules):
            return False
        check()
        policy = "closed" if self._kept.gpus else "auto"
        words = [
            f"DevicePolicy={policy}",
            "DeviceAllow=",
            *(f"DeviceAllow={path} {how}" for path, how in rules),
        ]
        self._systemctl("set-property", "--runtime", unit, *words)
        if _cards(self._shown(unit)) != _cards(rules):
            raise DriverRefusal("access", None, f"{unit} does not read back as ordered")
        log.info("%s may open %s", unit, ", ".join(path for path, _ in own) or "no GPU")
        return True

    def _for_everybody(self) -> list[tuple[str, str]]:
        """All but NVIDIA's devices, and the GPUs that are not closed with what all of them need."""
        closed = {one.minor for one in self._kept.gpus.values()}
        open_cards = [f"/dev/nvidia{minor}" for minor in devices.cards(self._place) if minor not in closed]
        if open_cards:
            open_cards += [node.path for node in devices.of_everybody(self._place)]
        groups = [(f"char-{name}", "rwm") for name in devices.groups(self._place)]
        return [("block-*", "rwm"), *groups, *((path, "rw") for path in open_cards)]

    def _shown(self, unit: str) -> list[tuple[str, str]]:
        said = self._systemctl("show", "--property=DeviceAllow", unit)
        rules = (line.removeprefix("DeviceAllow=").rpartition(" ") for line in said.splitlines())
        return [(path, rights) for path, _, rights in rules if path]

    def _systemctl(self, *words: str) -> str:
        found = program(self._place, "systemctl")
        if found is None:
            raise DriverRefusal("access", None, "systemctl is not installed")
        return run([found, *words], "access")

    def _rewrite(self, path: Path, text: str) -> None:
        try:
            if not text:
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode(), durable=False)
            path.chmod(0o644)
        except OSError as error:
            raise DriverRefusal("access", None, f"{path} was not written: {error}") from error

    def _path(self, name: str) -> Path:
        return self._place.root / name

    def _keep(self, kept: Kept) -> None:
        if kept != self._kept:
            write_whole(self._file, msgspec.json.encode(kept), durable=True)
            self._kept = kept


def grants(accounts: Iterable[int], nodes: Iterable[Node]) -> Mapping[int, tuple[tuple[str, str], ...]]:
    """What each account may open; root may anyway."""
    rules = tuple(sorted((node.path, node.permissions) for node in nodes))
    return {uid: rules for uid in accounts if uid != _ROOT_UID}


def _cards(rules: Iterable[tuple[str, str]]) -> set[str]:
    """What of a rule is ours to compare: systemd may show the other devices in words of its own."""
    return {path for path, _ in rules if path.startswith("/dev/nvidia")}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _load(path: Path) -> Kept:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except msgspec.DecodeError as error:
        log.error("%s cannot be read (%s): GPUs are closed anew as they are brought", path, error)
        return Kept()
