"""What is told to go, when, and what is never touched."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents.ending import ALERT_S, Ending
from agents.gpu import Gpu
from agents.happened import Log
from agents.signals import Outcome, Seen
from pool.core.wire import Process, ShareSeen
from tests.agents.people import GPU, Node, gpu, held, instance, process, slices, stay

TERM, KILL = signal.SIGTERM, signal.SIGKILL
OVER = stay("a", ending=True)


class Scene(Node):
    """A node whose signals are only noted, as (pid, signal)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sent: list[tuple[int, signal.Signals]] = []
        self.outcome = Outcome.SENT
        self.log = Log(self.place)
        self.ending = Ending(self.stays, self.log, self.ledger, clock=lambda: self.clock, send=self._send)

    def _send(self, seen: Seen, number: signal.Signals, boot_id: str) -> Outcome:
        assert seen.boot_id == boot_id == self.boot
        self.sent.append((seen.pid, number))
        return self.outcome

    def step(self, *gpus: Gpu, after: float = 0, shares: Any = None) -> list[tuple[int, signal.Signals]]:
        """What a step signals, `after` seconds."""
        self.clock += after
        self.stays._heard = self.clock
        self.sent.clear()
        self.ending.step(gpus, shares or {})
        return list(self.sent)

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [
            {"text": one.text, "allocation": one.allocation, **one.data}
            for one in self.log.pending()
            if one.kind == kind
        ]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def mine(pid: int = 100, allocation: str = "a", **more: Any) -> Process:
    return process(pid, allocation=allocation, by="user", **more)


def test_a_stay_that_is_over_gets_sigterm_once_and_after_the_grace_sigkill(scene: Scene) -> None:
    scene.hear(OVER, kill=True, grace_s=60)
    assert scene.step(gpu(mine())) == [(100, TERM)]
    assert scene.step(gpu(mine()), after=59) == []
    assert scene.step(gpu(mine()), after=1) == [(100, KILL)]
    assert scene.step(gpu(mine()), after=600) == []
    assert [(one["signal"], one["why"], one["allocation"]) for one in scene.told("signal")] == [
        (15, "over", "a"),
        (9, "over", "a"),
    ]


def test_without_the_pools_leave_there_is_no_sigkill(scene: Scene) -> None:
    scene.hear(OVER, kill=False, grace_s=60)
    assert scene.step(gpu(mine())) == [(100, TERM)]
    assert scene.step(gpu(mine()), after=6000) == []


def test_what_runs_for_a_stay_that_goes_on_is_left_alone(scene: Scene) -> None:
    scene.hear(stay("a"), kill=True)
    assert scene.step(gpu(mine())) == []


def test_an_extension_in_the_grace_saves_what_runs(scene: Scene) -> None:
    scene.hear(OVER, kill=True, grace_s=60)
    assert scene.step(gpu(mine())) == [(100, TERM)]
    scene.hear(stay("a"), kill=True, grace_s=60)
    assert scene.step(gpu(mine()), after=100) == []
    scene.hear(OVER, kill=True, grace_s=60)
    assert scene.step(gpu(mine())) == [(100, TERM)]  # the grace begins anew


@pytest.mark.parametrize(
    "other",
    [
        process(user="bob"),  # nobody's
        mine(allocation="b"),
        mine(system=True),
        mine(started=None),
        Process(pid=100),  # nothing could be read
    ],
)
def test_nobody_else_is_touched(scene: Scene, other: Process) -> None:
    scene.hear(OVER, kill=True, grace_s=0, foreign="kill")
    scene.hold(held("b"))
    assert scene.step(gpu(other)) == []
    assert scene.step(gpu(other), after=1000) == []


def test_while_the_portal_is_away_nothing_is_signalled(scene: Scene) -> None:
    scene.hear(OVER, kill=True, grace_s=10)
    scene.step(gpu(mine()))
    scene.sent.clear()
    scene.clock += 46
    scene.ending.step(
        [
            gpu(
                mine(),
            )
        ]
    )
    scene.ending.end_application(gpu(mine()), None)
    assert scene.sent == []
    assert scene.step(gpu(mine())) == [(100, KILL)]


def test_where_nothing_may_be_changed_nothing_is_signalled(scene: Scene) -> None:
    scene.hear(OVER, kill=True)
    scene.ledger.keep_rules([GPU], True)
    assert scene.step(gpu(mine())) == []
    scene.ledger.keep_rules([], False)
    assert scene.step(gpu(mine())) == []
    scene.ledger.keep_rules([GPU], False)
    scene.place.frozen.touch()
    assert scene.step(gpu(mine())) == []
    scene.place.frozen.unlink()
    assert scene.step(replace(gpu(mine()), lost=True)) == []
    assert scene.step(gpu(mine())) == [(100, TERM)]


def test_what_could_not_be_read_is_no_reason(scene: Scene) -> None:
    scene.hear(OVER, kill=True)
    assert scene.step(Gpu(GPU, 0, "x", processes=None, instances=None)) == []


def test_in_a_slice_only_what_belongs_to_the_stay_ends(scene: Scene) -> None:
    scene.hear(OVER, stay("b"), kill=True)
    seen = slices(instance(1, 0, mine(1)), instance(2, 1, mine(2, "b"), process(3)))
    assert scene.step(seen) == [(1, TERM)]


def test_a_boot_forgets_pids_that_mean_nothing_any_more(scene: Scene) -> None:
    scene.hear(OVER, kill=True, grace_s=60)
    scene.step(gpu(mine()))
    scene.boot = "boot-2"
    assert scene.step(gpu(mine()), after=100) == [(100, TERM)]


def test_what_may_not_be_signalled_is_told_and_not_tried_at_each_report(scene: Scene) -> None:
    scene.hear(OVER)
    scene.outcome = Outcome.REFUSED
    assert scene.step(gpu(mine())) == [(100, TERM)]
    assert scene.step(gpu(mine()), after=15) == []
    (told,) = scene.told("signal")
    assert not told["sent"]
    assert "not permitted" in told["text"]


def test_what_is_gone_already_is_no_news(scene: Scene) -> None:
    scene.hear(OVER)
    scene.outcome = Outcome.GONE
    scene.step(gpu(mine()))
    assert scene.told("signal") == []


# --- Back-to-back is one stay -------------------------------------------------


def test_while_the_next_part_is_under_way_the_end_is_none(scene: Scene) -> None:
    scene.hold(held("a"))
    following = stay("b", start=OVER.end, end=None)
    scene.hear(OVER, following, kill=True)
    assert scene.step(gpu(mine())) == []
    scene.hold(held("b"))  # now what runs is attributed to "b"; what still is to "a" is not of that place
    assert scene.step(gpu(mine())) == [(100, TERM)]


@pytest.mark.parametrize(
    "other",
    [
        stay("b", start=OVER.end, team="blue"),
        stay("b", start=OVER.end, owner="bob"),
        stay("b", start=(OVER.end or OVER.start) + timedelta(minutes=1)),
        stay("b", start=OVER.end, ending=True),
        stay("b", start=OVER.end, gpu="GPU-2"),
    ],
)
def test_any_other_following_stay_saves_nothing(scene: Scene, other: Any) -> None:
    scene.hold(held("a"))
    scene.hear(OVER, other, kill=True)
    assert scene.step(gpu(mine())) == [(100, TERM)]


# --- Shares over their memory -------------------------------------------------


def over(allocation: str = "a", state: str = "over") -> dict[str, list[ShareSeen]]:
    return {GPU: [ShareSeen(allocation=allocation, state=state, memory_used_mib=1500, detail="1500 of 1000")]}


def test_a_share_over_its_memory_is_told_once_and_ended_where_the_pool_says_so(scene: Scene) -> None:
    scene.hold(held("a", share=True))
    scene.hear(stay("a"), over_memory="end", over_grace_s=300, grace_s=60, kill=True)
    assert scene.step(gpu(mine()), shares=over()) == []
    assert scene.step(gpu(mine()), after=299, shares=over()) == []
    assert scene.step(gpu(mine(), mine(200, "b")), after=1, shares=over()) == [(100, TERM)]
    assert scene.step(gpu(mine()), after=60, shares=over()) == [(100, KILL)]
    assert scene.told("over_memory") == [{"text": "1500 of 1000", "allocation": "a", "memory_used_mib": 1500}]


def test_a_warning_is_all_where_the_pool_only_warns(scene: Scene) -> None:
    scene.hear(stay("a"), over_memory="warn", over_grace_s=0, kill=True)
    for _ in range(3):
        assert scene.step(gpu(mine()), after=100, shares=over()) == []
    assert len(scene.told("over_memory")) == 1


def test_who_gives_memory_back_in_time_goes_on(scene: Scene) -> None:
    scene.hear(stay("a"), over_memory="end", over_grace_s=300)
    scene.step(gpu(mine()), shares=over())
    scene.step(gpu(mine()), after=200, shares=over(state="ok"))
    assert scene.step(gpu(mine()), after=200, shares=over()) == []
    assert len(scene.told("over_memory")) == 2


# --- Foreign use --------------------------------------------------------------


def test_on_an_unbooked_gpu_foreign_use_ends_only_where_the_pool_says_so(scene: Scene) -> None:
    for policy in ("look", "line"):
        scene.hear(foreign=policy, kill=True, grace_s=60)
        assert scene.step(gpu(process()), after=600) == []
    scene.hear(foreign="kill", grace_s=60)
    assert scene.step(gpu(process())) == []
    assert scene.step(gpu(process()), after=59) == []
    assert scene.step(gpu(process()), after=1) == [(100, TERM)]
    assert scene.step(gpu(process()), after=60) == [(100, KILL)]


@pytest.mark.parametrize(
    "other", [process(uid=0, user="root"), process(uid=None, user=None), process(system=True)]
)
def test_root_and_the_system_are_never_foreign(scene: Scene, other: Process) -> None:
    scene.hear(foreign="kill", grace_s=1)
    for _ in range(4):
        assert scene.step(gpu(other), after=100) == []


def test_root_in_a_container_is_somebody(scene: Scene) -> None:
    scene.hear(foreign="kill", grace_s=1)
    foreign = process(uid=0, user="root", container="docker:0123")
    scene.step(gpu(foreign))
    assert scene.step(gpu(foreign), after=2) == [(100, TERM)]


def test_a_booked_gpu_has_no_foreign_use_to_end(scene: Scene) -> None:
    scene.hear(foreign="kill", grace_s=1)
    scene.hold(held("b"))
    scene.step(gpu(process()))
    assert scene.step(gpu(process()), after=100) == []
    scene.hold()
    scene.hear(stay("c"), foreign="kill", grace_s=1)  # about to start
    scene.step(gpu(process()))
    assert scene.step(gpu(process()), after=100) == []


def test_whoever_comes_back_has_the_whole_grace_again(scene: Scene) -> None:
    scene.hear(foreign="kill", grace_s=60)
    scene.step(gpu(process()))
    scene.step(gpu(), after=50)
    assert scene.step(gpu(process()), after=50) == []


# --- An error of the card -----------------------------------------------------


def test_the_application_that_lost_its_memory_is_told_to_go(scene: Scene) -> None:
    scene.hear(stay("a"), stay("b"), kill=True, grace_s=60)
    seen = slices(instance(1, 0, mine(1)), instance(2, 1, mine(2, "b")))
    scene.ending.end_application(seen, 2)
    assert scene.sent == [(2, TERM)]
    assert scene.step(seen, after=59) == []
    assert scene.step(seen, after=1) == [(2, KILL)]
    assert {one["why"] for one in scene.told("signal")} == {"xid"}


def test_without_an_instance_it_must_be_plain_whose_it_was(scene: Scene) -> None:
    scene.hear(stay("a"), stay("b"))
    scene.ending.end_application(slices(instance(2, 1, process(3))), 2)
    scene.ending.end_application(gpu(mine(1), mine(2, "b")), None)
    scene.ending.end_application(gpu(mine(1), process(3)), None)
    scene.ending.end_application(gpu(process(3)), None)
    scene.ending.end_application(gpu(), None)
    assert scene.sent == []
    scene.ending.end_application(gpu(mine(1), mine(2), process(3, system=True)), None)
    assert scene.sent == [(1, TERM), (2, TERM)]


def test_what_is_nobodys_in_an_instance_saves_nothing_beside_it(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.ending.end_application(slices(instance(2, 1, mine(1), process(3))), 2)
    assert scene.sent == [(1, TERM)]


# --- Alerts -------------------------------------------------------------------


def test_what_is_nobodys_is_told_once_after_a_while(scene: Scene) -> None:
    seen = gpu(process(uid=1002, user="bob"), mine(200), process(300, system=True))
    scene.step(seen)
    assert scene.told("unattributed") == []
    scene.step(seen, after=ALERT_S)
    scene.step(seen, after=ALERT_S)
    (told,) = scene.told("unattributed")
    assert (told["pid"], told["uid"], told["user"]) == (100, 1002, "bob")
    assert "bob" in told["text"]


def test_whoever_holds_the_place_is_told_of_what_is_nobodys_there(scene: Scene) -> None:
    scene.hold(held("a"))
    scene.step(gpu(process(uid=1002, user="bob")))
    scene.step(gpu(process(uid=1002, user="bob")), after=ALERT_S)
    assert [one["allocation"] for one in scene.told("unattributed")] == ["a"]


def test_on_a_gpu_that_is_only_observed_nothing_is_an_alert(scene: Scene) -> None:
    scene.ledger.keep_rules([], False)
    scene.step(gpu(process()))
    scene.step(gpu(process()), after=ALERT_S)
    assert scene.told("unattributed") == []


def test_a_start_that_is_attributed_soon_is_no_alert(scene: Scene) -> None:
    scene.step(gpu(process()))
    scene.step(gpu(mine()), after=ALERT_S)
    assert scene.told("unattributed") == []


# --- What is taken back -------------------------------------------------------


def test_what_is_recalled_gets_the_signal_that_its_owner_asked_for_once(scene: Scene) -> None:
    scene.hear(stay("a"))
    scene.hold(held("a", phase="checkpoint", signal="SIGUSR1"))
    seen = gpu(mine(), mine(200, system=True), mine(201, allocation="b"), process(202, user="bob"))
    assert scene.step(seen) == [(100, signal.SIGUSR1)]
    assert scene.step(seen, after=60) == []
    assert [(one["signal"], one["why"], one["allocation"]) for one in scene.told("signal")] == [
        (int(signal.SIGUSR1), "recalled", "a")
    ]
    scene.hear(stay("a", ending=True))
    assert scene.step(seen) == [(100, TERM)]


@pytest.mark.parametrize("more", [{"signal": "SIGUSR1"}, {"phase": "checkpoint", "signal": "SIGKILL"}])
def test_nothing_else_is_a_word_before_the_end(scene: Scene, more: dict[str, Any]) -> None:
    scene.hear(stay("a"))
    scene.hold(held("a", **more))
    assert scene.step(gpu(mine())) == []
