"""Half-open periods of time in UTC, and the instants and durations of the API.

Local times of people are not read here (see calendar): what comes in carries
its offset, or is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pool.core.errors import Code, Refusal, invalid

#: Longest duration that can be asked for.
LONGEST = timedelta(days=366)

#: Years that can be asked for; the margin lets every sum of times be computed.
YEARS = (1970, 2999)

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?([Zz]|[+-]\d\d:[0-5]\d)?", re.ASCII
)
_DURATION = re.compile(
    r"P(?=.)(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Period:
    """From `start` until before `end`, in UTC; `end` None means without end.

    Refuses naive times (NAIVE_TIME) and an end that is not after the start
    (invalid `/end`, end_before_start). Other zones are turned into UTC.
    """

    start: datetime
    end: datetime | None

    def __post_init__(self) -> None:
        if self.start.tzinfo is not UTC:
            object.__setattr__(self, "start", _utc(self.start, "/start"))
        if self.end is None:
            return
        if self.end.tzinfo is not UTC:
            object.__setattr__(self, "end", _utc(self.end, "/end"))
        if self.end <= self.start:
            raise invalid("/end", "end_before_start", start=self.start.isoformat(), end=self.end.isoformat())

    def overlaps(self, other: Period) -> bool:
        """Whether some instant lies in both; periods that only touch do not overlap."""
        return (other.end is None or self.start < other.end) and (self.end is None or other.start < self.end)

    def contains(self, instant: datetime) -> bool:
        """Whether `instant` lies in it; the end does not."""
        return self.start <= instant and (self.end is None or instant < self.end)

    @property
    def duration(self) -> timedelta | None:
        """Its length; None when it has no end."""
        return None if self.end is None else self.end - self.start


def _utc(instant: datetime, pointer: str) -> datetime:
    if instant.utcoffset() is None:
        raise Refusal(Code.NAIVE_TIME, pointer=pointer)
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise Refusal(Code.MALFORMED, pointer=pointer) from None


def parse_instant(text: object, pointer: str) -> datetime:
    """An RFC 3339 date-time with offset, in UTC; digits below the microsecond are cut.

    Refuses with NAIVE_TIME (no offset), MALFORMED (anything else), or invalid
    too_early / too_late outside the years 1970-2999; each names `pointer`.
    """
    match = _INSTANT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Refusal(Code.MALFORMED, pointer=pointer, expected="2027-10-31T09:00:00+01:00")
    day, clock, fraction, offset = match.groups()
    if offset is None:
        raise Refusal(Code.NAIVE_TIME, pointer=pointer)
    try:
        instant = datetime.fromisoformat(
            f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{offset.upper().replace('Z', '+00:00')}"
        ).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal(Code.MALFORMED, pointer=pointer, expected="2027-10-31T09:00:00+01:00") from None
    if instant.year < YEARS[0]:
        raise invalid(pointer, "too_early", min=f"{YEARS[0]}-01-01T00:00:00Z")
    if instant.year > YEARS[1]:
        raise invalid(pointer, "too_late", max=f"{YEARS[1]}-12-31T23:59:59Z")
    return instant


def parse_duration(text: object, pointer: str) -> timedelta:
    """An ISO 8601 duration in weeks, days, hours, minutes and whole seconds ("PT1H30M").

    Months and years have no fixed length and are MALFORMED like anything else;
    0 is too_small, more than 366 days too_large.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Refusal(Code.MALFORMED, pointer=pointer, expected="PT1H30M")
    weeks, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    try:
        length = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        length = timedelta.max
    if not length:
        raise invalid(pointer, "too_small", min="PT1S")
    if length > LONGEST:
        raise invalid(pointer, "too_large", max=f"P{LONGEST.days}D")
    return length


def duration_text(length: timedelta) -> str:
    """The ISO 8601 text of a duration that is not negative, in whole seconds ("P1DT2H")."""
    minutes, seconds = divmod(length.days * 86400 + length.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if n)
    date = f"{days}D" if days else ""
    return f"P{date}T{clock}" if clock else f"P{date or 'T0S'}"
