"""Holders get their slice, and nobody else: on simulated GPUs that were really carved."""

from __future__ import annotations

import json
import pwd
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import machine
from agents.access import Access
from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu
from agents.place import Place
from pool.core import connect
from pool.core.connect import Part
from pool.core.wire import Held, Layout, Share
from tests.agents import systemd_stand_in as systemd
from tests.agents.cdi_schema import faults
from tests.agents.stand_in import slice_, whole

Open = Callable[..., tuple[Driver, Path]]
ALICE = pwd.getpwnam("daemon").pw_uid
BOB = pwd.getpwnam("nobody").pw_uid
A = msgspec.structs.replace(slice_("a", 0), users=("daemon",), reservation="r")
B = msgspec.structs.replace(slice_("b", 1), users=("nobody", "no-such-account"), reservation="s")
SHARE = Share(memory_mib=8_192, compute_pct=20, limit_pct=20)


class Bench:
    """Two H100, the first with two slices at 0 and 1, the second whole."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.place = Place(folder)
        self.carved, self.plain = (gpu.uuid for gpu in driver.look().gpus)
        for held in (A, B):
            assert held.profile_id is not None
            driver.create(self.carved, held.profile_id, held.start, held.size)
        self.access = Access(self.place)

    def bring(self, *held: Held, way: str = "cdi", uuid: str = "", **more: Any) -> bool:
        gpu = self.driver.gpu(uuid or self.carved)
        layout = msgspec.structs.replace(Layout(mig=bool(gpu.mig), held=held), access=way)
        settings = more.pop("environment", {})
        layout = msgspec.structs.replace(layout, **more)
        return self.access.bring(gpu, layout, settings, lambda: None)

    def edits(self, allocation: str) -> dict[str, Any]:
        path = self.place.root / f"var/run/cdi/gpupool.io-slice-{allocation}.json"
        document = json.loads(path.read_text())
        assert faults(document) == []
        found: dict[str, Any] = document["devices"][0]["containerEdits"]
        return found

    def documents(self) -> int:
        return len(list((self.place.root / "var/run/cdi").glob("*.json")))

    def capabilities(self, start: int) -> set[str]:
        """The device files of the instance at `start`, counted as the driver does."""
        gpu = self.driver.gpu(self.carved)
        one = next(one for one in gpu.instances or () if one.start == start)
        assert gpu.minor is not None
        assert one.ci is not None
        first = 3 + 135 * gpu.minor + 9 * one.gi
        return {f"/dev/nvidia-caps/nvidia-cap{number}" for number in (first, first + 1 + one.ci)}


@pytest.fixture
def bench(driver: Open) -> Bench:
    return Bench(*driver("2xH100-80GB", mig=(0,)))


def paths(edits: dict[str, Any]) -> set[str]:
    return {node["path"] for node in edits["deviceNodes"]}


class TestOffered:
    def test_unix_needs_systemd(self, bench: Bench) -> None:
        assert bench.access.offered() == ("advisory", "cdi")
        systemd.install(bench.place.root)
        assert bench.access.offered() == ("advisory", "cdi", "unix")

    def test_a_real_machine_without_the_programs_only_advises(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine.shutil, "which", lambda *_, **__: None)
        assert Access(Place(tmp_path, real=True)).offered() == ("advisory",)


class TestChannel:
    """A booking over several nodes of one NVLink domain has an IMEX channel on each of them."""

    LINKED = msgspec.structs.replace(whole("w"), imex=5, users=("daemon",))
    PATH = "/dev/nvidia-caps-imex-channels/channel5"

    def test_a_container_gets_it_with_its_gpu(self, bench: Bench) -> None:
        bench.bring(self.LINKED, uuid=bench.plain)
        assert self.PATH in paths(bench.edits("w"))
        bench.bring(whole("v"), uuid=bench.plain)
        assert self.PATH not in paths(bench.edits("v"))

    def test_an_account_may_open_it(self, bench: Bench) -> None:
        systemd.install(bench.place.root)
        bench.bring(self.LINKED, way="unix", uuid=bench.plain)
        assert self.PATH in systemd.may_open(bench.place.root, ALICE)
        assert self.PATH not in systemd.may_open(bench.place.root, BOB)

    def test_where_nothing_is_enforced_it_is_there_too(self, bench: Bench) -> None:
        assert not bench.bring(self.LINKED, way="advisory", uuid=bench.plain)
        assert (bench.place.root / self.PATH[1:]).exists()
        assert bench.documents() == 0

    def test_a_driver_without_channels_is_a_refusal(self, bench: Bench) -> None:
        table = bench.place.root / "proc/devices"
        table.write_text(table.read_text().replace("nvidia-caps-imex-channels", "other"))
        with pytest.raises(DriverRefusal, match="no IMEX channels"):
            bench.bring(self.LINKED, uuid=bench.plain)


def test_advice_writes_nothing(bench: Bench) -> None:
    assert not bench.bring(A, B, way="advisory")
    assert bench.documents() == 0


class TestCdi:
    def test_a_slice_is_its_gpu_and_its_own_capabilities(self, bench: Bench) -> None:
        assert bench.bring(A, B)
        assert paths(bench.edits("a")) >= {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}
        assert paths(bench.edits("a")) >= bench.capabilities(0)
        assert not paths(bench.edits("a")) & bench.capabilities(1)
        assert paths(bench.edits("b")) >= bench.capabilities(1)

    def test_it_says_for_whom_a_container_runs(self, bench: Bench) -> None:
        bench.bring(A)
        env = bench.edits("a")["env"]
        assert {"GPUPOOL_ALLOCATION=a", "GPUPOOL_RESERVATION=r", "NVIDIA_VISIBLE_DEVICES=void"} <= set(env)
        (mount,) = bench.edits("a")["mounts"]
        assert mount["hostPath"] == str(bench.place.run / "slices/a")
        assert mount["containerPath"] == "/run/gpupool/slices/a"

    def test_a_whole_gpu_is_its_file_and_no_other(self, bench: Bench) -> None:
        bench.bring(whole("w"), uuid=bench.plain)
        assert "/dev/nvidia1" in paths(bench.edits("w"))
        assert "/dev/nvidia0" not in paths(bench.edits("w"))
        assert not [path for path in paths(bench.edits("w")) if "caps" in path]

    def test_the_end_takes_it_back_also_after_a_crash(self, bench: Bench) -> None:
        bench.bring(A, B)
        bench.access = Access(bench.place)
        assert bench.bring(B)
        assert bench.documents() == 1
        assert not bench.bring(B)

    def test_a_change_to_advice_takes_it_back(self, bench: Bench) -> None:
        bench.bring(A)
        assert bench.bring(A, way="advisory")
        assert bench.documents() == 0

    @pytest.mark.parametrize("sharing", ["mps", "hami"])
    def test_a_share_takes_its_limits_along(self, bench: Bench, sharing: Any) -> None:
        held = msgspec.structs.replace(whole("s"), share=SHARE, reservation="r")
        run = str(bench.place.run)
        part = Part("s", "r", bench.plain, share=SHARE, sharing=sharing)
        limits = connect.limits(part, run)
        bench.bring(held, uuid=bench.plain, sharing=sharing, environment={"s": limits})
        edits = bench.edits("s")
        assert {f"{name}={value}" for name, value in limits.items()} <= set(edits["env"])
        inside = {mount["containerPath"] for mount in edits["mounts"]}
        if sharing == "mps":
            assert {connect.pipe(bench.plain, run), "/dev/shm"} <= inside
        else:
            assert {"/etc/ld.so.preload", connect.cache("s", run), connect.LOCKS} <= inside
            assert "CUDA_DISABLE_CONTROL=false" in edits["env"]

    def test_a_slice_that_is_not_there_is_told_and_the_others_are_given(self, bench: Bench) -> None:
        missing = msgspec.structs.replace(slice_("c", 5), users=("daemon",))
        with pytest.raises(DriverRefusal, match="at 5 is not there") as refusal:
            bench.bring(missing, A)
        assert refusal.value.code == "access"
        assert bench.documents() == 1


class TestUnix:
    @pytest.fixture(autouse=True)
    def _systemd(self, bench: Bench) -> None:
        systemd.install(bench.place.root)

    def test_each_holder_opens_its_own_slice(self, bench: Bench) -> None:
        assert bench.bring(A, B, way="unix")
        root = bench.place.root
        assert systemd.may_open(root, ALICE) >= {"/dev/nvidia0", *bench.capabilities(0)}
        assert not systemd.may_open(root, ALICE) & bench.capabilities(1)
        assert systemd.may_open(root, BOB) >= bench.capabilities(1)

    def test_one_holder_of_two_slices_opens_both(self, bench: Bench) -> None:
        also = msgspec.structs.replace(B, users=("daemon",))
        bench.bring(A, also, way="unix")
        assert systemd.may_open(bench.place.root, ALICE) >= bench.capabilities(0) | bench.capabilities(1)

    def test_the_end_takes_it_back(self, bench: Bench) -> None:
        bench.bring(A, B, way="unix")
        assert bench.bring(B, way="unix")
        assert not systemd.may_open(bench.place.root, ALICE) & bench.capabilities(0)
        assert "/dev/nvidia0" not in systemd.may_open(bench.place.root, ALICE)

    def test_an_unbooked_gpu_is_closed_to_all(self, bench: Bench) -> None:
        assert bench.bring(way="unix", uuid=bench.plain)
        assert "/dev/nvidia1" not in systemd.may_open(bench.place.root, ALICE)
        assert "/dev/nvidia0" in systemd.may_open(bench.place.root, ALICE)

    def test_a_change_to_advice_opens_the_gpu(self, bench: Bench) -> None:
        bench.bring(A, way="unix")
        assert bench.bring(A, way="advisory")
        assert systemd.may_open(bench.place.root, BOB) == {"all"}

    def test_a_holder_without_an_account_here_is_told_and_the_others_are_given(self, bench: Bench) -> None:
        stranger = msgspec.structs.replace(B, users=("no-such-account",))
        with pytest.raises(DriverRefusal, match="no-such-account"):
            bench.bring(A, stranger, way="unix")
        assert systemd.may_open(bench.place.root, ALICE) >= bench.capabilities(0)
        with pytest.raises(DriverRefusal, match="none is named"):
            bench.bring(msgspec.structs.replace(B, users=()), way="unix")


def test_a_gpu_whose_device_is_unknown_is_told(bench: Bench) -> None:
    gpu: Gpu = replace(bench.driver.gpu(bench.carved), minor=None)
    layout = Layout(mig=True, held=(A,), access="cdi")
    with pytest.raises(DriverRefusal, match="which device"):
        bench.access.bring(gpu, layout, {}, lambda: None)
    assert not bench.access.bring(gpu, Layout(mig=True, held=(A,)), {}, lambda: None)
