"""Settings come from the environment, and a bad value stops the start and is named."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured

from portal import env

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCTION = {
    "GPUPOOL_URL": "https://gpupool.example",
    "GPUPOOL_SECRET_KEY": "kq7-Zw3_pT9xLm2Rv8sNc4Yb6Hd1Gf5Ja0Ue7Xo3Wi9Qz2Kt8Mv",
    "GPUPOOL_TOKEN_PEPPER": "Pb5_rT8wXn3Kc6-Vm1Zs9Lq4Hd7Jg2Fy0",
    "DATABASE_URL": "postgresql://gpupool:secret@db.invalid/gpupool",
    "REDIS_URL": "redis://:secret@redis.invalid/0",
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Runs the settings file in a production environment but for `changes`; "" unsets."""

    def run(**changes: str) -> SimpleNamespace:
        for name in [*os.environ]:
            if name.startswith("GPUPOOL_") or name in PRODUCTION:
                monkeypatch.delenv(name)
        for name, value in (PRODUCTION | changes).items():
            monkeypatch.setenv(name, value)
        return SimpleNamespace(**runpy.run_path(str(ROOT / "portal/settings.py")))

    return run


def test_it_starts_in_production(load: Callable[..., SimpleNamespace]) -> None:
    settings = load()
    assert (settings.HTTPS, settings.EMBEDDED, settings.DEBUG) == (True, False, False)
    assert settings.ALLOWED_HOSTS == ["gpupool.example"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", ""),
        ("DATABASE_URL", "mysql://db/gpupool"),
        ("DATABASE_URL", "postgresql://db:port/gpupool"),
        ("DATABASE_URL", "postgresql://db/"),
        ("REDIS_URL", ""),
        ("REDIS_URL", "amqp://broker"),
        ("GPUPOOL_URL", ""),
        ("GPUPOOL_URL", "gpupool.example"),
        ("GPUPOOL_SECRET_KEY", ""),
        ("GPUPOOL_SECRET_KEY", "short"),
        ("GPUPOOL_TOKEN_PEPPER", ""),
        ("GPUPOOL_DEBUG", "perhaps"),
        ("GPUPOOL_REPORT_SECONDS", "soon"),
        ("GPUPOOL_REPORT_SECONDS", "0"),
        ("GPUPOOL_NODE_BROKER_URL", "broker:6379"),
        ("GPUPOOL_SECRET_KEY_FILE", "/nonexistent"),
    ],
)
def test_it_refuses_a_bad_value_and_names_it(
    name: str, value: str, load: Callable[..., SimpleNamespace]
) -> None:
    with pytest.raises(ImproperlyConfigured, match=name.removesuffix("_FILE")):
        load(**{name: value})


def test_passwords_may_come_from_files_of_their_own(
    load: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    (tmp_path / "database").write_text("p@ss/word\n")
    (tmp_path / "redis").write_text("other\n")
    settings = load(
        DATABASE_URL="postgresql://gpupool@db.invalid/gpupool",
        DATABASE_PASSWORD_FILE=str(tmp_path / "database"),
        REDIS_URL="redis://redis.invalid:6379/0",
        REDIS_PASSWORD_FILE=str(tmp_path / "redis"),
    )
    assert settings.DATABASES["default"]["PASSWORD"] == "p@ss/word"
    assert settings.REDIS_URL == "redis://:other@redis.invalid:6379/0"


def test_it_says_how_to_do_without_a_database(load: Callable[..., SimpleNamespace]) -> None:
    with pytest.raises(ImproperlyConfigured, match="GPUPOOL_EMBEDDED=1"):
        load(DATABASE_URL="")


def test_it_shows_no_secret_that_it_refuses(load: Callable[..., SimpleNamespace]) -> None:
    with pytest.raises(ImproperlyConfigured) as refusal:
        load(GPUPOOL_SECRET_KEY="hunter2")
    assert "hunter2" not in str(refusal.value)


def test_importing_starts_no_server(tmp_path: Path, load: Callable[..., SimpleNamespace]) -> None:
    settings = load(GPUPOOL_EMBEDDED="1", GPUPOOL_DATA_DIR=str(tmp_path), DATABASE_URL="", REDIS_URL="")
    assert settings.DATABASES["default"]["HOST"] == "/nonexistent"
    assert not list(tmp_path.iterdir())


def check_deployment(**changes: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    environment = {"PATH": os.environ["PATH"]} | PRODUCTION | changes
    return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_deployment_check_of_production_settings_has_no_warning() -> None:
    done = check_deployment()
    assert done.returncode == 0, done.stderr


def test_the_deployment_check_would_find_a_portal_without_tls() -> None:
    done = check_deployment(GPUPOOL_URL="http://gpupool.example")
    assert done.returncode
    assert "SECURE_SSL_REDIRECT" in done.stderr


# --- The readers --------------------------------------------------------------


def test_a_secret_is_read_from_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("from a file\n")
    monkeypatch.setenv("SAMPLE_FILE", str(tmp_path / "key"))
    assert env.env_secret("SAMPLE") == "from a file"


def test_it_refuses_a_secret_that_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from a file\n")
    monkeypatch.setenv("SAMPLE_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("SAMPLE", "from the environment")
    with pytest.raises(ImproperlyConfigured, match="not both"):
        env.env_secret("SAMPLE")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("no", False), ("TRUE", True), ("", False)])
def test_a_switch_is_read(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE", text)
    assert env.env_bool("SAMPLE") is value


def test_a_database_address_is_taken_apart() -> None:
    found = env.database("postgresql://me:p%40ss@db.example:5433/gpu%20pool?sslmode=require", pool_size=0)
    assert (found["USER"], found["PASSWORD"], found["HOST"], found["PORT"], found["NAME"]) == (
        "me",
        "p@ss",
        "db.example",
        "5433",
        "gpu pool",
    )
    assert found["OPTIONS"]["sslmode"] == "require"


def test_a_database_behind_a_socket_is_found_by_its_folder() -> None:
    found = env.database("postgresql://gpupool@/gpupool?host=/tmp/gp-1", pool_size=0)
    assert (found["HOST"], found["PORT"]) == ("/tmp/gp-1", "")
    assert "host" not in found["OPTIONS"]


def test_statements_are_prepared_unless_a_pooler_forbids_it() -> None:
    assert env.database("postgresql://db/gpupool", pool_size=0)["OPTIONS"]["prepare_threshold"] == 5
    assert (
        "prepare_threshold" not in env.database("postgresql://db/gpupool?prepare=no", pool_size=0)["OPTIONS"]
    )
    with pytest.raises(ImproperlyConfigured, match="prepare must be yes or no"):
        env.database("postgresql://db/gpupool?prepare=maybe", pool_size=0)


def test_a_pool_of_connections_excludes_persistent_ones() -> None:
    """Django refuses the two together."""
    found = env.database("postgresql://db/gpupool", pool_size=16)
    assert found["CONN_MAX_AGE"] == 0
    assert found["OPTIONS"]["pool"]["max_size"] == 16


def test_a_pool_of_connections_is_soon_there_again_after_an_outage() -> None:
    found = env.database("postgresql://db/gpupool", pool_size=16)
    assert found["CONN_HEALTH_CHECKS"] is True
    assert found["OPTIONS"]["pool"]["reconnect_timeout"] <= 10
