"""What every test stands on: private servers, settings, hypothesis profile, strictness.

Without DATABASE_URL one PostgreSQL serves the whole session (xdist workers have
their own databases in it), and each worker has a Redis of its own, because ACL
users are global to a Redis. Settings are imported after this.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from portal import broker, embedded
from portal.processes import Fault, server_account
from portal.servers import Place
from portal.supervisor import Supervisor

STRICT = os.environ.get("GPUPOOL_STRICT") == "1"
PREFIX = "gpupool-tests-"


def _fresh_folder() -> Path:
    """A folder that the servers' account can enter; it is ours alone to write."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    folder.chmod(0o711)
    return folder


def _sweep() -> None:
    """End what sessions that were killed have left running: their products, then their servers."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):
        with contextlib.suppress(Fault, OSError):
            if folder.stat().st_uid == os.geteuid():
                with embedded.hold(folder):
                    Supervisor(folder, print).clear_leftovers()
                embedded.clear(folder)


def _start_pair() -> None:
    _sweep()
    servers = embedded.start(_fresh_folder(), durable=False)
    atexit.register(embedded.clear, servers.state)
    atexit.register(servers.stop)
    os.environ |= servers.environment()


def _start_own_redis() -> None:
    folder = _fresh_folder()
    place = Place(folder, folder, server_account(), durable=False)
    server = broker.Redis(place, "tests")
    if place.account is not None:
        os.chown(folder, place.account.uid, place.account.gid)
    server.start()
    atexit.register(embedded.remove, folder)
    atexit.register(server.stop)
    os.environ["REDIS_URL"] = server.url


def _prepare_environment() -> None:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "GPUPOOL_EMBEDDED": "1",
        "GPUPOOL_URL": "http://testserver",
        "GPUPOOL_SECRET_KEY": "only-for-tests-0123456789-0123456789-0123456789",
        "GPUPOOL_TOKEN_PEPPER": "only-for-tests-9876543210-9876543210",
    }
    if "DATABASE_URL" not in os.environ:
        _start_pair()
    if "PYTEST_XDIST_WORKER" in os.environ:
        _start_own_redis()


_prepare_environment()

hypothesis.settings.register_profile("house", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("house")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set Django up, with quick password hashes, and bring in the cast."""
    import django
    from django.conf import settings

    django.setup()
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    config.pluginmanager.import_plugin("tests.cast")
    if config.getoption("numprocesses", None):
        # Workers inherit this; they must not import the settings before they have their own Redis.
        os.environ.pop("DJANGO_SETTINGS_MODULE", None)


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"Skipped although GPUPOOL_STRICT=1: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.fixture(autouse=True)
def _language() -> Generator[None, None, None]:
    """Django's language is the thread's: what one test chose is not the next one's."""
    from django.utils import translation

    yield
    translation.deactivate()


@pytest.fixture
def private_pair() -> Generator[embedded.Servers, Any, None]:
    """A PostgreSQL and Redis of this test's own, to be killed and restarted at will."""
    folder = _fresh_folder()
    with embedded.start(folder, durable=True) as servers:
        yield servers
    embedded.clear(folder)
