"""Every message in words: in the recipient's language, with times and their zone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

from pool.models import OutboxMessage, Reservation, Team, User
from portal import noticewords
from portal.noticewords import KINDS

AT = datetime(2027, 3, 1, 12, tzinfo=UTC)
NUMBERS = {
    "team": "vision",
    "pool": "main",
    "by": "ada",
    "answer": "No room",
    "start": AT.isoformat(),
    "end": AT.isoformat(),
    "recall_at": AT.isoformat(),
    "hold_until": AT.isoformat(),
    "approve_by": AT.isoformat(),
    "cap_milli": 2000,
    "guaranteed_milli": 500,
    "memory_mib": 81920,
    "budget_milli_hours": 100_000,
    "percent": 80,
    "spent_hours": 80,
    "budget_hours": 100,
}


def message(kind: str, data: dict[str, Any] | None = None, **more: Any) -> OutboxMessage:
    row = Reservation(
        team=Team(name="vision"),
        ask={"kind": "mig", "profile": "1g.10gb", "count": 2},
        period=type("Range", (), {"lower": AT, "upper": AT}),
    )
    found = OutboxMessage(pk=7, kind=kind, data=NUMBERS if data is None else data, **more)
    found.reservation = row
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_subject_and_a_sentence(kind: str) -> None:
    said = noticewords.said(message(kind))
    for text in (said.subject, said.sentence):
        assert text
        assert "%(" not in text
    assert "\n" not in said.subject
    assert set(said.acts) <= {"extend", "release", "accept", "renew"}


def test_every_kind_that_services_tell_has_words() -> None:
    services = Path(noticewords.__file__).parents[1] / "pool/services"
    text = "".join(file.read_text() for file in services.glob("*.py"))
    for kind in KINDS:
        if kind not in ("ends_soon", "started_late", "evicted", "returned", "budget"):
            assert f'"{kind}"' in text, kind


def test_times_have_their_zone() -> None:
    said = noticewords.said(message("ends_soon"))
    assert "Mon 1 Mar 2027, 12:00 UTC (UTC+00:00)" in said.sentence
    assert "2 × 1g.10gb" in said.sentence


def test_what_is_not_known_is_not_said() -> None:
    said = noticewords.said(message("evicted", {"recall_at": AT.isoformat(), "for_team": None}))
    assert "a team needs what it is guaranteed" in said.sentence
    assert "is taken back" in noticewords.said(message("evicted", {})).sentence


def test_a_kind_without_words_is_told_all_the_same() -> None:
    assert noticewords.said(message("brand_new")).subject == "Something happened: brand_new"


def test_an_amount_says_what_there_is_of_it() -> None:
    assert noticewords.amount({"cap_milli": 2000, "guaranteed_milli": 500}) == (
        "2 GPU, of which 0.5 guaranteed"
    )
    assert noticewords.amount({"cap_milli": 2000}) == "2 GPU"
    assert noticewords.amount({"memory_mib": 81920, "budget_milli_hours": 1500}) == (
        "80 GiB of GPU memory, 1.5 GPU-hours a month"
    )
    assert noticewords.amount({}) == "nothing"


def test_a_letter_is_in_the_recipients_zone_and_language() -> None:
    user = User(username="lena", zone="Asia/Shanghai", language="zh-hans")
    with translation.override("en"):
        subject, body = noticewords.letter(message("ends_soon", recipient=user))
    assert subject.startswith("[gpupool] ")
    assert "20:00 CST (UTC+08:00)" in body
    assert "http://testserver/inbox/7/" in body


@pytest.mark.django_db
def test_without_a_zone_of_their_own_people_have_that_of_a_team(cast: Any) -> None:
    Team.objects.filter(pk=cast.vision.pk).update(zone="Europe/Berlin")
    assert noticewords.zone_of(User.objects.get(username="milo")).key == "Europe/Berlin"
    assert noticewords.zone_of(User(username="x", zone="nowhere")).key == "UTC"


def test_every_sentence_is_in_the_catalogue() -> None:
    texts = [text for kind in (*KINDS.values(), noticewords.ELSE) for text in (kind.subject, *kind.sentences)]
    with translation.override("en"):
        english = [str(text) for text in texts]
    with translation.override("zh-hans"):
        same = [text for text, before in zip(texts, english, strict=True) if str(text) == before]
    assert same == []
