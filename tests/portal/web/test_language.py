"""The Chinese catalogue is complete and compiled, and the pages speak it."""

from __future__ import annotations

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client

from pool.models import Reservation, User
from tests.cast import SimNode
from tests.portal.web.people import browser, page_of

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE = Path("locale/zh_Hans/LC_MESSAGES/django.po")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A copy of the sources whose catalogue was brought up to date by gettext."""
    if shutil.which("xgettext") is None or shutil.which("msgfmt") is None:
        pytest.skip("needs the package gettext")
    for folder in ("portal", "pool", "templates", "locale"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    call = ["makemessages", "--locale", "zh_Hans", "--no-wrap", "--no-obsolete", "--add-location", "file"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "django", *call],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    return tmp_path


def test_every_sentence_is_translated_with_its_placeholders(fresh: Path) -> None:
    """Otherwise: locale/refresh.sh, and fill in what is empty."""
    done = subprocess.run(
        ["msgfmt", "--check-format", "--statistics", "-o", os.devnull, str(fresh / CATALOGUE)],
        capture_output=True,
        env=os.environ | {"LC_ALL": "C"},
    )
    said = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 0, said
    assert "untranslated" not in said
    assert "fuzzy" not in said


def test_the_compiled_catalogue_is_that_of_the_sources(fresh: Path) -> None:
    """Otherwise: locale/refresh.sh."""
    compiled = fresh / "compiled.mo"
    subprocess.run(["msgfmt", "-o", str(compiled), str(fresh / CATALOGUE)], check=True)
    assert _sentences(compiled) == _sentences((ROOT / CATALOGUE).with_suffix(".mo"))


def _sentences(path: Path) -> dict[object, str]:
    with path.open("rb") as file:
        catalogue: dict[object, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {key: value for key, value in catalogue.items() if key}


@pytest.mark.django_db
def test_the_pages_speak_chinese(active: Reservation, node: SimNode, milo: User) -> None:
    client = browser(milo)
    client.cookies["django_language"] = "zh-hans"
    seen = {
        "/": "您的预约正在运行",
        "/nodes/": "前上报",
        f"/gpus/{node.gpus[0].uuid}/": "显存网格",
        "/book/": "个，共",
        f"/reservations/{active.pk}/": "节点已上报就绪",
        "/nowhere/": "未找到",
    }
    for address, words in seen.items():
        page = page_of(client.get(address))
        assert '<html lang="zh-hans"' in page
        assert words in page, address


@pytest.mark.django_db
def test_a_refusal_speaks_chinese_with_its_numbers(node: SimNode, milo: User) -> None:
    client = browser(milo)
    client.cookies["django_language"] = "zh-hans"
    typed = {
        "team": "vision",
        "pool": "main",
        "what": "mig:1g.10gb@H100-80GB",
        "count": "9",
        "begin": "now",
        "amount": "2",
        "unit": "hours",
        "klass": "batch",
    }
    page = page_of(client.post("/book/", typed))
    assert "申请 9 个，整个时段空闲 7 个，资源池最多可容纳 7 个。" in page


def test_the_login_speaks_the_language_of_the_browser(db: None) -> None:
    page = page_of(Client(headers={"Accept-Language": "zh-CN,zh;q=0.9"}).get("/login/"))
    assert "用户名" in page
