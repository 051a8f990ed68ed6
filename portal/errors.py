"""A refusal in words, by the table of `portal.errortable`: status, title, sentence with numbers, next step.

Both doors call `problem`; nothing else turns a code into words. How a problem
is written out (JSON, HTML) is each door's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from pool.core.errors import Code, Refusal
from portal import quotawords, statewords
from portal.askwords import in_full
from portal.errortable import (
    BOOK_AHEAD,
    IN_THE_WAY,
    LARGEST_FITS,
    MAY_COME_BACK,
    NEVER_FITS,
    NOT_WAITED,
    TABLE,
    WHOM,
    DoorCode,
    Row,
)
from portal.fielderrors import field_sentence

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

__all__ = ["DoorCode", "Problem", "problem", "problem_for"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal in the language of the moment; `data` keeps the numbers as JSON values.

    `fields` has one entry for each wrong field: pointer, code, detail and its numbers.
    """

    status: int
    code: str
    title: str
    detail: str
    next_step: str
    data: Mapping[str, Any] = field(default_factory=dict)
    fields: Sequence[Mapping[str, Any]] = ()


#: Whose line it is, by numbers that mean nothing outside; it may be that of a team above, which not all see.
_ROWS = ("line", "team")
#: Codes whose sentence depends on more than which numbers are known.
_SAID: Mapping[str, Callable[[Mapping[str, Any]], statewords.Said | quotawords.Said | None]] = {
    Code.WRONG_STATE: statewords.said,
    Code.QUOTA_EXCEEDED: quotawords.said,
    Code.NEEDS_APPROVAL: lambda data: (
        statewords.Said(NOT_WAITED, BOOK_AHEAD) if data.get("reason") == "not_from_wait" else None
    ),
}


def problem(refusal: Refusal) -> Problem:
    """The refusal in the active language, with times in the active zone."""
    return problem_for(refusal.code, refusal.data)


def problem_for(code: Code | DoorCode, data: Mapping[str, Any]) -> Problem:
    """As `problem`, for a code and its numbers."""
    row = TABLE[code]
    fields = [_field(error) for error in data.get("errors", ())]
    shown = _numbers(data)
    said = _SAID[code](data) if code in _SAID else None
    detail = _say((said.sentence,) if said else row.sentences, shown)
    if fields:
        detail = " ".join(f"{f['pointer']}: {f['detail']}" for f in fields)
    elif code == Code.NO_CAPACITY:
        detail = " ".join([detail, *_reasons(data)])
    hidden = {"errors", *(_ROWS if code == Code.QUOTA_EXCEEDED else ())}
    rest = {name: value for name, value in data.items() if name not in hidden}
    step = str(said.next_step) if said else _next_step(row, code, data)
    return Problem(row.status, code.value, str(row.title), detail, step, rest, fields)


def _field(error: Mapping[str, Any]) -> dict[str, Any]:
    """One wrong field with its sentence put beside its numbers."""
    shown = _numbers(error)
    return {**error, "detail": field_sentence(str(error["code"]), shown)}


def _next_step(row: Row, code: Code | DoorCode, data: Mapping[str, Any]) -> str:
    """What may help; no other time does where the pool could not hold it even when empty."""
    if code == Code.NO_CAPACITY and "asked" in data and "offered" in data:
        waiting = MAY_COME_BACK & {kind for kind, n in (data.get("counts") or {}).items() if n}
        if data["asked"] > data["offered"] and not waiting:
            return str(NEVER_FITS)
        if data.get("largest"):
            return str(LARGEST_FITS)
    if code == Code.FORBIDDEN and "token_team" not in data:
        return str(WHOM.get(str(data.get("action")), row.next_step))
    return str(row.next_step)


def _say(sentences: Sequence[Words], shown: Mapping[str, Any]) -> str:
    for sentence in sentences:
        try:
            return str(sentence % shown)
        except KeyError:
            continue
    return str(sentences[-1])


def _reasons(data: Mapping[str, Any]) -> list[str]:
    """What stands in the way, by kind, and when the same would fit."""
    counts = data.get("counts") or {}
    kinds = [str(IN_THE_WAY[k]) % {"n": n} for k, n in counts.items() if n and k in IN_THE_WAY]
    lines = [str(_("GPUs: %(kinds)s.")) % {"kinds": ", ".join(kinds)}] if kinds else []
    if data.get("largest"):
        lines.append(str(_("This fits instead: %(what)s.")) % {"what": in_full(data["largest"])})
    if data.get("latest_end"):
        lines.append(
            str(_("It could last until %(at)s.")) % {"at": shown_as("latest_end", data["latest_end"])}
        )
    if data.get("first_time"):
        lines.append(str(_("First free: %(at)s.")) % {"at": shown_as("first_time", data["first_time"])})
    if data.get("reclaim"):
        at = shown_as("reclaim", data["reclaim"]["start"])
        lines.append(
            str(_("What the team lent can be taken back for it: it could start at %(at)s.")) % {"at": at}
        )
    return lines


def _numbers(data: Mapping[str, Any]) -> dict[str, object]:
    """What a sentence can say; of an empty list there is nothing to say."""
    return {name: shown_as(name, value) for name, value in data.items() if value not in ([], ())}


def shown_as(name: str, value: object) -> object:
    """A value as a person reads it: instants in the active zone, lists with commas.

    `expected` stays as it is: it is an example to copy, and what is shown for people cannot be sent.
    """
    if name == "expected":
        return value
    if name in ("state", "wanted"):
        return str(statewords.NAMES.get(str(value), value))
    if isinstance(value, str) and len(value) >= 20 and value[10:11] == "T":
        return _instant(value)
    if isinstance(value, datetime):
        return _instant(value.isoformat())
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return value


def _instant(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    if at.tzinfo is None:
        return text
    return timezone.localtime(at.astimezone(UTC)).strftime("%Y-%m-%d %H:%M:%S %Z")
