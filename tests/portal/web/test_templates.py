"""What holds for every template and static file: no inline script or style, only htmx 4, pinned files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
VENDOR = ROOT / "static" / "vendor"

#: What the content security policy stops in a browser, silently for style.
INLINE = re.compile(r"<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:|<script(?![^>]*\ssrc=)")
#: What htmx 4 does not know any more, or what needs eval.
OLD_HTMX = re.compile(
    r"hx-(?:boost|on|vars|params|disinherit|disabled-elt|request|ext|sse|ws|prompt)\b|hx-trigger=\"[^\"]*\["
)
#: Attributes that htmx 4 inherits only when told to.
INHERITED = re.compile(r"hx-[a-z]+:inherited")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT / "templates")))
def test_a_template_has_nothing_inline_and_speaks_htmx_4(path: Path) -> None:
    text = path.read_text()
    assert not INLINE.findall(text)
    assert not OLD_HTMX.findall(text)
    if path.name != "base.html":
        assert not INHERITED.findall(text)


def test_the_patterns_find_what_they_look_for() -> None:
    for bad in ("<p style='x'>", "<a onclick=x>", "<script>x</script>", "<style>"):
        assert INLINE.search(bad), bad
    for bad in ("hx-boost", 'hx-trigger="click[ctrlKey]"', 'hx-ext="sse"'):
        assert OLD_HTMX.search(bad), bad


@pytest.mark.parametrize("line", (VENDOR / "SHA256SUMS").read_text().splitlines())
def test_a_vendored_file_is_the_one_that_was_pinned(line: str) -> None:
    wanted, _, name = line.partition("  ")
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == wanted


def test_every_vendored_file_is_pinned_and_has_its_licence() -> None:
    pinned = {line.partition("  ")[2] for line in (VENDOR / "SHA256SUMS").read_text().splitlines()}
    present = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()}
    assert present - {"SHA256SUMS", "refresh.sh"} == pinned
    for folder in ("htmx", "tabler"):
        assert (VENDOR / folder / "LICENSE").read_text().strip()


def test_own_files_name_no_other_site() -> None:
    own = [*TEMPLATES, *(ROOT / "static").glob("*.*")]
    for path in own:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
