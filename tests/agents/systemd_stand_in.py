"""A stand-in for systemctl that keeps device rules of slices as systemd's manual pages describe.

Files in `user-.slice.d` count only once they were loaded by a reload; what is set for a unit
takes the place of them, and `DeviceAllow=` empties the list. Every call is written down.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STATE = "systemd.json"


def install(root: Path) -> None:
    """Put systemctl into a machine's root, on which systemd runs from now on."""
    (root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
    program = root / "usr/bin/systemctl"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(__file__).resolve()} {root} "$@"\n')
    program.chmod(0o755)


def calls(root: Path) -> list[list[str]]:
    return list(_state(root)["calls"])


def may_open(root: Path, uid: int) -> set[str]:
    """NVIDIA's devices that a login of this account can open; "all" where no rule binds it."""
    policy, rules = _rules(root, f"user-{uid}.slice")
    if policy != "closed":
        return {"all"}
    return {rule.rpartition(" ")[0] for rule in rules if "nvidia" in rule}


def fail(root: Path, *words: str) -> None:
    """From now on calls that begin with these words fail; none: no call does."""
    state = _state(root)
    state["fails"] = list(words)
    _write(root, state)


def boot(root: Path) -> None:
    """Everything below /run is gone, and what was loaded with it."""
    for path in sorted((root / "run/systemd/system").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    _write(root, {**_state(root), "loaded": {}, "set": {}})


def main(root: Path, words: list[str]) -> int:
    state = _state(root)
    state["calls"].append(words)
    failing = bool(state["fails"]) and words[: len(state["fails"])] == state["fails"]
    if not failing and words[0] == "daemon-reload":
        state["loaded"] = _load(root)
    elif not failing and words[:2] == ["set-property", "--runtime"]:
        unit, *settings = words[2:]
        state["set"].setdefault(unit, {})
        _apply(state["set"][unit], settings)
    _write(root, state)
    if failing:
        print("Failed: the manager refuses", file=sys.stderr)
        return 1
    if words[0] == "show":
        for rule in _rules(root, words[-1])[1]:
            print(f"DeviceAllow={rule}")
    return 0


def _rules(root: Path, unit: str) -> tuple[str, list[str]]:
    state = _state(root)
    found: dict[str, object] = {"DevicePolicy": "auto", "DeviceAllow": []}
    for name in ("user-.slice", unit):
        found.update(state["loaded"].get(name, {}))
    found.update(state["set"].get(unit, {}))
    rules = found["DeviceAllow"]
    assert isinstance(rules, list)
    return str(found["DevicePolicy"]), rules


def _apply(into: dict[str, object], settings: list[str]) -> None:
    for line in settings:
        name, _, value = line.partition("=")
        if name == "DevicePolicy":
            into[name] = value
        elif name == "DeviceAllow" and not value:
            into[name] = []
        elif name == "DeviceAllow":
            rules = into.setdefault(name, [])
            assert isinstance(rules, list)
            rules.append(value)


def _load(root: Path) -> dict[str, dict[str, object]]:
    loaded: dict[str, dict[str, object]] = {}
    for path in sorted((root / "run/systemd/system").glob("*.slice.d/*.conf")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith(("#", "["))]
        _apply(loaded.setdefault(path.parent.name.removesuffix(".d"), {}), lines)
    return loaded


def _state(root: Path) -> dict[str, Any]:
    path = root / STATE
    if not path.exists():
        return {"loaded": {}, "set": {}, "calls": [], "fails": []}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(root: Path, state: object) -> None:
    (root / STATE).write_text(json.dumps(state))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
