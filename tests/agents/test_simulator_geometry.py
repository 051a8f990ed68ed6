"""For every model of the catalogue the simulated driver accepts what brute force accepts, and nothing else.

The brute force below knows only offered places, memory slices and media engines; it shares no code
with the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml as n
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import simulator
from pool.core import mig

Simulate = Callable[..., Path]


@dataclass
class Board:
    """A GPU as a set of occupied memory slices and a list of what occupies them."""

    there: list[tuple[int, range, str]] = field(default_factory=list)  # profile id, slices, name

    def admits(self, profile: mig.Profile, start: int) -> int:
        """The code that creating it must give."""
        if start not in profile.starts:
            return int(n.NVML_ERROR_INVALID_ARGUMENT)
        wanted = set(range(start, start + profile.size))
        if any(wanted & set(slices) for _, slices, _ in self.there):
            return int(n.NVML_ERROR_INSUFFICIENT_RESOURCES)
        if sum(profile_id == profile.profile_id for profile_id, _, _ in self.there) == profile.max_instances:
            return int(n.NVML_ERROR_INSUFFICIENT_RESOURCES)
        names = [name for _, _, name in self.there]
        if any(clash(profile.name, name) for name in names):
            return int(n.NVML_ERROR_INSUFFICIENT_RESOURCES)
        return 0

    def room_for(self, profile: mig.Profile) -> int:
        """The most further instances of one profile, by trying every subset of its places."""
        return max(self._filled(profile, tuple(profile.starts)), default=0)

    def _filled(self, profile: mig.Profile, starts: tuple[int, ...]) -> list[int]:
        counts = [0]
        for place, start in enumerate(starts):
            if self.admits(profile, start) == 0:
                further = Board(
                    [*self.there, (profile.profile_id, range(start, start + profile.size), profile.name)]
                )
                counts.append(1 + max(further._filled(profile, starts[place + 1 :])))
        return counts


def clash(one: str, other: str) -> bool:
    if one.endswith("-me") or other.endswith("-me"):
        return False
    if one.endswith("+me.all") or other.endswith("+me.all"):
        return True
    return one.endswith("+me") and other.endswith("+me")


@pytest.mark.parametrize("name", sorted(mig.models()))
def test_it_agrees_with_brute_force(simulate: Simulate, name: str) -> None:
    simulator_folder = simulate(f"1x{name}", mig=(0,))
    model = mig.models()[name]
    moves = st.lists(
        st.tuples(st.sampled_from(model.profiles), st.integers(0, model.grid), st.booleans()),
        min_size=1,
        max_size=12,
    )

    @settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(moves)
    def play(moves: list[tuple[mig.Profile, int, bool]]) -> None:
        with simulator.Session(simulator_folder).edit() as machine:
            machine.gpus[0].instances = []
        board, device = Board(), n.nvmlDeviceGetHandleByIndex(0)
        handles: list[Any] = []
        for profile, number, create in moves:
            if create or not handles:
                step(board, device, handles, profile, profile.starts[number % len(profile.starts)])
                step(board, device, handles, profile, number)
            else:
                at = number % len(handles)
                n.nvmlGpuInstanceDestroy(handles.pop(at))
                board.there.pop(at)
            remaining = n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.profile_id)
            assert remaining == board.room_for(profile)
        assert seen(device, model) == sorted(
            (profile_id, slices.start, len(slices)) for profile_id, slices, _ in board.there
        )

    n.nvmlInit()
    play()


def step(board: Board, device: Any, handles: list[Any], profile: mig.Profile, start: int) -> None:
    place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, profile.size))
    code, handle = 0, None
    try:
        handle = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.profile_id, place)
    except n.NVMLError as error:
        code = error.value
    assert code == board.admits(profile, start)
    if handle is not None:
        handles.append(handle)
        board.there.append((profile.profile_id, range(start, start + profile.size), profile.name))


def seen(device: Any, model: mig.Model) -> list[tuple[int, int, int]]:
    found, ids = [], []
    for profile in model.profiles:
        array, count = (n.c_nvmlGpuInstance_t * 16)(), ctypes.c_uint(0)
        n.nvmlDeviceGetGpuInstances(device, profile.profile_id, array, ctypes.byref(count))
        for handle in array[: count.value]:
            info = n.nvmlGpuInstanceGetInfo(handle)
            found.append((info.profileId, info.placement.start, info.placement.size))
            ids.append(info.id)
    assert len(set(ids)) == len(ids)
    return sorted(found)


@pytest.mark.parametrize("name", sorted(mig.models()))
def test_every_offered_place_can_be_taken_on_an_empty_gpu(simulate: Simulate, name: str) -> None:
    simulate(f"1x{name}", mig=(0,))
    n.nvmlInit()
    device = n.nvmlDeviceGetHandleByIndex(0)
    for profile in mig.models()[name].profiles:
        for start in profile.starts:
            place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, profile.size))
            handle = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.profile_id, place)
            n.nvmlGpuInstanceDestroy(handle)
