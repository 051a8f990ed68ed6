"""One CDI document per allocation: valid, complete, and gone when it is over."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from agents import cdi, machine
from agents.cdi import Mount, Slice
from agents.devices import Node
from agents.gpu import DriverRefusal
from agents.place import Place
from tests.agents.cdi_schema import faults

GPU, OTHER = "GPU-0", "GPU-1"
NODES = (Node("/dev/nvidia0", 195, 0), Node("/dev/nvidia-caps/nvidia-cap12", 234, 12, "r"))
A = Slice("a", NODES, (("GPUPOOL_ALLOCATION", "a"),), (Mount("/run/x", "/run/x"), Mount("/y", "/y", True)))
B = Slice("b", NODES)
#: As `nvidia-ctk cdi generate` writes it, shortened.
GENERATED = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "additionalGids": [44],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"],
            }
        ],
        "mounts": [
            {
                "hostPath": "/usr/lib64/libcuda.so.595.71.05",
                "containerPath": "/usr/lib64/libcuda.so.595.71.05",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
    },
}


def allowed() -> None:
    """Anything may be changed."""


def document(place: Place, allocation: str) -> dict[str, Any]:
    path = place.root / f"var/run/cdi/gpupool.io-slice-{allocation}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def there(place: Place) -> set[str]:
    return {path.name for path in (place.root / "var/run/cdi").glob("*")}


def generator(place: Place, text: str) -> None:
    tool = place.root / "usr/bin/nvidia-ctk"
    tool.parent.mkdir(parents=True, exist_ok=True)
    answer = place.root / "generated.json"
    answer.write_text(text)
    tool.write_text(
        '#!/bin/sh\n[ "$*" = "cdi generate --format=json --device-name-strategy=uuid" ] || exit 64\n'
        f"echo warnings >&2; cat {answer}\n"
    )
    tool.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class TestDocument:
    def test_an_engine_takes_it(self, place: Place) -> None:
        assert cdi.bring(place, GPU, {"a": A, "b": B}, allowed)
        assert faults(document(place, "a")) == []
        assert faults(document(place, "b")) == []

    def test_it_names_exactly_the_slices_devices(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        (device,) = document(place, "a")["devices"]
        assert device["name"] == "a"
        assert device["containerEdits"]["deviceNodes"] == [
            {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw"},
            {
                "path": "/dev/nvidia-caps/nvidia-cap12",
                "type": "c",
                "major": 234,
                "minor": 12,
                "permissions": "r",
            },
        ]
        assert device["containerEdits"]["env"] == ["GPUPOOL_ALLOCATION=a"]
        assert [one["options"][-1] for one in device["containerEdits"]["mounts"]] == ["ro", "rw"]

    def test_any_engine_may_read_it(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        path = place.root / "var/run/cdi/gpupool.io-slice-a.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_the_drivers_libraries_come_from_its_own_generator(self, place: Place) -> None:
        generator(place, json.dumps(GENERATED))
        cdi.bring(place, GPU, {"a": A}, allowed)
        found = document(place, "a")
        assert faults(found) == []
        assert found["containerEdits"]["mounts"] == GENERATED["containerEdits"]["mounts"]  # type: ignore[index]
        assert found["containerEdits"]["hooks"][0]["hookName"] == "createContainer"
        assert set(found["containerEdits"]) == {"mounts", "hooks"}

    @pytest.mark.parametrize("said", ["", "[]", '{"devices": []}', '{"containerEdits": 3}'])
    def test_a_generator_that_says_nothing_of_use_is_refused(self, place: Place, said: str) -> None:
        generator(place, said)
        with pytest.raises(DriverRefusal, match="does not describe"):
            cdi.bring(place, GPU, {"a": A}, allowed)
        assert there(place) == set()

    def test_a_real_machine_needs_the_generator(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cdi.works(Place(tmp_path))
        monkeypatch.setattr(machine.shutil, "which", lambda *_, **__: None)
        assert not cdi.works(Place(tmp_path, real=True))

    def test_a_name_that_no_device_can_have_is_refused(self, place: Place) -> None:
        with pytest.raises(DriverRefusal, match="cannot name a device"):
            cdi.bring(place, GPU, {"a/b": Slice("a/b", NODES)}, allowed)


class TestBringing:
    def test_the_same_again_changes_nothing(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        assert not cdi.bring(place, GPU, {"a": A}, allowed)

    def test_the_mark_of_an_allocation_comes_and_goes_with_it(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        assert stat.S_IMODE(cdi.mark(place, "a").stat().st_mode) == 0o444
        cdi.bring(place, GPU, {}, allowed)
        assert not cdi.mark(place, "a").exists()

    def test_what_is_over_is_removed_and_the_other_gpus_stay(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        cdi.bring(place, OTHER, {"b": B}, allowed)
        assert cdi.bring(place, GPU, {}, allowed)
        assert there(place) == {"gpupool.io-slice-b.json"}

    def test_what_a_crashed_agent_left_is_found_on_disk(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        cdi.bring(Place(place.folder), GPU, {"b": B}, allowed)
        assert there(place) == {"gpupool.io-slice-b.json"}

    def test_another_slice_or_another_driver_writes_it_anew(self, place: Place) -> None:
        cdi.bring(place, GPU, {"a": A}, allowed)
        assert cdi.bring(place, GPU, {"a": Slice("a", NODES[:1])}, allowed)
        version = place.root / "sys/module/nvidia/version"
        version.parent.mkdir(parents=True)
        version.write_text("600.1\n")
        assert cdi.bring(place, GPU, {"a": Slice("a", NODES[:1])}, allowed)

    def test_others_documents_are_left_alone(self, place: Place) -> None:
        folder = place.root / "var/run/cdi"
        folder.mkdir(parents=True)
        for name in ("nvidia.json", "gpupool.io-slice-x.json"):
            (folder / name).write_text("{}")
        cdi.bring(place, GPU, {}, allowed)
        assert there(place) == {"nvidia.json", "gpupool.io-slice-x.json"}

    def test_nothing_is_changed_when_nothing_may_be(self, place: Place) -> None:
        def frozen() -> None:
            raise DriverRefusal("frozen")

        cdi.bring(place, GPU, {"a": A}, allowed)
        with pytest.raises(DriverRefusal, match="frozen"):
            cdi.bring(place, GPU, {}, frozen)
        with pytest.raises(DriverRefusal, match="frozen"):
            cdi.bring(place, GPU, {"a": A, "b": B}, frozen)
        assert there(place) == {"gpupool.io-slice-a.json"}


class TestChecker:
    """The checker itself finds what an engine would refuse."""

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({"cdiVersion": "1"}, "cdiVersion"),
            ({"kind": "slice"}, "kind"),
            ({"devices": []}, "no devices"),
            ({"more": 1}, "unknown more"),
            ({"annotations": {"-": "x"}}, "annotation"),
            ({"containerEdits": {"env": ["X"]}}, "env"),
            ({"containerEdits": {"deviceNodes": [{"path": "dev"}]}}, "no whole path"),
            ({"containerEdits": {"hooks": [{"hookName": "x", "path": "/x"}]}}, "hook x"),
        ],
    )
    def test_a_bad_document_is_found(self, change: dict[str, Any], fault: str) -> None:
        good = cdi.specification(GPU, A, {})
        assert faults(good) == []
        assert any(fault in one for one in faults({**good, **change}))
