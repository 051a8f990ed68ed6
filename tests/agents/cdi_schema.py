"""What the CDI specification 0.6 allows in a document, field by field (the CDI project's SPEC.md).

A checker for tests: returns what is wrong, [] for a document that an engine takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_VENDOR = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_CLASS = r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"{_VENDOR}/{_CLASS}")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
#: Keys as Kubernetes has them: an optional DNS prefix and a name of at most 63 characters.
_ANNOTATION = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
_TYPES = {"b", "c", "u", "p"}

#: Field -> (type, required), by part of the document; what came after 0.6 (as additionalGids) is not in it.
_PARTS: dict[str, dict[str, tuple[type, bool]]] = {
    "spec": {
        "cdiVersion": (str, True),
        "kind": (str, True),
        "annotations": (dict, False),
        "devices": (list, True),
        "containerEdits": (dict, False),
    },
    "device": {"name": (str, True), "annotations": (dict, False), "containerEdits": (dict, True)},
    "edits": {
        "env": (list, False),
        "deviceNodes": (list, False),
        "mounts": (list, False),
        "hooks": (list, False),
    },
    "node": {
        "path": (str, True),
        "hostPath": (str, False),
        "type": (str, False),
        "major": (int, False),
        "minor": (int, False),
        "fileMode": (int, False),
        "permissions": (str, False),
        "uid": (int, False),
        "gid": (int, False),
    },
    "mount": {
        "hostPath": (str, True),
        "containerPath": (str, True),
        "options": (list, False),
        "type": (str, False),
    },
    "hook": {
        "hookName": (str, True),
        "path": (str, True),
        "args": (list, False),
        "env": (list, False),
        "timeout": (int, False),
    },
}


def faults(document: Any) -> list[str]:
    """What an engine of version 0.6 would refuse."""
    return list(_spec(document))


def _spec(document: Any) -> Iterator[str]:
    yield from _fields("spec", document)
    if document.get("cdiVersion") != "0.6.0":
        yield f"cdiVersion is {document.get('cdiVersion')}"
    if not _KIND.fullmatch(str(document.get("kind"))):
        yield f"kind is {document.get('kind')}"
    yield from _annotations(document)
    devices = document.get("devices", [])
    if not devices:
        yield "no devices"
    if len({one["name"] for one in devices}) != len(devices):
        yield "a device twice"
    for one in devices:
        yield from _fields("device", one)
        yield from _annotations(one)
        if not _DEVICE.fullmatch(one["name"]):
            yield f"device {one['name']!r}"
        if not one["containerEdits"]:
            yield f"device {one['name']} edits nothing"
        yield from _edits(one["containerEdits"])
    yield from _edits(document.get("containerEdits", {}))


def _edits(edits: dict[str, Any]) -> Iterator[str]:
    yield from _fields("edits", edits)
    for line in edits.get("env", []):
        if not re.match(r"[^=]+=", line):
            yield f"env {line!r}"
    for node in edits.get("deviceNodes", []):
        yield from _fields("node", node)
        yield from _absolute(node, "path")
        if node.get("type", "c") not in _TYPES or not set(node.get("permissions", "")) <= set("rwm"):
            yield f"node {node}"
    for mount in edits.get("mounts", []):
        yield from _fields("mount", mount)
        yield from _absolute(mount, "hostPath", "containerPath")
    for hook in edits.get("hooks", []):
        yield from _fields("hook", hook)
        if hook.get("hookName") not in _HOOKS:
            yield f"hook {hook.get('hookName')}"


def _annotations(part: dict[str, Any]) -> Iterator[str]:
    for key, value in part.get("annotations", {}).items():
        if not _ANNOTATION.fullmatch(key) or not isinstance(value, str):
            yield f"annotation {key!r}"


def _fields(kind: str, part: dict[str, Any]) -> Iterator[str]:
    known = _PARTS[kind]
    yield from (f"{kind}: unknown {name}" for name in part.keys() - known.keys())
    for name, (wanted, required) in known.items():
        if name in part and not (isinstance(part[name], wanted) and not isinstance(part[name], bool)):
            yield f"{kind}: {name} is no {wanted.__name__}"
        if required and name not in part:
            yield f"{kind}: {name} is missing"


def _absolute(part: dict[str, Any], *names: str) -> Iterator[str]:
    yield from (f"{part[name]} is no whole path" for name in names if not part.get(name, "/").startswith("/"))
