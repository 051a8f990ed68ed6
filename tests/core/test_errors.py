"""Refusals carry a code and data that JSON can take."""

from __future__ import annotations

import json

from pool.core.errors import Code, FieldError, Invalid, Refusal, invalid


def test_a_refusal_is_its_code_and_its_numbers() -> None:
    error = Refusal(Code.NO_CAPACITY, asked=3, free=1)
    assert (error.code, error.data) == (Code.NO_CAPACITY, {"asked": 3, "free": 1})
    assert str(error) == "no_capacity {'asked': 3, 'free': 1}"
    assert str(Refusal(Code.BUSY)) == "busy"


def test_an_invalid_ask_lists_every_field() -> None:
    error = Invalid([FieldError("/a", "too_small", {"min": 1}), FieldError("/b", "required", {})])
    assert error.code is Code.INVALID
    assert [e.pointer for e in error.errors] == ["/a", "/b"]
    assert json.loads(json.dumps(error.data)) == {
        "errors": [{"pointer": "/a", "code": "too_small", "min": 1}, {"pointer": "/b", "code": "required"}]
    }


def test_one_wrong_field_is_short_to_say() -> None:
    assert invalid("/a", "too_small", min=1).errors == (FieldError("/a", "too_small", {"min": 1}),)


def test_codes_are_stable_words() -> None:
    assert all(code.value == code.name.lower() for code in Code)
