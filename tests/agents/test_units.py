"""Services that are stopped for a change and started again, over refusals and crashes.

Tested against a stand-in of systemctl with its documented words and exit statuses.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from agents.gpu import DriverRefusal
from agents.happened import Log
from agents.place import Place
from agents.units import Units

DCGM, EXPORTER, PERSISTENCED = "nvidia-dcgm", "dcgm-exporter", "nvidia-persistenced"

#: Knows the units that are files in a folder: "active", "inactive", or "stuck", which does not start.
SYSTEMCTL = """
import sys
from pathlib import Path
folder, verb, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
with (folder / "calls").open("a") as calls:
    calls.write(" ".join([verb, *(word for word in words if word not in ("--", "--quiet"))]) + "\\n")
if "--no-block" in words:
    for name in words[words.index("--") + 1 :]:
        (folder / name).write_text("queued")
    sys.exit(0)
unit = folder / words[-1]
if not unit.exists():
    sys.exit("Unit not found." if verb != "is-active" else 3)
if verb == "is-active":
    sys.exit(0 if unit.read_text() == "active" else 3)
if verb == "start" and unit.read_text() == "stuck":
    sys.exit("Job failed.")
unit.write_text({"start": "active", "stop": "inactive"}[verb])
"""


class Machine:
    """A folder of services, and who stops them."""

    def __init__(self, folder: Path) -> None:
        self.services = folder / "services"
        self.services.mkdir()
        self.program = folder / "systemctl.py"
        self.program.write_text(SYSTEMCTL)
        self.place = Place(folder)
        self.log = Log()

    def units(self, *names: str) -> Units:
        words = (sys.executable, str(self.program), str(self.services))
        return Units(self.place, names, self.log, words)

    def put(self, **states: str) -> None:
        for name, state in states.items():
            (self.services / name.replace("_", "-")).write_text(state)

    def state(self, name: str) -> str:
        return (self.services / name).read_text()

    def calls(self) -> list[str]:
        path = self.services / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def on_disk(self) -> list[str]:
        return msgspec.json.decode(self.place.units.read_bytes(), type=list[str])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def allowed() -> None:
    """Nothing forbids the change."""


def test_what_runs_is_stopped_within_and_runs_afterwards(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active", dcgm_exporter="active")
    with machine.units(DCGM, EXPORTER).paused(allowed):
        assert (machine.state(DCGM), machine.state(EXPORTER)) == ("inactive", "inactive")
        assert machine.on_disk() == [DCGM, EXPORTER]
    assert (machine.state(DCGM), machine.state(EXPORTER)) == ("active", "active")
    assert machine.on_disk() == []
    assert [one.kind for one in machine.log.pending()] == ["pause", "pause"]


def test_what_needs_another_is_stopped_before_it_and_started_after_it(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active", dcgm_exporter="active")
    with machine.units(DCGM, EXPORTER).paused(allowed):
        pass
    changes = [call for call in machine.calls() if not call.startswith("is-active")]
    assert changes == [
        f"stop {EXPORTER}",
        f"stop {DCGM}",
        f"start {DCGM}",
        f"start {EXPORTER}",
    ]


def test_what_does_not_run_stays_as_it_is(machine: Machine) -> None:
    machine.put(nvidia_dcgm="inactive", nvidia_persistenced="active")
    with machine.units(DCGM, PERSISTENCED, "not-installed").paused(allowed):
        pass
    assert machine.state(DCGM) == "inactive"
    assert f"stop {DCGM}" not in machine.calls()


def test_nothing_is_asked_where_nothing_is_configured(machine: Machine) -> None:
    with machine.units().paused(allowed):
        pass
    assert machine.calls() == []
    assert machine.log.pending() == ()


def test_they_run_again_also_when_the_change_fails(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active")
    with pytest.raises(DriverRefusal), machine.units(DCGM).paused(allowed):
        raise DriverRefusal("in_use")
    assert machine.state(DCGM) == "active"


def test_nothing_is_stopped_where_nothing_may_be_changed(machine: Machine) -> None:
    def forbid() -> None:
        raise DriverRefusal("frozen")

    machine.put(nvidia_dcgm="active")
    with pytest.raises(DriverRefusal), machine.units(DCGM).paused(forbid):
        pytest.fail("it was let in")
    assert machine.state(DCGM) == "active"
    assert f"stop {DCGM}" not in machine.calls()


def test_an_agent_that_was_killed_leaves_nothing_stopped_for_long(machine: Machine) -> None:
    class Killed(BaseException):
        """What kill -9 looks like to the steps after it."""

    machine.put(nvidia_dcgm="active")
    first = machine.units(DCGM)
    first.start_again = lambda: None  # type: ignore[method-assign]
    with pytest.raises(Killed), first.paused(allowed):
        raise Killed
    assert machine.state(DCGM) == "inactive"
    # The operator has meanwhile taken it out of the configuration.
    machine.units().start_again()
    assert machine.state(DCGM) == "active"
    assert machine.on_disk() == []


def test_one_that_does_not_start_is_told_and_tried_again(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active", nvidia_persistenced="active")
    units = machine.units(DCGM, PERSISTENCED)
    with units.paused(allowed):
        machine.put(nvidia_dcgm="stuck")
    assert machine.on_disk() == [DCGM]
    assert machine.log.pending()[-1].data == {"left": [DCGM]}
    machine.put(nvidia_dcgm="inactive")
    machine.units(DCGM).start_again()
    assert machine.state(DCGM) == "active"


def test_one_that_did_not_start_is_tried_again_with_the_next_pause(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active", nvidia_persistenced="active")
    units = machine.units(DCGM, PERSISTENCED)
    with units.paused(allowed):
        machine.put(nvidia_dcgm="stuck")
    with units.paused(allowed):
        machine.put(nvidia_dcgm="inactive")
    assert (machine.state(DCGM), machine.state(PERSISTENCED)) == ("active", "active")
    assert machine.on_disk() == []


def test_an_agent_that_ends_in_the_middle_of_a_pause_has_all_of_them_started(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active", dcgm_exporter="active")
    units = machine.units(DCGM, EXPORTER)
    with units.paused(allowed):
        units.leave(30)
        assert machine.calls()[-1] == f"start --no-block {DCGM} {EXPORTER}"
        assert (machine.state(DCGM), machine.state(EXPORTER)) == ("queued", "queued")
        # Whether they came up, the next agent sees to.
        assert machine.on_disk() == [DCGM, EXPORTER]


def test_an_agent_that_ends_stops_nothing_any_more(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active")
    units = machine.units(DCGM)
    units.leave(30)
    assert machine.calls() == []
    with units.paused(allowed):
        assert machine.state(DCGM) == "active"


def test_the_end_of_an_agent_waits_for_no_systemd_that_is_away(machine: Machine) -> None:
    machine.put(nvidia_dcgm="active")
    units = machine.units(DCGM)
    with units.paused(allowed):
        Units(machine.place, [DCGM], machine.log, ["/nonexistent/systemctl"]).leave(30)
        assert machine.on_disk() == [DCGM]


def test_a_machine_without_systemd_is_no_obstacle(machine: Machine) -> None:
    units = Units(machine.place, [DCGM], machine.log, ["/nonexistent/systemctl"])
    entered = False
    with units.paused(allowed):
        entered = True
    assert entered
