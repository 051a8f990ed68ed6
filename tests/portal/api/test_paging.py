"""Cursors: opaque, refused when they are not ours, and in an order that never repeats a row."""

from __future__ import annotations

import base64
import contextlib

import pytest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.request import Request

from pool.core.errors import Code, Invalid, Refusal
from portal.api import paging
from portal.api.paging import Order, _limit, _opened

ORDER = Order(("created_at", "pk"), descending=True)


def asked(query: str) -> Request:
    return Request(RequestFactory().get(f"/api/v1/reservations?{query}"))


def sealed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_it_limits_a_page_to_fifty_unless_told_otherwise():
    assert _limit(asked("")) == 50
    assert _limit(asked("limit=500")) == 500


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("0", "too_small"),
        ("501", "too_large"),
        ("many", "not_an_integer"),
        ("-1", "not_an_integer"),
        ("9" * 40, "not_an_integer"),
    ],
)
def test_it_refuses_a_limit_that_is_none(limit, code):
    with pytest.raises(Invalid) as refused:
        _limit(asked(f"limit={limit}"))
    assert refused.value.errors[0].code == code
    assert refused.value.errors[0].pointer == "?limit"


def test_it_opens_its_own_cursor():
    assert _opened(sealed('["2027-03-01T10:00:00Z","x"]'), ORDER) == ["2027-03-01T10:00:00Z", "x"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "%",
        "é",
        "!!!!",
        sealed("{}"),
        sealed('["only one"]'),
        sealed('["a", null]'),
        sealed('["a", [1]]'),
        sealed('["a", true]'),
        sealed('["a", 1.5]'),
        sealed('["a\\u0000", "b"]'),
        sealed(f'["a", {2**63}]'),
        sealed("[" * 600),
        "A" * 5000,
    ],
)
def test_it_refuses_a_cursor_that_it_did_not_make(cursor):
    with pytest.raises(Refusal) as refused:
        _opened(cursor, ORDER)
    assert refused.value.code == Code.MALFORMED


@given(st.text(max_size=200))
def test_it_never_breaks_on_a_cursor(cursor):
    with contextlib.suppress(Refusal):
        assert len(_opened(cursor, ORDER)) == 2


def test_it_goes_on_behind_the_last_row_with_the_key_as_tie_break():
    assert str(ORDER.after([1, 2])) == "(OR: ('created_at__lt', 1), (AND: ('created_at', 1), ('pk__lt', 2)))"
    assert str(Order(("name",)).after(["b"])) == "(AND: ('name__gt', 'b'))"


def test_its_limits_are_what_the_documentation_says():
    assert (paging.DEFAULT, paging.MOST) == (50, 500)
