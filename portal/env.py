"""Reads the environment: one reader a kind of value; a bad value stops the start and is named.

`portal/settings.py` is the only user.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def env_str(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def env_bool(name: str, default: bool = False) -> bool:
    value = env_str(name)
    if not value:
        return default
    try:
        return _WORDS[value.lower()]
    except KeyError:
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.") from None


def env_int(name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
    value = env_str(name)
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}.") from None
    if not least <= number <= most:
        raise ImproperlyConfigured(f"{name} must lie between {least} and {most}, not {number}.")
    return number


def env_list(name: str) -> list[str]:
    """Values parted by commas."""
    return [part.strip() for part in env_str(name).split(",") if part.strip()]


def env_secret(name: str, default: str | None = None, *, least: int = 0) -> str:
    """A secret from NAME, or from the file that NAME_FILE names; required if `default` is None.

    The value never appears in a message. `least` is its smallest length.
    """
    path = env_str(f"{name}_FILE")
    if path and os.environ.get(name):
        raise ImproperlyConfigured(f"Set {name} or {name}_FILE, not both.")
    if path:
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(
                f"{name}_FILE cannot be read: {path} ({type(error).__name__})."
            ) from None
    else:
        value = env_str(name)
    if not value:
        if default is not None:
            return default
        raise ImproperlyConfigured(f"{name} (or {name}_FILE) must be set.")
    if len(value) < least:
        raise ImproperlyConfigured(f"{name} must have at least {least} characters.")
    return value


def with_password(url: str, password: str) -> str:
    """`url` with this password, so that the address may be open and its secret in a file of its own."""
    if not password:
        return url
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}:{quote(password, safe='')}@{host}").geturl()


def _prepared(wanted: str) -> dict[str, Any]:
    # Statements are prepared from their fifth use on: it halves what PostgreSQL spends on a booking.
    if wanted == "yes":
        return {"server_side_binding": True, "prepare_threshold": 5}
    if wanted == "no":
        return {}
    raise ImproperlyConfigured("DATABASE_URL: prepare must be yes or no.")


def database(url: str, pool_size: int) -> dict[str, Any]:
    """Django's description of the database behind a postgresql:// address.

    `pool_size` 0 gives each thread its own connection. The address's query is
    handed to libpq; `host` there may name the folder of a unix socket, and
    `prepare=no` suits a pooler that shares connections between transactions.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured("DATABASE_URL is not an address.") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ImproperlyConfigured(
            "DATABASE_URL must begin with postgresql://; no other database is supported."
        )
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL names no database.")
    host = options.pop("host", "") or unquote(parts.hostname or "")
    options.setdefault("connect_timeout", "5")
    options |= _prepared(options.pop("prepare", "yes"))
    if pool_size:
        # The pool's attempts to reconnect lie further and further apart, so that after an outage it would
        # wait as long again: it gives up early, and whoever asks next begins anew.
        waits = {"timeout": 5, "reconnect_timeout": 5}
        options["pool"] = {"min_size": 2, "max_size": pool_size, **waits}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(port or options.pop("port", "")),
        "CONN_MAX_AGE": 0 if pool_size else 60,
        # A connection that a restart of the server has cut is replaced before anybody meets it.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }
