"""Who else gives out the GPUs: found by sockets that answer, services that run, programs by name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agents.managed_by import managed_by


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listen(stack: ExitStack, path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A socket's path must be short, whatever the folder of the test is called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(path.parent)
    door = stack.enter_context(socket.socket(socket.AF_UNIX))
    door.bind(path.name)
    door.listen()
    return door


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_machine_of_its_own_has_nobody(tmp_path: Path) -> None:
    assert managed_by(tmp_path) == ()
    put(tmp_path / "proc/17/comm", "python3\n")
    put(tmp_path / "sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs", "")
    assert managed_by(tmp_path) == ()


@pytest.mark.parametrize(
    "path",
    [
        "var/lib/kubelet/device-plugins/nvidia-gpu.sock",
        "var/lib/kubelet/device-plugins/nvidia-mig-1g.10gb.sock",
        "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",
    ],
)
def test_a_plugin_of_kubelet_that_listens(
    tmp_path: Path, open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    listen(open_sockets, tmp_path / path, monkeypatch)
    assert managed_by(tmp_path) == ("device-plugin",)


def test_kubelets_own_socket_and_other_plugins_are_nobody(
    tmp_path: Path, open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kubelet.sock", "rdma-shared.sock"):
        listen(open_sockets, tmp_path / "var/lib/kubelet/device-plugins" / name, monkeypatch)
    assert managed_by(tmp_path) == ()


def test_a_socket_that_was_left_behind_is_nobody(
    tmp_path: Path, open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "var/lib/kubelet/device-plugins/nvidia-gpu.sock"
    monkeypatch.setattr("agents.managed_by._SOCKETS", ("nvidia-*.sock",))
    listen(open_sockets, path, monkeypatch).close()
    assert path.exists()
    assert managed_by(Path(".")) == ()


def test_a_socket_that_cannot_be_asked_counts(tmp_path: Path) -> None:
    """The path is longer than a socket's address may be."""
    deep = tmp_path / ("x" * 100) / "var/lib/kubelet/device-plugins"
    put(deep / "nvidia-gpu.sock", "")
    assert managed_by(tmp_path / ("x" * 100)) == ("device-plugin",)


@pytest.mark.parametrize(
    ("service", "name"), [("slurmd.service", "slurmd"), ("nvidia-mig-manager.service", "mig-manager")]
)
def test_a_service_that_runs(tmp_path: Path, service: str, name: str) -> None:
    put(tmp_path / "sys/fs/cgroup/system.slice" / service / "cgroup.procs", "812\n")
    assert managed_by(tmp_path) == (name,)


def test_a_mig_manager_that_will_run_at_the_next_boot(tmp_path: Path) -> None:
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "nvidia-mig-manager.service").symlink_to("/lib/systemd/system/nvidia-mig-manager.service")
    (wants / "slurmd.service").symlink_to("/lib/systemd/system/slurmd.service")
    assert managed_by(tmp_path) == ("mig-manager",)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("nvidia-device-p", "device-plugin"),
        ("gpu-kubelet-plu", "device-plugin"),
        ("nvidia-mig-mana", "mig-manager"),
        ("slurmd", "slurmd"),
    ],
)
def test_a_program_that_runs_also_in_a_container(tmp_path: Path, program: str, name: str) -> None:
    put(tmp_path / "proc/4711/comm", program + "\n")
    put(tmp_path / "proc/self/comm", program + "\n")
    assert managed_by(tmp_path) == (name,)


def test_several_are_named_in_order(tmp_path: Path) -> None:
    put(tmp_path / "proc/1/comm", "slurmd\n")
    put(tmp_path / "proc/2/comm", "nvidia-device-p\n")
    assert managed_by(tmp_path) == ("device-plugin", "slurmd")
