"""The wheel, installed with nothing but what an extra names, is enough for what that extra is for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import parse_tag, sys_tags

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


def metadata(wheel: Path, folder: Path) -> Distribution:
    """What our wheel says of itself; an editable installation may say what was true earlier."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if ".dist-info/" in name])
    return Distribution.at(next(folder.glob("*.dist-info")))


def repacked(found: Distribution, folder: Path) -> None:
    """The wheel that an installed distribution came from, as far as an installer needs it."""
    name = found.metadata["Name"].replace("-", "_")
    tags = re.findall(r"^Tag: (\S+)", found.read_text("WHEEL") or "", re.MULTILINE)
    tag = next(tag for tag in tags if not parse_tag(tag).isdisjoint(sys_tags()))
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{tag}.whl", "w") as archive:
        for file in found.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts and file.name != "INSTALLER":
                archive.write(str(found.locate_file(file)), str(file))


@pytest.fixture(scope="module")
def offline(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is carried to a node without a network: our wheel, and what `agent` names."""
    folder = tmp_path_factory.mktemp("wheels")
    shutil.copy(wheel, folder)
    ours = metadata(wheel, tmp_path_factory.mktemp("unpacked"))
    for found in needed(ours.requires or [], "agent", {}).values():
        repacked(found, folder)
    return folder


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


def test_a_node_without_a_network_installs_from_a_folder(offline: Path, tmp_path: Path) -> None:
    """With pip as an operator calls it, into an environment that has nothing."""
    environment = tmp_path / "node"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    call = ["-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(offline), "gpupool[agent]"]
    installed = subprocess.run(
        [python, "-I", *call], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stdout + installed.stderr
    listed = subprocess.run(
        [python, "-I", "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout.lower()
    assert "gpupool==" in listed
    assert not [name for name in ("django", "numpy", "psycopg") if f"{name}==" in listed]
    said = subprocess.run(
        [python, "-I", "-m", "agents", "doctor", "--state", str(tmp_path / "none")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode in (0, 1, 3), said.stderr
    assert "has not joined" in said.stdout


def test_a_folder_that_lacks_a_package_is_no_folder_to_install_from(offline: Path, tmp_path: Path) -> None:
    """So the test above would see it if something came from elsewhere."""
    less = tmp_path / "less"
    shutil.copytree(offline, less)
    next(less.glob("msgspec-*")).unlink()
    call = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(less)]
    tried = subprocess.run(
        [*call, "--target", str(tmp_path / "target"), "gpupool[agent]"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode != 0
    assert "msgspec" in tried.stderr


def test_the_lock_of_a_node_pins_what_the_agent_needs_and_no_more(wheel: Path, tmp_path: Path) -> None:
    pinned = {
        line.split("==")[0]: line.split()[0]
        for line in (ROOT / "deploy" / "agent.lock").read_text().splitlines()
        if re.match(r"[a-z0-9]", line)
    }
    wanted = needed(metadata(wheel, tmp_path).requires or [], "agent", {})
    assert set(wanted) <= set(pinned)
    assert not {"django", "numpy", "psycopg", "uvicorn"} & set(pinned)
    everything = (ROOT / "requirements.lock").read_text()
    assert not [line for line in pinned.values() if line not in everything], "the two locks differ"


@pytest.mark.parametrize("name", ["deploy/agent.lock", "deploy/requirements.lock"])
def test_a_lock_for_servers_has_hashes_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert all("--hash=sha256:" in block for block in blocks)
