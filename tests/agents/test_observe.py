"""What is seen of the node: one moment, attributed, with what is in force."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pynvml
import pytest

from agents import simulator_world as world
from agents.carve import carve
from agents.driver import Driver
from agents.gpu import Inventory
from agents.observe import Observer
from pool.core.wire import Held, Layout, Share, ShareSeen, Stay
from tests.agents.stand_in import command, parts_of, slice_

Open = Callable[..., tuple[Driver, Path]]


class Bench:
    """Two GPUs, the first with MIG on, and who looks at them."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.uuid, self.other = (gpu.uuid for gpu in driver.look().gpus)
        self.parts = parts_of(driver, folder, lambda: "boot-1")
        self.observer = Observer(self.parts)


@pytest.fixture
def bench(driver: Open) -> Bench:
    return Bench(*driver("2xH100-80GB", mig=(0,)))


@pytest.mark.parametrize("changes", [1, 99])
def test_instances_and_record_are_of_one_moment_or_not_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    usual, numbers = bench.driver.look, iter(range(1, changes + 1))

    def look() -> Inventory:
        seen = usual()
        number = next(numbers, None)
        if number is not None:  # the applier is at work meanwhile
            bench.parts.ledger.want(command(bench.uuid, number))
        return seen

    monkeypatch.setattr(bench.driver, "look", look)
    seen, record = bench.observer._look()
    told = {gpu.uuid: gpu.instances for gpu in seen.gpus}
    assert told == {bench.uuid: () if changes == 1 else None, bench.other: ()}
    assert record is bench.parts.ledger.record


def test_a_driver_that_does_not_answer_shows_what_was_last_seen_as_lost(bench: Bench) -> None:
    bench.observer.look()
    world.fail_next(bench.folder, "nvmlDeviceGetCount_v2", *[pynvml.NVML_ERROR_DRIVER_NOT_LOADED] * 4)
    seen = bench.observer.look()
    assert seen.inventory.driver is None
    assert [card.gpu.lost for card in seen.cards] == [True, True]
    assert seen.in_force == {}


def test_what_is_in_force_is_told_with_what_was_wanted(bench: Bench) -> None:
    held = slice_("a", 0)
    carve(command(bench.uuid, 1, held), bench.parts, lambda uuid: None)
    seen = bench.observer.look()
    assert seen.in_force == {"a": held}
    assert seen.held == {bench.uuid: ("a",), bench.other: ()}
    assert bench.observer.whose(bench.uuid, (seen.cards[0].gpu.instances or ())[0].gi) == "a"
    assert bench.observer.whose(bench.other, None) is None


def test_an_error_of_a_gpu_with_several_holders_is_nobodys(bench: Bench) -> None:
    carve(command(bench.uuid, 1, slice_("a", 0), slice_("b", 1)), bench.parts, lambda uuid: None)
    bench.observer.look()
    assert bench.observer.whose(bench.uuid, None) is None


def test_what_the_portal_has_just_told_counts_for_the_same_sight(bench: Bench) -> None:
    held = Held(allocation="w", owner="o", profile=None, profile_id=None, start=0, size=8)
    carve(command(bench.other, 1, held, mig=False), bench.parts, lambda uuid: None)
    world.process(bench.folder, 1)
    seen = bench.observer.look()
    (process,) = seen.cards[1].gpu.processes or ()
    assert process.allocation is None
    assert process.user is not None
    stay = Stay(
        allocation="w",
        reservation="r",
        gpu=bench.other,
        team="t",
        owner="o",
        users=(process.user,),
        start=datetime.now(UTC),
    )
    bench.parts.stays.heed((stay,), bench.parts.stays.policy, 1000.0)
    (process,) = bench.observer.again(seen).cards[1].gpu.processes or ()
    assert (process.allocation, process.by) == ("w", "user")


def test_shares_that_stand_are_in_force(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing itself is a stand-in here."""
    some = Share(memory_mib=1024, compute_pct=10, limit_pct=10)
    held = Held(allocation="s", owner="o", profile=None, profile_id=None, start=0, size=8, share=some)
    layout = Layout(mig=False, held=(held,), sharing="mps")
    bench.parts.ledger.want(msgspec.structs.replace(command(bench.other, 1), layout=layout))
    standing = (ShareSeen(allocation="s", state="ok", memory_used_mib=7),)
    monkeypatch.setattr(bench.parts.sharing, "standing", lambda gpu, layout: standing)
    seen = bench.observer.look()
    assert seen.shares == {bench.uuid: (), bench.other: standing}
    assert seen.in_force == {"s": held}
