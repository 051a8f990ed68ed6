"""What befalls a simulated machine from outside: reboots, errors, losses, users' processes.

Each function changes the state of `folder` in one step; a driver that runs on it
meets the change at its next call. Raises LookupError for what is not there and
ValueError for what makes no sense.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from gettext import gettext as _
from pathlib import Path

from agents import processes, simulator_driver, simulator_processes
from agents.simulator_driver import children, mig_devices, mig_uuid
from agents.simulator_hardware import THROTTLE, model, profile_mib, total_mib
from agents.simulator_state import Child, Gpu, GpuInstance, Machine, Store, Xid

#: The error that says "GPU has fallen off the bus".
XID_LOST = 79
_KEPT_XIDS = 100
_PROHIBITED = 2
PROCESS_MIB = 512


def reboot(folder: Path) -> None:
    """As a real one: processes and instances are gone, MIG mode stays on Ampere only
    (where a pending change comes true), a lost GPU is back, the boot id is new.

    Who has the driver open keeps it: a simulated machine boots under its agent."""
    with Store(folder).edit() as machine:
        _end(machine)
        for gpu in machine.gpus:
            entry = model(gpu)
            gpu.pending = gpu.pending and entry is not None and entry.mode_change == "reset"
            simulator_driver.reset(gpu)
            gpu.lost = False
            gpu.busy = gpu.throttle = None
            gpu.compute_mode = gpu.links_down = 0
        machine.busy, machine.xids = {}, []
        machine.boot_id = str(uuid.uuid4())


def xid(folder: Path, gpu: int, number: int, slice: int | None = None) -> None:
    """The driver reports an error event; 79 also takes the GPU off the bus."""
    if number < 1:
        raise ValueError(_("{number} is no Xid").format(number=number))
    with Store(folder).edit() as machine:
        card = _gpu(machine, gpu)
        gi = ci = None
        if slice is not None:
            instance = _instance(card, slice)
            gi, ci = instance.id, instance.inner[0].id
        machine.xids.append(Xid(seq=machine.draw(), gpu=card.uuid, number=number, gi=gi, ci=ci))
        del machine.xids[:-_KEPT_XIDS]
        card.lost = card.lost or number == XID_LOST


def lose(folder: Path, gpu: int) -> None:
    """From now on every call on this GPU answers GPU_IS_LOST, until a reboot."""
    with Store(folder).edit() as machine:
        _gpu(machine, gpu).lost = True


def reset(folder: Path, gpu_uuid: str) -> None:
    """As `nvidia-smi --gpu-reset`: refused (ValueError) while anybody has the driver open or computes,
    without permission, where a virtual machine cannot, and for a lost GPU, which it does not cure."""
    with Store(folder).edit() as machine:
        gpu = machine.gpu(gpu_uuid)
        if gpu is None:
            raise LookupError(_("there is no GPU {uuid}").format(uuid=gpu_uuid))
        holders = [*(str(child.pid) for child in children(machine, gpu)), *simulator_driver.clients(machine)]
        if gpu.lost:
            raise ValueError(_("GPU {uuid} is lost and cannot be reset").format(uuid=gpu_uuid))
        if gpu.passthrough or not machine.permission:
            raise ValueError(_("GPU {uuid} cannot be reset here").format(uuid=gpu_uuid))
        if holders:
            raise ValueError(
                _("GPU {uuid} is in use by {pids}").format(uuid=gpu_uuid, pids=", ".join(holders))
            )
        simulator_driver.reset(gpu)


def ecc(folder: Path, gpu: int, *, corrected: int = 0, uncorrected: int = 0) -> None:
    """So many more errors of memory since the driver came up."""
    if min(corrected, uncorrected) < 0:
        raise ValueError(_("errors never become fewer"))
    with Store(folder).edit() as machine:
        card = _gpu(machine, gpu)
        card.ecc_corrected += corrected
        card.ecc_uncorrected += uncorrected


def remap(folder: Path, gpu: int, *, correctable: bool = False, failed: bool = False) -> None:
    """One more row of memory is replaced, which the next reset completes, or could not be."""
    with Store(folder).edit() as machine:
        card = _gpu(machine, gpu)
        if failed:
            card.remap_failed = True
            return
        card.remap_pending = True
        card.remapped_correctable += int(correctable)
        card.remapped_uncorrectable += int(not correctable)


def throttle(folder: Path, gpu: int, *reasons: str) -> None:
    """Clocks are held down for these reasons; without any, as the load makes them."""
    for reason in reasons:
        if reason not in THROTTLE:
            raise ValueError(
                _("{reason!r} is none of: {known}").format(reason=reason, known=", ".join(THROTTLE))
            )
    with Store(folder).edit() as machine:
        _gpu(machine, gpu).throttle = sum({THROTTLE[reason] for reason in reasons}) if reasons else None


def links_down(folder: Path, gpu: int, count: int) -> None:
    """So many of its NVLinks are down, until a reboot."""
    if count < 0:
        raise ValueError(_("{number} is no count").format(number=count))
    with Store(folder).edit() as machine:
        _gpu(machine, gpu).links_down = count


def process(
    folder: Path,
    gpu: int,
    slice: int | None = None,
    uid: int | None = None,
    memory_mib: int = PROCESS_MIB,
    *,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    mps: bool = False,
) -> int:
    """Start a real idle process that the driver reports on the GPU, or on its
    `slice`-th instance by start (needed while MIG is on). Returns its pid.

    `argv` is another program, which must idle, too; `env` is added to its environment; `mps` makes
    it a client of MPS.
    Raises PermissionError when this user may not start one for `uid`.
    """
    with Store(folder).edit() as machine:
        child = _child(machine, gpu, slice, memory_mib)
        child.mps = mps
        child.pid, child.started = simulator_processes.start(uid, argv, env)
        machine.children.append(child)
    return child.pid


def attach(
    folder: Path,
    gpu: int,
    pid: int,
    slice: int | None = None,
    memory_mib: int = PROCESS_MIB,
    *,
    mps: bool = False,
) -> None:
    """From now on the driver reports this living process, too. It is never ended from here."""
    began = processes.started(pid)
    if began is None:
        raise LookupError(_("there is no process {pid}").format(pid=pid))
    with Store(folder).edit() as machine:
        child = _child(machine, gpu, slice, memory_mib)
        child.pid, child.started, child.ours, child.mps = pid, began, False, mps
        machine.children.append(child)


def _child(machine: Machine, gpu: int, slice: int | None, memory_mib: int) -> Child:
    """A place on the GPU for a process that is still to be named; forgets those that ended."""
    card = _gpu(machine, gpu)
    if card.lost:
        raise ValueError(_("GPU {gpu} is lost").format(gpu=gpu))
    if card.compute_mode == _PROHIBITED:
        raise ValueError(_("GPU {gpu} takes no process: its compute mode is prohibited").format(gpu=gpu))
    instance, limit = _room_for_process(card, gpu, slice)
    used = sum(child.memory_mib for child in children(machine, card, instance))
    if not 0 <= memory_mib <= limit - used:
        raise ValueError(
            _("{wanted} MiB do not fit: {free} MiB are free").format(wanted=memory_mib, free=limit - used)
        )
    machine.children = [one for one in machine.children if simulator_processes.lives(one.pid, one.started)]
    gi, ci = (instance.id, instance.inner[0].id) if instance else (None, None)
    return Child(pid=0, started="", gpu=card.uuid, gi=gi, ci=ci, memory_mib=memory_mib)


def _room_for_process(card: Gpu, gpu: int, slice: int | None) -> tuple[GpuInstance | None, int]:
    """The GPU instance that a process runs in, if any, and how much memory there is."""
    if not card.mig:
        if slice is not None:
            raise ValueError(_("MIG is off on GPU {gpu}: it has no slices").format(gpu=gpu))
        return None, total_mib(card)
    if slice is None:
        raise ValueError(_("GPU {gpu} is in MIG mode: say which slice").format(gpu=gpu))
    instance = _instance(card, slice)
    entry = model(card)
    profile = entry.by_id(instance.profile_id) if entry else None
    assert profile is not None
    return instance, profile_mib(card, profile)


def busy(folder: Path, mig: str, percent: int) -> None:
    """Say how busy a MIG device is, or by its GPU UUID a GPU whose MIG mode is off."""
    if not 0 <= percent <= 100:
        raise ValueError(_("{percent} is no percentage").format(percent=percent))
    with Store(folder).edit() as machine:
        for gpu in machine.gpus:
            if gpu.uuid == mig and not gpu.mig:
                gpu.busy = percent
                return
            if mig in (mig_uuid(gpu, *pair) for pair in mig_devices(gpu)):
                machine.busy[mig] = percent
                return
    raise LookupError(_("there is no MIG device or whole GPU {uuid}").format(uuid=mig))


def permission(folder: Path, granted: bool) -> None:
    """Without it every order to the driver answers NO_PERMISSION."""
    with Store(folder).edit() as machine:
        machine.permission = granted


def fail_next(folder: Path, function: str, *codes: int) -> None:
    """The next calls of this C function fail with these NVML numbers, one each."""
    with Store(folder).edit() as machine:
        machine.faults.setdefault(function, []).extend(codes)


def stop_processes(folder: Path) -> int:
    """End every process that was started here, and no other; returns how many still ran."""
    with Store(folder).edit() as machine:
        return _end(machine)


def _end(machine: Machine) -> int:
    running = [
        (child.pid, child.started)
        for child in machine.children
        if child.ours and simulator_processes.lives(child.pid, child.started)
    ]
    simulator_processes.stop(running)
    machine.children = []
    return len(running)


def _gpu(machine: Machine, index: int) -> Gpu:
    if not 0 <= index < len(machine.gpus):
        raise LookupError(
            _("there is no GPU {index}, only 0 to {last}").format(index=index, last=len(machine.gpus) - 1)
        )
    return machine.gpus[index]


def _instance(gpu: Gpu, slice: int) -> GpuInstance:
    """The `slice`-th instance by start, out of those that something can run in."""
    usable = sorted((one for one in gpu.instances if one.inner), key=lambda one: one.start)
    if not usable:
        raise LookupError(_("GPU {gpu} has no slices now").format(gpu=gpu.index))
    if not 0 <= slice < len(usable):
        raise LookupError(
            _("GPU {gpu} has no slice {slice}, only 0 to {last}").format(
                gpu=gpu.index, slice=slice, last=len(usable) - 1
            )
        )
    return usable[slice]
