"""What the demo consists of: its processes, its simulated nodes, its settings and its address file."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from portal.embedded import ROOT, Servers, write_private
from portal.supervisor import Part

#: Often, so that whoever tries something sees it soon.
REPORT_SECONDS = 5

FABRIC = "7a1c0de5-0000-4000-8000-67b200000001"


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated node: its machine, the GPUs that begin with MIG on, its NVLink domain."""

    name: str
    machine: str
    mig: str = ""
    fabric: str = ""

    def options(self) -> list[str]:
        found = ["--name", self.name, "--simulate", self.machine]
        found += ["--mig", self.mig] if self.mig else []
        return found + (["--fabric", self.fabric] if self.fabric else [])


NODES = (
    Node("dgx-h100-01", "8xH100-80GB", mig="0,1,2,3"),
    Node("dgx-a100-01", "8xA100-40GB", mig="0,1,2,3,4,5,6,7"),
    Node("gb200-01", "4xGB200-186GB", fabric=FABRIC),
    Node("gb200-02", "4xGB200-186GB", mig="0,1,2,3", fabric=FABRIC),
    Node("rtx-01", "2xRTX-PRO-6000-96GB", mig="0,1"),
)


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module with our Python."""
    return (sys.executable, "-m", module, *arguments)


def inherited() -> dict[str, str]:
    """The caller's environment without what would steer the demo's processes."""
    foreign = ("GPUPOOL_", "PG", "CELERY_", "DJANGO_", "DATABASE_", "REDIS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def settings(servers: Servers, state: Path, url: str) -> dict[str, str]:
    """The portal's settings; the secrets are drawn at the first start and kept."""
    kept = state / "secrets.json"
    if not kept.exists():
        drawn = {"key": secrets.token_urlsafe(50), "pepper": secrets.token_urlsafe(32)}
        write_private(kept, json.dumps(drawn) + "\n")
    drawn = json.loads(kept.read_text())
    return servers.environment() | {
        "GPUPOOL_EMBEDDED": "1",
        "GPUPOOL_DEMO": "1",
        "GPUPOOL_REPORT_SECONDS": str(REPORT_SECONDS),
        "GPUPOOL_DATA_DIR": str(state),
        "GPUPOOL_URL": url,
        "GPUPOOL_SECRET_KEY": drawn["key"],
        "GPUPOOL_TOKEN_PEPPER": drawn["pepper"],
    }


def portal_parts(port: int, environment: Mapping[str, str], *, web: int = 1) -> list[Part]:
    """`web` web servers on one port, two workers and beat: few and small, a laptop shall hold them."""
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    worker = python("celery", "-A", "portal.celery:app", "worker", "--pool", "solo", *quiet)
    beat = python("celery", "-A", "portal.celery:app", "beat", "--pidfile=", "--loglevel", "WARNING")
    serve = python("portal.serve", "--port", str(port), "--shared")
    return [
        *(Part(name, serve, environment) for name in ["web", *(f"web-{n}" for n in range(2, web + 1))]),
        Part("worker-due", (*worker, "-n", "due@demo", "-Q", "due,reclaim"), environment),
        Part("worker-slow", (*worker, "-n", "slow@demo", "-Q", "slow"), environment),
        Part("beat", beat, environment),
    ]


def readdress(config: Path, url: str, redis_url: str) -> None:
    """Tell an agent that joined at an earlier start where portal and broker are now: ports may change."""
    kept = json.loads(config.read_text())
    moved = kept | {"portal": url}
    if kept.get("broker_url"):
        parts = urlsplit(kept["broker_url"])
        own, host = parts.netloc.rpartition("@")[0], urlsplit(redis_url).netloc.rpartition("@")[2]
        moved["broker_url"] = parts._replace(netloc=f"{own}@{host}").geturl()
    if moved != kept:
        write_private(config, json.dumps(moved))


def write_environment(path: Path, settings: Mapping[str, str], tokens: Mapping[str, str]) -> None:
    """What `set -a; . .data/demo.env` gives to manage.py, to the benchmarks and to whoever asks REST."""
    values = dict(settings) | {"GPUPOOL_TOKEN": tokens["lead"], "GPUPOOL_ADMIN_TOKEN": tokens["admin"]}
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items())]
    write_private(path, "# Written by every start of the demo.\n" + "".join(lines))


def welcome(url: str, logins: list[dict[str, Any]], state: Path, seconds: float) -> str:
    """What is printed when all is up."""
    width = max(len(login["username"]) for login in logins)
    rows = [f"    {x['username']:{width}}  {x['password']}   {x['role']}" for x in logins]
    return "\n".join(
        [
            f"\n  Ready after {seconds:.0f} s: {url}\n",
            "  Logins:",
            *rows,
            f"\n  REST: set -a; . {state / 'demo.env'}   Logs: {state / 'logs'}",
            "  Ctrl-C ends everything and keeps the data.\n",
        ]
    )
