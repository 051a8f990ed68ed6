"""GPUs closed to all logins but their holders', against a stand-in for systemctl."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents import access_unix, simulator_devices
from agents.access_unix import Closed, Slices, grants
from agents.devices import Node
from agents.gpu import DriverRefusal
from agents.place import Place
from tests.agents import systemd_stand_in as systemd

ALICE, BOB = 4_001, 4_002
COMMON = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}


def card(minor: int, *users: int) -> Closed:
    nodes = [Node(f"/dev/nvidia{minor}", 195, minor), Node("/dev/nvidiactl", 195, 255)]
    return Closed(minor=minor, grants=dict(grants(users, nodes)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    one = Place(tmp_path)
    simulator_devices.lay_out(one.root, 2)
    systemd.install(one.root)
    return one


def allowed() -> None:
    """Anything may be changed."""


def frozen() -> None:
    raise DriverRefusal("frozen")


def reloads(place: Place) -> int:
    return systemd.calls(place.root).count(["daemon-reload"])


def test_it_works_where_systemd_runs_the_machine(place: Place, tmp_path: Path) -> None:
    assert access_unix.works(place)
    (tmp_path / "other").mkdir()
    assert not access_unix.works(Place(tmp_path / "other"))


class TestClosed:
    def test_only_the_holder_can_open_a_closed_gpu(self, place: Place) -> None:
        assert Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        assert "/dev/nvidia0" in systemd.may_open(place.root, ALICE)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, BOB)

    def test_a_gpu_that_is_not_closed_stays_open_to_all(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        for uid in (ALICE, BOB):
            assert {"/dev/nvidia1", *COMMON} <= systemd.may_open(place.root, uid)

    def test_with_every_gpu_closed_nobody_else_opens_anything_of_nvidias(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        slices.bring("GPU-1", card(1), allowed)
        assert systemd.may_open(place.root, BOB) == set()
        assert systemd.may_open(place.root, ALICE) == {"/dev/nvidia0", "/dev/nvidiactl"}

    def test_root_is_not_bound(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0), allowed)
        assert systemd.may_open(place.root, 0) == {"all"}
        assert grants([0], [Node("/dev/nvidia0", 195, 0)]) == {}

    def test_all_other_devices_stay_open(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0), allowed)
        text = (place.root / "run/systemd/system/user-.slice.d/50-gpupool.conf").read_text()
        assert "DeviceAllow=block-* rwm" in text
        assert "DeviceAllow=char-pts rwm" in text
        assert "char-nvidia" not in text

    def test_who_holds_two_gpus_opens_both(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        slices.bring("GPU-1", card(1, ALICE, BOB), allowed)
        assert {"/dev/nvidia0", "/dev/nvidia1"} <= systemd.may_open(place.root, ALICE)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, BOB)


class TestHandOver:
    def test_the_next_holder_takes_the_place_of_the_last_without_a_reload(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        before = reloads(place)
        assert slices.bring("GPU-0", card(0, BOB), allowed)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, ALICE)
        assert "/dev/nvidia0" in systemd.may_open(place.root, BOB)
        assert reloads(place) == before

    def test_bringing_the_same_again_changes_nothing(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        assert not slices.bring("GPU-0", card(0, ALICE), allowed)

    def test_an_earlier_holders_rule_follows_when_another_gpu_is_closed(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        slices.bring("GPU-0", card(0), allowed)
        assert "/dev/nvidia1" in systemd.may_open(place.root, ALICE)
        slices.bring("GPU-1", card(1), allowed)
        assert systemd.may_open(place.root, ALICE) == set()

    def test_the_last_gpu_that_is_opened_leaves_nothing(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        assert slices.bring("GPU-0", None, allowed)
        assert systemd.may_open(place.root, ALICE) == {"all"}
        assert systemd.may_open(place.root, BOB) == {"all"}
        assert not list((place.root / "run/systemd/system").rglob("*.conf"))
        assert not slices.bring("GPU-0", None, allowed)

    def test_a_machine_that_never_closed_one_is_not_asked_anything(self, place: Place) -> None:
        assert not Slices(place).bring("GPU-0", None, allowed)
        assert systemd.calls(place.root) == []


class TestCrash:
    def test_what_was_given_before_a_crash_is_taken_by_the_next_agent(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        assert Slices(place).bring("GPU-0", card(0), allowed)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, ALICE)

    def test_a_rule_that_was_refused_is_tried_again(self, place: Place) -> None:
        slices = Slices(place)
        slices.bring("GPU-0", card(0, ALICE), allowed)
        systemd.fail(place.root, "set-property")
        with pytest.raises(DriverRefusal, match="the manager refuses") as refusal:
            slices.bring("GPU-0", card(0), allowed)
        assert refusal.value.code == "access"
        systemd.fail(place.root)
        assert slices.bring("GPU-0", card(0), allowed)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, ALICE)

    def test_a_reload_that_was_refused_is_tried_again(self, place: Place) -> None:
        slices = Slices(place)
        systemd.fail(place.root, "daemon-reload")
        with pytest.raises(DriverRefusal):
            slices.bring("GPU-0", card(0), allowed)
        systemd.fail(place.root)
        slices.bring("GPU-0", card(0), allowed)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, BOB)

    def test_after_a_boot_all_is_given_anew(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        systemd.boot(place.root)
        assert Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        assert "/dev/nvidia0" in systemd.may_open(place.root, ALICE)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, BOB)

    def test_nothing_is_changed_when_nothing_may_be(self, place: Place) -> None:
        with pytest.raises(DriverRefusal, match="frozen"):
            Slices(place).bring("GPU-0", card(0, ALICE), frozen)
        assert systemd.may_open(place.root, BOB) == {"all"}

    def test_a_record_that_cannot_be_read_closes_anew(self, place: Place) -> None:
        Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        (place.folder / "access.json").write_text("{")
        Slices(place).bring("GPU-0", card(0, ALICE), allowed)
        assert "/dev/nvidia0" in systemd.may_open(place.root, ALICE)
        assert "/dev/nvidia0" not in systemd.may_open(place.root, BOB)
