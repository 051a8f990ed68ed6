"""What may be shown of a command line: short, on one line, and without values that look secret."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 200
HIDDEN = "***"

#: Names whose value is nobody's business: `--hf-token X`, `DB_PASSWORD=X`, `apikey:X`.
_NAMES = (
    r"[\w.-]*(?:token(?!s|iz)|secret|passwd|password|passphrase|pwd|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credentials?|authorization|bearer)[\w.-]*"
)
_OPTION = re.compile(rf"-{{1,2}}{_NAMES}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>{_NAMES})(?P<sign>[=:]\s*)(?P<value>\S.*)", re.IGNORECASE | re.DOTALL)
#: The part before the host of an address: `https://me:pass@host`.
_LOGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s]+@", re.IGNORECASE)
#: Values that are secrets wherever they stand: access tokens known by their beginning, JWTs.
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|gp[a-z]_\d+_|AKIA|ASIA|nvapi-)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
)


def shown(words: Sequence[str]) -> str | None:
    """The command line for people; None when there is none. At most `LONGEST` characters."""
    kept: list[str] = []
    hide_next = False
    for word in words:
        kept.append(HIDDEN if hide_next and not word.startswith("-") else without_secrets(word))
        hide_next = bool(_OPTION.fullmatch(word)) and not (hide_next and not word.startswith("-"))
    line = " ".join(" ".join(kept).split())
    line = "".join(sign if sign.isprintable() else "?" for sign in line)
    return (line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…") or None


def without_secrets(word: str) -> str:
    """One word of a command line with what looks secret in it replaced."""
    word = _ASSIGNED.sub(rf"\g<name>\g<sign>{HIDDEN}", word)
    word = _LOGIN.sub(rf"\g<scheme>{HIDDEN}@", word)
    return _KNOWN.sub(HIDDEN, word)
