"""services.secrets: shapes, hashes and comparisons of what is handed out once."""

from __future__ import annotations

from typing import Any

import pytest

from pool.services import secrets


def test_a_token_is_read_back_from_its_text() -> None:
    parts = secrets.make(secrets.USER)
    assert secrets.parse(str(parts), secrets.USER) == parts


def test_no_two_are_alike() -> None:
    assert len({str(secrets.make(secrets.NODE)) for _ in range(200)}) == 200
    assert len({secrets.make_code() for _ in range(200)}) == 200
    assert len({secrets.make_secret() for _ in range(200)}) == 200


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "gpp",
        "gpp__",
        f"gpp_{'0' * 12}_{'0' * 47}",
        f"gpp_{'0' * 12}_{'0' * 48}\n",
        f"gpp_{'g' * 12}_{'0' * 48}",
        f"gpx_{'0' * 12}_{'0' * 48}",
        f"gpn_{'0' * 12}_{'0' * 48}",
        f"gpp_{'٠' * 12}_{'0' * 48}",
        "gpp_" + "0" * 100_000,
    ],
)
def test_anything_else_is_no_token(raw: str) -> None:
    assert secrets.parse(raw, secrets.USER) is None


def test_the_pepper_changes_the_hash_of_a_users_secret_only(settings: Any) -> None:
    before = secrets.peppered("s"), secrets.plain("s")
    settings.TOKEN_PEPPER = "another-pepper-that-is-long-enough"
    assert secrets.peppered("s") != before[0]
    assert secrets.plain("s") == before[1]


def test_hashes_are_compared_by_value() -> None:
    assert secrets.same(secrets.plain("s"), secrets.plain("s"))
    assert not secrets.same(secrets.plain("s"), secrets.plain("t"))
    assert not secrets.same(secrets.plain("s"), "")
