"""One GPU in shares under the hands of agents.sharing, and the shares that tests put on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.driver import Driver
from agents.gpu import DriverRefusal, Gpu
from agents.mps import Mps
from agents.place import Place
from agents.sharing import Sharing
from pool.core import connect
from pool.core.wire import Held, Layout, Process, Share, ShareSeen

A_QUARTER = Share(memory_mib=20_480, compute_pct=25, limit_pct=25)
BATCH = Share(memory_mib=8_192, compute_pct=0, limit_pct=100, batch=True)


def share(
    allocation: str, of: Share = A_QUARTER, *, owner: str = "", users: tuple[str, ...] = ("daemon",)
) -> Held:
    return Held(
        allocation=allocation,
        owner=owner or f"owner of {allocation}",
        profile=None,
        profile_id=None,
        start=0,
        size=8,
        share=of,
        reservation=f"reservation of {allocation}",
        users=users,
    )


A, B = share("a"), share("b", BATCH)


def shared(*held: Held, way: Any = "mps", multi_user: bool = False) -> Layout:
    return Layout(mig=False, held=held, sharing=way, multi_user=multi_user)


NOTHING = Layout(mig=False)


class Bench:
    """One H100 that is not in MIG mode, on a machine with MPS and HAMi-core."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.place = Place(folder)
        self.uuid = driver.look().gpus[0].uuid
        self.sharing = Sharing(self.place, driver)
        self.checks = 0

    def again(self) -> None:
        """As a new process: only the folder is left."""
        self.sharing = Sharing(self.place, self.driver)

    @property
    def gpu(self) -> Gpu:
        return self.driver.gpu(self.uuid)

    @property
    def pipe(self) -> Path:
        return Path(connect.pipe(self.uuid, str(self.place.run)))

    @property
    def daemon(self) -> Mps:
        return Mps(self.place, self.uuid)

    def bring(self, layout: Layout, gpu: Gpu | None = None) -> bool:
        return self.sharing.bring(gpu or self.gpu, layout, self.check)

    def check(self) -> None:
        self.checks += 1

    def refused(self, layout: Layout, code: str, gpu: Gpu | None = None) -> DriverRefusal:
        with pytest.raises(DriverRefusal) as refusal:
            self.bring(layout, gpu)
        assert refusal.value.code == code
        return refusal.value

    def used_by(self, *found: Process) -> Gpu:
        return replace(self.gpu, processes=found)

    def seen(self, layout: Layout, *found: Process) -> dict[str, ShareSeen]:
        gpu = self.used_by(*found) if found else self.gpu
        return {one.allocation: one for one in self.sharing.standing(gpu, layout)}
