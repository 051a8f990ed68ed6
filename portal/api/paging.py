"""Lists in pages: an opaque cursor, one fixed order that ends in the primary key, no totals.

Rows that appear or vanish meanwhile never make another row come twice or be skipped.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.http import HttpResponse
from rest_framework.request import Request

from pool.core.errors import Code, Refusal, invalid
from portal.api.problems import answer

if TYPE_CHECKING:
    from django.db.models import QuerySet

#: Parameters of every list.
PARAMETERS = frozenset({"limit", "cursor"})
DEFAULT = 50
MOST = 500

_CURSOR_LIMIT = 1000
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Order:
    """Fields in ascending order, or all descending; the last one is unique."""

    fields: tuple[str, ...]
    descending: bool = False

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.order_by(*(f"-{f}" if self.descending else f for f in self.fields))

    def after(self, values: Sequence[Any]) -> Q:
        """Rows behind the one that had `values`."""
        step = "lt" if self.descending else "gt"
        condition = Q()
        same = Q()
        for name, value in zip(self.fields, values, strict=True):
            condition |= same & Q(**{f"{name}__{step}": value})
            same &= Q(**{name: value})
        return condition


def listing(
    request: Request, rows: QuerySet[Any], order: Order, show: Callable[[Sequence[Any]], list[Any]]
) -> HttpResponse:
    """One page as {"results": [...], "next": address or null}, with a Link header when more follow."""
    limit = _limit(request)
    rows = order.apply(rows)
    cursor = request.query_params.get("cursor")
    if cursor is not None:
        rows = _behind(rows, order, cursor)
    found = list(rows[: limit + 1])
    more = len(found) > limit
    page = found[:limit]
    following = _address(request, _sealed(page[-1], order)) if more else None
    headers = {"Link": f'<{following}>; rel="next"'} if following else None
    return answer({"results": show(page), "next": following}, headers=headers)


def _behind(rows: QuerySet[Any], order: Order, cursor: str) -> QuerySet[Any]:
    try:
        return rows.filter(order.after(_opened(cursor, order)))
    except (ValueError, TypeError, ValidationError):  # values of another list's columns
        raise _bad_cursor() from None


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(DEFAULT))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid("?limit", "not_an_integer", min=1, max=MOST)
    if int(text) < 1:
        raise invalid("?limit", "too_small", min=1)
    if int(text) > MOST:
        raise invalid("?limit", "too_large", max=MOST)
    return int(text)


def _sealed(row: Any, order: Order) -> str:
    values = [attrgetter(name.replace("__", "."))(row) for name in order.fields]
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def _opened(cursor: str, order: Order) -> list[Any]:
    """The values that a cursor holds; anything but one of ours is refused."""
    try:
        if len(cursor) > _CURSOR_LIMIT:
            raise ValueError
        values = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise _bad_cursor() from None
    if not isinstance(values, list) or len(values) != len(order.fields) or not all(map(_plain, values)):
        raise _bad_cursor()
    return values


def _plain(value: object) -> bool:
    """What a column can be compared with."""
    if isinstance(value, str):
        return "\x00" not in value
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _bad_cursor() -> Refusal:
    return Refusal(Code.MALFORMED, pointer="?cursor", why="it is not a cursor of this list")


def _address(request: Request, cursor: str) -> str:
    kept = [
        (name, value) for name, values in request.query_params.lists() if name != "cursor" for value in values
    ]
    return request.build_absolute_uri(f"{request.path}?{urlencode([*kept, ('cursor', cursor)])}")
