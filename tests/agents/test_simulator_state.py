"""The simulated machine in its folder: kept, shared between processes, and whole after a kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pynvml as n
import pytest

from agents import simulator, simulator_world
from agents.driver import Driver
from agents.simulator_state import PLAIN, Store, boot_id, create_state, machine_id
from pool.core import mig

Open = Callable[..., tuple[Driver, Path]]
ROOT = Path(__file__).parents[2]


def uuids(folder: Path) -> list[str]:
    return [gpu.uuid for gpu in Store(folder).read().gpus]


def other_process(code: str, folder: Path) -> subprocess.Popen[str]:
    """Python of its own with a `Driver` named `one` on the same machine."""
    start = f"""
import sys
from pathlib import Path
from agents import simulator
from agents.driver import Driver
simulator.install(Path({str(folder)!r}))
one = Driver()
one.open()
"""
    return subprocess.Popen(
        [sys.executable, "-c", start + code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class TestCreate:
    @pytest.mark.parametrize("model", [*mig.models(), *PLAIN])
    def test_every_model_can_be_had(self, tmp_path: Path, model: str) -> None:
        create_state(tmp_path, f"2x{model}", seed="a")
        assert [gpu.model for gpu in Store(tmp_path).read().gpus] == [model, model]

    def test_another_name_of_a_model_is_understood(self, tmp_path: Path) -> None:
        create_state(tmp_path, "1xGH200-96GB + 2xL40S-48GB", seed="a")
        models = [gpu.model for gpu in Store(tmp_path).read().gpus]
        assert models == ["H100-96GB", "L40S-48GB", "L40S-48GB"]

    @pytest.mark.parametrize(
        "spec", ["", "H100-80GB", "0xH100-80GB", "1xH100", "99xH100-80GB", "-1xH100-80GB"]
    )
    def test_nonsense_is_refused_and_makes_nothing(self, tmp_path: Path, spec: str) -> None:
        with pytest.raises(ValueError, match=r"is not COUNTxMODEL|more than 64"):
            create_state(tmp_path / "new", spec, seed="a")
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(("spec", "index"), [("2xH100-80GB", 2), ("2xH100-80GB", -1), ("1xL40S-48GB", 0)])
    def test_a_gpu_that_cannot_be_in_mig_mode_is_refused(self, tmp_path: Path, spec: str, index: int) -> None:
        with pytest.raises(ValueError, match="cannot be in MIG mode"):
            create_state(tmp_path, spec, seed="a", mig=(index,))

    def test_a_domain_that_is_no_uuid_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="UUID"):
            create_state(tmp_path, "1xGB200-186GB", seed="a", cluster="rack-7")

    def test_what_is_there_is_kept(self, tmp_path: Path) -> None:
        create_state(tmp_path, "1xH100-80GB", seed="a")
        before = (tmp_path / "driver.json").read_bytes()
        create_state(tmp_path, "2xA100-40GB", seed="b")
        assert (tmp_path / "driver.json").read_bytes() == before

    def test_the_node_names_its_gpus_and_itself(self, tmp_path: Path) -> None:
        for folder, seed in (("a", "node-1"), ("b", "node-1"), ("c", "node-2")):
            create_state(tmp_path / folder, "2xH100-80GB", seed=seed)
        assert uuids(tmp_path / "a") == uuids(tmp_path / "b")
        assert machine_id(tmp_path / "a") == machine_id(tmp_path / "b")
        assert not set(uuids(tmp_path / "a")) & set(uuids(tmp_path / "c"))
        assert machine_id(tmp_path / "a") != machine_id(tmp_path / "c")
        assert all(uuid.UUID(each.removeprefix("GPU-")) for each in uuids(tmp_path / "a"))
        assert int(machine_id(tmp_path / "a"), 16) > 0
        assert boot_id(tmp_path / "a") != boot_id(tmp_path / "b")


class TestStore:
    def test_an_exception_changes_nothing(self, tmp_path: Path) -> None:
        create_state(tmp_path, "1xH100-80GB", seed="a")
        store = Store(tmp_path)

        def fail() -> None:
            with store.edit() as machine:
                machine.driver = "0"
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert store.read().driver != "0"

    def test_changes_within_one_tick_of_the_clock_are_seen(self, tmp_path: Path) -> None:
        create_state(tmp_path, "1xH100-80GB", seed="a")
        writer, reader = Store(tmp_path), Store(tmp_path)
        for number in range(200):
            with writer.edit() as machine:
                machine.driver = f"{number:03}"
            assert reader.read().driver == f"{number:03}"

    def test_processes_change_it_one_after_another(self, tmp_path: Path) -> None:
        create_state(tmp_path, "1xH100-80GB", seed="a")
        code = """
for _ in range(50):
    with simulator.Session(Path(sys.argv[1])).edit() as machine:
        machine.draw()
"""
        code = code.replace("sys.argv[1]", repr(str(tmp_path)))
        running = [other_process(code, tmp_path) for _ in range(3)]
        assert [each.communicate()[0] or each.returncode for each in running] == [0, 0, 0]
        assert Store(tmp_path).read().serial == 150


class TestSharing:
    def test_another_process_sees_and_keeps_what_was_made(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        made = one.create(uuid, 9, 4, 4)
        code = f"""
print(one.gpu({uuid!r}).instances[0].mig_uuid)
print(one.create({uuid!r}, 19, 0, 1).mig_uuid)
"""
        with other_process(code, folder) as other:
            said = (other.communicate()[0]).split()
        assert said[0] == made.mig_uuid
        assert [each.mig_uuid for each in one.gpu(uuid).instances or ()] == [said[1], made.mig_uuid]
        one.destroy(uuid, made.gi)

    def test_a_kill_loses_nothing_that_was_answered(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        uuid = one.look().gpus[0].uuid
        code = f"""
while True:
    made = one.create({uuid!r}, 19, 0, 1)
    print(made.mig_uuid, flush=True)
    one.destroy({uuid!r}, made.gi)
"""
        with other_process(code, folder) as other:
            assert other.stdout is not None
            answered = [other.stdout.readline() for _ in range(3)]
            other.kill()
        assert len(set(answered)) == 1
        left = one.gpu(uuid).instances or ()
        assert len(left) <= 1
        for each in left:
            one.destroy(uuid, each.gi)
        assert one.create(uuid, 19, 0, 1).mig_uuid == answered[0].strip()

    def test_a_kill_while_the_state_is_locked_leaves_it_usable(self, driver: Open) -> None:
        one, folder = driver("1xH100-80GB", mig=(0,))
        code = f"""
with simulator.Session(Path({str(folder)!r})).edit() as machine:
    machine.gpus.clear()
    print("locked", flush=True)
    sys.stdin.readline()
"""
        with other_process(code, folder) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            other.kill()
        simulator_world.permission(folder, False)
        assert len(one.look().gpus) == 1

    def test_the_file_is_always_whole(self, tmp_path: Path) -> None:
        create_state(tmp_path, "8xH100-80GB", seed="a")
        code = f"""
while True:
    with simulator.Session(Path({str(tmp_path)!r})).edit() as machine:
        machine.draw()
    print(machine.serial, flush=True)
"""
        with other_process(code, tmp_path) as other:
            assert other.stdout is not None
            for _ in range(50):
                other.stdout.readline()
                json.loads((tmp_path / "driver.json").read_bytes())
            other.kill()
        assert simulator.Session(tmp_path).read().serial >= 50


def test_importing_it_is_light(tmp_path: Path) -> None:
    create_state(tmp_path, "8xH100-80GB", seed="a", mig=range(8))
    code = """
one.look()
status = Path("/proc/self/status")
if status.exists():
    print(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(sorted({"numpy", "django", "celery"} & set(sys.modules)))
"""
    with other_process(code, tmp_path) as other:
        peak, heavy = other.communicate()[0].splitlines()
    assert int(peak) < 60 * 1024
    assert heavy == "[]"


def test_nothing_of_pynvml_but_its_library_is_touched(tmp_path: Path) -> None:
    create_state(tmp_path, "1xH100-80GB", seed="a")
    before = dict(vars(n))
    simulator.install(tmp_path)
    try:
        changed = {name for name, value in vars(n).items() if value is not before.get(name)}
        assert changed <= {"nvmlLib", "_nvmlLib_refcount"}
        assert n.nvmlLib is not before["nvmlLib"]
    finally:
        simulator.uninstall()
    assert n.nvmlLib is None
