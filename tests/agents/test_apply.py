"""The applier's thread: one slot a GPU, newest wins, refused things tried again while wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import apply
from agents import simulator_world as world
from agents.apply import Applier, pause_s
from agents.driver import Driver
from agents.gpu import Gpu
from agents.observe import Observer
from agents.place import Place
from agents.simulator_state import Store, boot_id
from pool.core.wire import WIRE, Answer, Layout, Policy, Share, ShareSeen, Trouble
from tests.agents.stand_in import WAIT_S, command, parts_of, slice_, whole

Open = Callable[..., tuple[Driver, Path]]
A, B = slice_("a", 0), slice_("b", 1)


class Bench:
    """Two GPUs in MIG mode, both managed, under a running applier."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.place = Place(folder)
        self.uuid, self.other = (gpu.uuid for gpu in driver.look().gpus)
        self.begin()
        self.ledger.keep_rules([self.uuid, self.other], False)

    def begin(self) -> None:
        self.parts = parts_of(self.driver, self.place.folder, lambda: boot_id(self.place.folder))
        self.ledger = self.parts.ledger
        self.applier = Applier("node-1", self.parts)
        self.observer = Observer(self.parts)

    def again(self) -> None:
        """As a new process: only the folder is left."""
        self.applier.stop(WAIT_S)
        self.begin()

    def compare(self) -> None:
        self.applier.compare(self.observer.look().cards)

    def wait(self, done: Callable[[], object]) -> None:
        """Until it is so, looking whenever the applier says that something changed."""
        for _ in range(20):
            if done():
                return
            assert self.applier.changed.wait(WAIT_S), "the applier did nothing more"
            self.applier.changed.clear()
        assert done()

    def applied(self, generation: int, uuid: str = "") -> None:
        self.wait(lambda: self.ledger.gpu(uuid or self.uuid).applied == generation)

    def trouble(self, code: str | None) -> Trouble | None:
        self.wait(lambda: getattr(self.applier.trouble(self.uuid), "code", None) == code)
        return self.applier.trouble(self.uuid)

    def starts(self) -> list[int]:
        return [one.start for one in self.driver.gpu(self.uuid).instances or ()]


@pytest.fixture
def bench(driver: Open, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(apply, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(apply, "SWITCH_PAUSE_S", 0.05)
    one = Bench(*driver("2xH100-80GB", mig=(0, 1)))
    yield one
    one.applier.stop(WAIT_S)


class TestOffer:
    def test_a_command_is_carried_out(self, bench: Bench) -> None:
        bench.applier.start()
        assert bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        assert bench.starts() == [0]

    def test_each_gpu_has_its_own_slot(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 4, A))
        bench.applier.offer(command(bench.other, 2, B))
        bench.applied(4)
        bench.applied(2, bench.other)

    def test_the_newest_of_several_wins_whatever_their_order(self, bench: Bench) -> None:
        assert bench.applier.offer(command(bench.uuid, 2, B))
        assert bench.applier.offer(command(bench.uuid, 3, A, B))
        assert not bench.applier.offer(command(bench.uuid, 1, A))
        bench.applier.start()
        bench.applied(3)
        assert bench.starts() == [0, 1]

    def test_an_older_generation_is_refused_also_after_a_restart(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 5, A))
        bench.applied(5)
        assert not bench.applier.offer(command(bench.uuid, 4))
        bench.again()
        assert not bench.applier.offer(command(bench.uuid, 4))
        assert bench.starts() == [0]

    def test_a_second_layout_of_one_generation_is_refused(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 5, A))
        bench.applied(5)
        assert not bench.applier.offer(command(bench.uuid, 5, B))
        assert bench.applier.offer(command(bench.uuid, 5, A))

    @pytest.mark.parametrize("wrong", [{"node": "node-2"}, {"wire": WIRE + 1}])
    def test_what_is_not_for_this_agent_is_refused(self, bench: Bench, wrong: dict[str, Any]) -> None:
        assert bench.applier.offer(command(bench.uuid, 1, A))
        assert not bench.applier.offer(msgspec.structs.replace(command(bench.uuid, 2, A), **wrong))


class TestRetries:
    def test_a_refused_layout_is_tried_again_until_it_works(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        world.process(bench.place.folder, 0, 0)
        bench.applier.offer(command(bench.uuid, 2))
        trouble = bench.trouble("in_use")
        assert trouble is not None
        assert trouble.generation == 2
        world.stop_processes(bench.place.folder)
        bench.trouble(None)
        assert bench.starts() == []

    def test_a_newer_wish_ends_the_trouble_of_an_older_one(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, slice_("odd", 0, profile_id=99)))
        bench.trouble("driver")
        bench.applier.offer(command(bench.uuid, 2, A))
        bench.trouble(None)
        assert bench.starts() == [0]

    def test_trouble_on_one_gpu_does_not_hold_up_another(self, bench: Bench) -> None:
        bench.applier.start()
        world.lose(bench.place.folder, 0)
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.trouble("gpu_is_lost")
        bench.applier.offer(command(bench.other, 1, A))
        bench.applied(1, bench.other)

    def test_an_error_nobody_foresaw_is_trouble_and_the_thread_lives_on(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*args: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(bench.ledger, "want", broken)
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        trouble = bench.trouble("driver")
        assert trouble is not None
        assert "no space" in trouble.detail
        monkeypatch.undo()
        bench.applied(1)

    def test_the_pause_doubles_up_to_a_minute(self) -> None:
        assert [pause_s("in_use", tries) for tries in (0, 1, 2, 5, 1000)] == [2, 4, 8, 60, 60]

    def test_switches_are_looked_at_often(self) -> None:
        assert pause_s("frozen", 1000) == pause_s("observe", 0) == 1


class TestRules:
    def test_a_gpu_that_is_not_managed_is_only_looked_at(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.keep_rules([bench.other], False)
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.trouble("observe")
        assert bench.starts() == []
        bench.applier.keep_rules([bench.uuid, bench.other], False)
        bench.trouble(None)
        assert bench.starts() == [0]

    def test_the_portals_freeze_stops_changes(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.keep_rules([bench.uuid], True)
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.trouble("frozen")
        bench.applier.keep_rules([bench.uuid], False)
        bench.trouble(None)

    def test_the_nodes_own_freeze_stops_changes_without_the_portal(self, bench: Bench) -> None:
        bench.place.frozen.touch()
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.trouble("frozen")
        assert bench.starts() == []
        bench.place.frozen.unlink()
        bench.trouble(None)
        assert bench.starts() == [0]


class TestRestore:
    def test_after_a_boot_everything_comes_back_without_the_portal(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 3, A, B))
        bench.applied(3)
        world.reboot(bench.place.folder)
        bench.ledger.notice_boot()
        assert bench.ledger.gpu(bench.uuid).applied == 0
        bench.applier.restore()
        bench.applied(3)
        assert bench.starts() == [0, 1]

    def test_a_frozen_node_stays_empty_after_a_boot(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 3, A))
        bench.applied(3)
        bench.applier.keep_rules([bench.uuid], True)
        world.reboot(bench.place.folder)
        bench.again()
        bench.applier.start()
        bench.trouble("frozen")
        assert bench.starts() == []

    def test_an_unfinished_wish_is_taken_up_after_a_restart(self, bench: Bench) -> None:
        bench.ledger.want(command(bench.uuid, 3, A))
        bench.again()
        bench.applier.start()
        bench.applied(3)

    def test_a_slice_that_somebody_destroyed_is_made_again(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        gpu = bench.driver.gpu(bench.uuid)
        assert gpu.instances
        bench.compare()
        bench.driver.destroy(bench.uuid, gpu.instances[0].gi)
        bench.compare()
        bench.wait(lambda: bench.starts() == [0])


class TestWhilePortalIsAway:
    """What newly arrives is done; nothing else is changed."""

    def away(self, bench: Bench) -> None:
        bench.parts.stays.heed((), Policy(), -1.0)
        assert not bench.parts.stays.here()

    def back(self, bench: Bench) -> None:
        rules = bench.ledger.record
        bench.applier.heed(Answer(accepted_seq=1, manage=rules.manage, frozen=rules.frozen), 1000.0)

    def test_a_command_from_the_broker_is_carried_out(self, bench: Bench) -> None:
        self.away(bench)
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)

    def test_a_refused_one_is_not_tried_again_before_the_portal_is_back(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        world.process(bench.place.folder, 0, 0)
        self.away(bench)
        bench.applier.offer(command(bench.uuid, 2))
        bench.trouble("in_use")
        world.stop_processes(bench.place.folder)
        bench.compare()
        bench.applier.offer(command(bench.other, 1, B))  # done after the other would have been
        bench.applied(1, bench.other)
        assert bench.starts() == [0]
        self.back(bench)
        bench.trouble(None)
        assert bench.starts() == []

    def test_a_start_waits_for_the_first_answer_before_it_restores(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 3, A))
        bench.applied(3)
        world.reboot(bench.place.folder)
        bench.again()
        self.away(bench)
        bench.applier.start()
        bench.applier.offer(command(bench.other, 1, B))
        bench.applied(1, bench.other)
        assert bench.driver.gpu(bench.uuid).instances == ()
        self.back(bench)
        bench.applied(3)
        assert bench.starts() == [0]

    def test_what_the_first_answer_brings_goes_before_what_was_wanted_before(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 3, A))
        bench.applied(3)
        world.reboot(bench.place.folder)
        bench.again()
        self.away(bench)
        bench.applier.start()
        newest = command(bench.uuid, 4, B)
        rules = bench.ledger.record
        bench.applier.heed(Answer(accepted_seq=1, manage=rules.manage, commands=(newest,)), 1000.0)
        bench.applied(4)
        serials = [one.serial for one in Store(bench.place.folder).read().gpus[0].instances]
        assert bench.starts() == [1]
        assert len(serials) == 1
        assert bench.ledger.gpu(bench.uuid).wanted == newest

    def test_what_somebody_else_changed_is_not_repaired(self, bench: Bench) -> None:
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        self.away(bench)
        gpu = bench.driver.gpu(bench.uuid)
        assert gpu.instances
        bench.driver.destroy(bench.uuid, gpu.instances[0].gi)
        bench.compare()
        bench.applier.offer(command(bench.other, 1, B))
        bench.applied(1, bench.other)
        assert bench.starts() == []
        self.back(bench)
        bench.wait(lambda: bench.starts() == [0])

    def test_an_outage_ends_every_pause(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(apply, "FIRST_PAUSE_S", 3600.0)
        monkeypatch.setattr(apply, "LONGEST_PAUSE_S", 3600.0)
        world.permission(bench.place.folder, False)
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.trouble("no_permission")
        self.away(bench)
        world.permission(bench.place.folder, True)
        self.back(bench)
        bench.applied(1)


class TestLookAgain:
    def test_what_was_in_the_way_and_went_ends_the_pause(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(apply, "FIRST_PAUSE_S", 3600.0)
        monkeypatch.setattr(apply, "LONGEST_PAUSE_S", 3600.0)
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, A))
        bench.applied(1)
        world.process(bench.place.folder, 0, 0)
        bench.applier.offer(command(bench.uuid, 2))
        bench.trouble("in_use")
        bench.compare()
        world.stop_processes(bench.place.folder)
        bench.compare()
        bench.trouble(None)
        assert bench.starts() == []

    def test_a_share_that_is_degraded_is_brought_up_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sharing itself is a stand-in here: up, dead, and up again."""
        states, brought = ["ok"], []

        def standing(gpu: Gpu, layout: Layout) -> tuple[ShareSeen, ...]:
            return tuple(ShareSeen(allocation=one.allocation, state=states[-1]) for one in layout.held)

        def bring(gpu: Gpu, layout: Layout, check: Callable[[], None]) -> bool:
            check()
            brought.append(layout)
            states.append("ok")
            return True

        monkeypatch.setattr(bench.parts.sharing, "standing", standing)
        monkeypatch.setattr(bench.parts.sharing, "bring", bring)
        held = msgspec.structs.replace(whole("s"), share=Share(memory_mib=1024, compute_pct=10, limit_pct=10))
        layout = Layout(mig=False, held=(held,), sharing="mps")
        bench.applier.start()
        bench.applier.offer(msgspec.structs.replace(command(bench.uuid, 1), layout=layout))
        bench.applied(1)
        bench.compare()
        count = len(brought)
        states.append("degraded")
        bench.compare()
        bench.wait(lambda: len(brought) > count)


class TestStop:
    def test_it_ends_at_once_while_it_waits_for_a_retry(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(apply, "FIRST_PAUSE_S", 60.0)
        bench.applier.start()
        bench.applier.offer(command(bench.uuid, 1, slice_("odd", 0, profile_id=99)))
        bench.trouble("driver")
        bench.applier.stop(WAIT_S)
        assert "applier" not in [thread.name for thread in threading.enumerate()]
