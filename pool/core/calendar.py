"""People's local times: wall-clock text in a zone becomes an instant, or a question.

Half-open periods in UTC are in period; weekly windows and series will live here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pool.core.errors import Code, Refusal, invalid
from pool.core.period import YEARS

_LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", re.ASCII)


def zone(name: str, pointer: str = "/zone") -> ZoneInfo:
    """The time zone of that name ("Asia/Shanghai"); refuses others with unknown_zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise invalid(pointer, "unknown_zone") from None


def local_instant(text: object, tz: ZoneInfo, pointer: str) -> datetime:
    """The instant, in UTC, of a wall-clock time such as "2027-03-28T02:30" in zone `tz`.

    A time that the clocks skip (no_such_time) or show twice (ambiguous_time) is
    never guessed: the refusal carries the two instants with their offsets as
    `choices`, which parse_instant takes. Other text is MALFORMED.
    """
    if not isinstance(text, str) or not _LOCAL.fullmatch(text):
        raise Refusal(Code.MALFORMED, pointer=pointer, expected="2027-10-31T09:00")
    try:
        wall = datetime.fromisoformat(text)
        first = wall.replace(tzinfo=tz, fold=0)
        second = wall.replace(tzinfo=tz, fold=1)
        choices = sorted((first.astimezone(UTC), second.astimezone(UTC)))
    except (ValueError, OverflowError):
        raise Refusal(Code.MALFORMED, pointer=pointer, expected="2027-10-31T09:00") from None
    if not YEARS[0] < wall.year < YEARS[1]:
        raise invalid(pointer, "too_early" if wall.year <= YEARS[0] else "too_late")
    if choices[0] == choices[1]:
        return choices[0]
    exists = choices[0].astimezone(tz).replace(tzinfo=None) == wall
    code = "ambiguous_time" if exists else "no_such_time"
    raise invalid(pointer, code, choices=[c.astimezone(tz).isoformat() for c in choices])
