"""The container files say what they must; no engine is needed to see that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent
SERVICES = {"postgres", "redis", "migrate", "web", "due", "slow", "beat", "invite", "agent"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return read


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = compose["services"]
    return read


def words(service: dict[str, Any]) -> list[str]:
    return [str(word) for word in service.get("command", [])]


def test_it_has_every_part(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == SERVICES


def test_every_lasting_part_has_a_health_check_and_comes_back(services: dict[str, dict[str, Any]]) -> None:
    lasting = {name: s for name, s in services.items() if name not in ("migrate", "invite")}
    assert all(s["healthcheck"]["test"] for s in lasting.values())
    assert all(s["restart"] == "unless-stopped" for s in lasting.values())
    assert services["migrate"]["restart"] == services["invite"]["restart"] == "no"


def test_nothing_starts_before_what_it_needs(services: dict[str, dict[str, Any]]) -> None:
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("web", "due", "slow", "beat", "invite"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_what_must_be_kept_lies_in_named_volumes(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    used = {volume.split(":")[0] for s in services.values() for volume in s.get("volumes", [])}
    assert used == set(compose["volumes"])
    assert {"postgres", "redis"} <= used


def test_secrets_are_files_and_nowhere_else(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())
    used = {secret for s in services.values() for secret in s.get("secrets", [])}
    assert used == set(compose["secrets"])
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            secret = re.search(r"PASSWORD|SECRET|PEPPER|TOKEN", name)
            assert not secret or str(value).startswith("/run/secrets/"), name
            assert not re.search(r"://[^/]*:[^/]*@", str(value)), f"{name} holds a password"


def test_every_setting_is_one_that_the_example_explains(services: dict[str, dict[str, Any]]) -> None:
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    for name, service in services.items():
        ours = {key for key in service.get("environment", {}) if not key.startswith("POSTGRES_")}
        assert {key.removesuffix("_FILE") for key in ours} <= explained | {
            key.removesuffix("_FILE") for key in explained
        }, name


def test_the_example_explains_every_setting() -> None:
    """And no other: each name in it is read somewhere."""
    read = "".join((ROOT / "portal" / name).read_text() for name in ("settings.py", "embedded.py"))
    used = set(re.findall(r"\"((?:GPUPOOL_|DATABASE_|REDIS_)[A-Z_]+)\"", read))
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    assert {name.removesuffix("_FILE") for name in explained} == used


def test_the_workers_take_every_queue(services: dict[str, dict[str, Any]]) -> None:
    taken = [q for s in services.values() if "-Q" in words(s) for q in words(s)[-1].split(",")]
    assert sorted(taken) == sorted(queue.name for queue in settings.CELERY_TASK_QUEUES)


def test_the_simulated_agent_stands_apart(services: dict[str, dict[str, Any]]) -> None:
    """It is no worker of the portal: it gets neither its secrets nor its settings."""
    agent = services["agent"]
    assert "--simulate" in " ".join(words(agent))
    assert "environment" not in agent
    assert "secrets" not in agent


def test_the_simulated_agent_starts_with_the_rest_and_finds_its_code(
    services: dict[str, dict[str, Any]],
) -> None:
    agent, invite = services["agent"], services["invite"]
    assert "profiles" not in agent
    assert agent["depends_on"]["invite"]["condition"] == "service_completed_successfully"
    (folder,) = {volume.split(":")[1] for volume in invite["volumes"]}
    assert f"{folder}/code" in " ".join(words(agent))
    assert f"invite:{folder}:ro" in agent["volumes"]
    # The volume takes its owner from the folder in the image.
    assert folder in (ROOT / "Dockerfile").read_text()


def test_the_image_runs_as_an_ordinary_user_with_its_static_files() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    user = [line for line in last_stage if line.startswith("USER")]
    assert user
    assert user[-1].split()[1] not in ("root", "0")
    assert any("collectstatic" in line for line in lines)
    assert any("--require-hashes" in line for line in lines)


def test_the_image_takes_neither_data_nor_secrets_of_the_folder() -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert {".git", ".venv", ".data", "secrets"} <= ignored


def pins(path: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+==\S+)", path.read_text(), re.M))


def test_the_image_has_the_tested_versions_and_no_tools_of_development() -> None:
    image = pins(ROOT / "deploy/requirements.lock")
    assert image < pins(ROOT / "requirements.lock")
    assert not {name for name in image if name.startswith(("pytest", "mypy", "playwright", "embedded"))}
