"""The wheel, installed with nothing but what an extra names, is enough for what that extra is for."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
#: What a node must never need.
UNWANTED = ("django", "rest_framework", "numpy", "psycopg")

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
sys.path[:] = [sys.argv[1], *(p for p in sys.path if "site-packages" not in p)]
for name in sys.argv[3].split(","):
    assert importlib.util.find_spec(name) is None, f"{name} is there"
package = importlib.import_module(sys.argv[2])
assert package.__file__.startswith(sys.argv[1]), package.__file__
for module in pkgutil.walk_packages(package.__path__, sys.argv[2] + "."):
    importlib.import_module(module.name)
    print(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


def needed(requirements: list[str], extra: str, seen: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that these requirements bring on this machine, by name."""
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        wanted = {"", *requirement.extras}
        if name not in seen or len(wanted) > 1:
            seen[name] = distribution(name)
            for part in wanted:
                needed(seen[name].requires or [], part, seen)
    return seen


def install(wheel: Path, extra: str, folder: Path) -> None:
    """The wheel's files, and links to those of what its own metadata name under `extra`; nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    metadata = next(folder.glob("*.dist-info"))
    ours = Distribution.at(metadata)
    for found in needed(ours.requires or [], extra, {}).values():
        tops = {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}
        for top in tops:
            source = Path(str(found.locate_file(top)))
            if not (folder / top).exists():
                (folder / top).symlink_to(source)


def import_all(folder: Path, package: str, unwanted: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(folder), package, ",".join(unwanted)]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)


def test_the_agent_runs_without_django_and_numpy(wheel: Path, tmp_path: Path) -> None:
    install(wheel, "agent", tmp_path)
    done = import_all(tmp_path, "agents", UNWANTED)
    assert done.returncode == 0, done.stderr
    assert {"agents.nvml", "agents.worker", "agents.__main__"} <= set(done.stdout.split())


def test_an_environment_that_has_django_would_be_found(wheel: Path, tmp_path: Path) -> None:
    install(wheel, "portal", tmp_path)
    assert "django is there" in import_all(tmp_path, "agents", UNWANTED).stderr


def test_the_wheel_alone_brings_no_dependency(wheel: Path, tmp_path: Path) -> None:
    install(wheel, "", tmp_path)
    assert not [entry for entry in tmp_path.iterdir() if entry.is_symlink()]


def test_the_wheel_has_the_catalogue_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "pool/core/catalogue.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
