"""Whose a process is: by its container's device, its environment, its account, or adoption. No driver.

Only an allocation that stands on the same instance, or on the same whole GPU, can be it. What fits
none, or fits several, is unattributed: worth an alert, and never a reason to end anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from agents import processes
from agents.gpu import Gpu, Instance
from agents.plan import span_of
from agents.processes import Facts
from agents.record import GpuRecord
from pool.core.wire import Held, Process, Stay

#: The machine's own programs that hold GPUs open: MPS, NVIDIA's services, monitoring, displays.
SYSTEM = frozenset(
    {
        *("nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced", "nvidia-smi"),
        *("nv-hostengine", "dcgm-exporter", "dcgmi", "nv-fabricmanager", "nvidia-imex", "nvidia-powerd"),
        *("nvsm", "nvsm_core", "nvidia-device-plugin", "nvidia-mig-manager", "nvidia-mig-parted"),
        *("gpu-feature-discovery", "nvidia-gridd", "Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11"),
        *("kwin_wayland", "plasmashell", "mutter-x11-frames", "sddm", "weston", "sway", "systemd-logind"),
    }
)
#: Accounts below are the system's (login.defs: SYS_UID_MAX).
_FIRST_USER = 1000
#: A container's image may name anything like a system's program; what holds this much is work.
_WORK_MIB = 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocation that may be the one. `holder` is (team, owner), None where no stay tells.

    `adopted`: when an operator said that what runs there is its holder's; None: nobody did.
    """

    allocation: str
    reservation: str
    users: frozenset[str]
    holder: tuple[str, str] | None
    in_force: bool
    adopted: datetime | None = None


Look = Callable[[Process], Facts]


def attribute(gpu: Gpu, record: GpuRecord, stays: Sequence[Stay], facts: Look = processes.facts_of) -> Gpu:
    """The GPU with `allocation`, `by` and `system` of all its processes and its instances' set."""
    here = {stay.allocation: stay for stay in stays if stay.gpu == gpu.uuid}
    held = {one.allocation: one for one in record.wanted.layout.held} if record.wanted else {}
    instances = gpu.instances and tuple(
        replace(one, processes=_all(one.processes, _of_instance(one, record, held, here), facts))
        for one in gpu.instances
    )
    inside = {one.pid: one for some in instances or () for one in some.processes or ()}
    # In MIG mode everything runs in instances: where they could not be read, nothing is anybody's.
    undivided = gpu.mig is False or gpu.mig_capable is False
    claims = _of_gpu(held, here, record) if undivided and not instances else []
    return replace(gpu, instances=instances, processes=_all(gpu.processes, claims, facts, inside))


def booked(record: GpuRecord, stays: Sequence[Stay]) -> bool:
    """Whether anybody holds, or is about to hold, anything of a GPU; `stays` are those on it."""
    return bool(stays or (record.wanted and record.wanted.layout.held))


def everything_on(gpu: Gpu) -> tuple[Process, ...]:
    """Each process of a GPU once, those of its instances as well; not what could not be read."""
    found = {one.pid: one for one in gpu.processes or ()}
    for instance in gpu.instances or ():
        found.update({one.pid: one for one in instance.processes or ()})
    return tuple(found.values())


def host(gpu: Gpu, record: GpuRecord, process: Process) -> str | None:
    """The one allocation in whose place a process runs, be it theirs or not; None if there is no such."""
    for instance in gpu.instances or ():
        if any(one.pid == process.pid for one in instance.processes or ()):
            made = record.owns(span_of(instance))
            return made.allocation if made else None
    held = record.wanted.layout.held if record.wanted else ()
    return held[0].allocation if len(held) == 1 and held[0].profile_id is None else None


def is_system(process: Process, facts: Facts) -> bool:
    """By the executable, where root alone can have put it; a name alone is anybody's to choose."""
    if facts.container is not None:
        small = process.memory_mib is not None and process.memory_mib < _WORK_MIB
        return facts.program in SYSTEM and facts.uid == 0 and small
    if facts.program is not None:
        return facts.program in SYSTEM
    return facts.name in SYSTEM and facts.uid is not None and facts.uid < _FIRST_USER


def _of_instance(
    one: Instance, record: GpuRecord, held: dict[str, Held], stays: dict[str, Stay]
) -> list[Claim]:
    """Of an instance, only the allocation that it was made for."""
    made = record.owns(span_of(one))
    return [_claim(made.allocation, held, stays, adopted=made.adopted)] if made else []


def _of_gpu(held: dict[str, Held], stays: dict[str, Stay], record: GpuRecord) -> list[Claim]:
    """Of a whole GPU or its shares: what is held, and what is over but may still run."""
    whole = [name for name, one in held.items() if one.profile_id is None]
    over = [name for name, stay in stays.items() if stay.ending and name not in held]
    adopted = record.whole.allocation if record.whole and record.whole.adopted else None
    return [_claim(name, held, stays, adopted=name == adopted) for name in (*whole, *over)]


def _claim(name: str, held: dict[str, Held], stays: dict[str, Stay], *, adopted: bool) -> Claim:
    stay, layout = stays.get(name), held.get(name)
    known = stay or layout
    return Claim(
        allocation=name,
        reservation=known.reservation if known else "",
        users=frozenset(known.users if known else ()),
        holder=(stay.team, stay.owner) if stay else None,
        in_force=layout is not None and not (stay and stay.ending),
        adopted=stay.start if stay and adopted else None,
    )


def _all(
    found: tuple[Process, ...] | None, claims: list[Claim], facts: Look, known: dict[int, Any] | None = None
) -> tuple[Process, ...] | None:
    """`known` are processes that were attributed already, by pid: a GPU shows its instances' too."""
    if found is None:
        return None
    return tuple(_with(one, (known or {}).get(one.pid), claims, facts) for one in found)


def _with(one: Process, known: Process | None, claims: list[Claim], facts: Look) -> Process:
    if known is not None:
        return msgspec.structs.replace(one, system=known.system, allocation=known.allocation, by=known.by)
    about = facts(one)
    if is_system(one, about):
        return msgspec.structs.replace(one, system=True, allocation=None, by=None)
    allocation, by = whose(about, claims)
    return msgspec.structs.replace(one, system=False, allocation=allocation, by=by)


def whose(facts: Facts, claims: Sequence[Claim]) -> tuple[str | None, str | None]:
    """The allocation and what says so, the strongest proof first; (None, None) without, or with a doubt."""
    for by, proves in _PROOFS:
        fitting = {_heir(one, claims) for one in claims if proves(facts, one)}
        if len(fitting) > 1:  # of two stays of one user the one that is over is not meant
            fitting = {one for one in fitting if one.in_force}
        if len(fitting) == 1:
            return fitting.pop().allocation, by
        if fitting:
            break
    return None, None


def _heir(claim: Claim, claims: Sequence[Claim]) -> Claim:
    """Back-to-back is one stay: what ran for the part that is over goes on for the next part."""
    if claim.in_force or claim.holder is None:
        return claim
    heirs = [one for one in claims if one.in_force and one.holder == claim.holder]
    return heirs[0] if len(heirs) == 1 else claim


def _by_device(facts: Facts, claim: Claim) -> bool:
    return claim.allocation in facts.labels.devices


def _by_label(facts: Facts, claim: Claim) -> bool:
    return facts.labels.allocation == claim.allocation


def _by_reservations_label(facts: Facts, claim: Claim) -> bool:
    return _is(facts.labels.reservation, claim.reservation)


def _by_environment(facts: Facts, claim: Claim) -> bool:
    return _counts(facts, claim) and facts.marks.get("GPUPOOL_ALLOCATION") == claim.allocation


def _by_reservations_environment(facts: Facts, claim: Claim) -> bool:
    return _counts(facts, claim) and _is(facts.marks.get("GPUPOOL_RESERVATION"), claim.reservation)


def _counts(facts: Facts, claim: Claim) -> bool:
    """A variable is anybody's to set: it counts for the holder's own accounts and root in a container."""
    return facts.root_inside or facts.user in claim.users


def _by_user(facts: Facts, claim: Claim) -> bool:
    """The uid in a container is its image's choice, and means an account only below that user's own slice."""
    own = facts.container is None or facts.container.rootless
    return own and facts.user is not None and facts.user in claim.users


def _by_adoption(facts: Facts, claim: Claim) -> bool:
    """What ran there when it was adopted, under whatever account; what came later has to prove itself."""
    began = facts.started_at
    return began is not None and claim.adopted is not None and began <= claim.adopted


def _is(said: str | None, reservation: str) -> bool:
    return bool(reservation) and said == reservation


#: The strongest first; what names the very allocation comes before what names its reservation.
_PROOFS: tuple[tuple[str, Callable[[Facts, Claim], bool]], ...] = (
    ("cdi", _by_device),
    ("label", _by_label),
    ("label", _by_reservations_label),
    ("environment", _by_environment),
    ("environment", _by_reservations_environment),
    ("user", _by_user),
    ("adopted", _by_adoption),
)
