"""Containers by their control groups, and what runtimes noted of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.containers import Container, Labels, container_of, labels, mounted_slices

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("path", "runtime", "rootless"),
    [
        (f"/system.slice/docker-{ID}.scope", "docker", False),
        (f"/docker/{ID}", "docker", False),
        (f"/docker/{ID}/init", "docker", False),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman", False),
        (f"/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{ID}.scope", "podman", True),
        (f"/user.slice/user-1001.slice/user@1001.service/docker-{ID}.scope", "docker", True),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope",
            "kubernetes",
            False,
        ),
        (f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope", "crio", False),
        (f"/kubepods/besteffort/pod12/{ID}", "kubernetes", False),
        (f"/system.slice/containerd.service/kubepods-x-pod1.slice:cri-containerd:{ID}", "kubernetes", False),
        (f"/system.slice/nerdctl-{ID}.scope", "containerd", False),
        (f"/default/{ID}", "containerd", False),
    ],
)
def test_a_runtime_is_known_by_how_it_names_control_groups(path: str, runtime: str, rootless: bool) -> None:
    assert container_of(f"0::{path}\n") == Container(runtime, ID, rootless=rootless)
    assert container_of(f"12:pids:/\n4:memory:{path}\n0::/\n") == Container(runtime, ID, rootless=rootless)


def test_lxc_has_names() -> None:
    assert container_of("0::/lxc.payload.lab1/init.scope\n") == Container("lxc", "lab1")


@pytest.mark.parametrize(
    "path", ["/", "/user.slice/user-1001.slice/session-3.scope", "/system.slice/ssh.service", f"/a{ID}b"]
)
def test_what_runs_on_the_machine_itself_is_in_none(path: str) -> None:
    assert container_of(f"0::{path}\n") is None


def test_a_container_is_shown_by_its_runtime_and_short_id() -> None:
    assert str(Container("docker", ID)) == "docker:0123456789ab"


def test_the_agents_own_file_in_a_container_names_its_slice() -> None:
    text = (
        "36 35 0:22 /gpupool/slices/a-1 /run/gpupool/slice ro,nosuid - tmpfs tmpfs rw\n"
        "37 35 0:22 / /gpupool/slices/b-2 ro - tmpfs tmpfs rw\n"
        "39 35 0:23 /slices/c-3 /run/gpupool/slice ro - tmpfs tmpfs rw\n"
        "38 35 8:1 /home/x/gpupool/slices/c/d /data rw - ext4 /dev/sda rw\n"
        "short\n"
    )
    assert mounted_slices(text) == {"a-1", "c-3"}


def put(root: Path, path: str, note: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(note if isinstance(note, str) else json.dumps(note))


def test_docker_notes_labels_and_cdi_devices(tmp_path: Path) -> None:
    put(
        tmp_path,
        f"var/lib/docker/containers/{ID}/config.v2.json",
        {"Config": {"Labels": {"gpupool.io/reservation": "r-1", "x": 3}}},
    )
    requests = [
        {"Driver": "cdi", "DeviceIDs": ["gpupool.io/slice=a-1", "nvidia.com/gpu=0"]},
        {"Driver": "nvidia", "DeviceIDs": ["gpupool.io/slice=no"]},
        "nonsense",
    ]
    put(tmp_path, f"var/lib/docker/containers/{ID}/hostconfig.json", {"DeviceRequests": requests})
    assert labels(Container("docker", ID), tmp_path) == Labels(frozenset({"a-1"}), None, "r-1")


@pytest.mark.parametrize(
    "folder",
    [
        "run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}",
        "run/containers/storage/overlay-containers/{id}/userdata",
        "var/lib/containers/storage/overlay-containers/{id}/userdata",
    ],
)
def test_other_runtimes_note_annotations(tmp_path: Path, folder: str) -> None:
    annotations = {"gpupool.io/allocation": "a-1", "cdi.k8s.io/gpu": "gpupool.io/slice=a-1,x/y=z"}
    put(tmp_path, folder.format(id=ID) + "/config.json", {"annotations": annotations})
    assert labels(Container("containerd", ID), tmp_path) == Labels(frozenset({"a-1"}), "a-1", None)


@pytest.mark.parametrize("note", ["{", "[]", '{"annotations": 3, "Config": []}', '{"DeviceRequests": 3}'])
def test_notes_that_make_no_sense_say_nothing(tmp_path: Path, note: str) -> None:
    put(tmp_path, f"var/lib/docker/containers/{ID}/config.v2.json", note)
    put(tmp_path, f"var/lib/docker/containers/{ID}/hostconfig.json", note)
    assert labels(Container("docker", ID), tmp_path) == Labels()


def test_what_a_user_can_have_made_up_is_not_even_read(tmp_path: Path) -> None:
    put(
        tmp_path,
        f"var/lib/docker/containers/{ID}/config.v2.json",
        {"Config": {"Labels": {"gpupool.io/allocation": "a"}}},
    )
    assert labels(Container("docker", ID), tmp_path).allocation == "a"
    assert labels(Container("docker", ID, rootless=True), tmp_path) == Labels()
    assert labels(Container("lxc", "../../x"), tmp_path) == Labels()
