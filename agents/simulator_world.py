"""What befalls a simulated machine from outside: reboots, errors, losses, users' processes.

Each function changes the state of `folder` in one step; a driver that runs on it
meets the change at its next call. Raises LookupError for what is not there and
ValueError for what makes no sense.
"""

from __future__ import annotations

import uuid
from gettext import gettext as _
from pathlib import Path

from agents import simulator_processes
from agents.simulator_driver import children, mig_devices, mig_uuid
from agents.simulator_hardware import model, profile_mib, total_mib
from agents.simulator_state import Child, Gpu, GpuInstance, Machine, Store, Xid

#: The error that says "GPU has fallen off the bus".
XID_LOST = 79
_KEPT_XIDS = 100
PROCESS_MIB = 512


def reboot(folder: Path) -> None:
    """As a real one: processes and instances are gone, MIG mode stays on Ampere only
    (where a pending change comes true), a lost GPU is back, the boot id is new."""
    with Store(folder).edit() as machine:
        _end(machine)
        for gpu in machine.gpus:
            entry = model(gpu)
            gpu.mig = gpu.pending = gpu.pending and entry is not None and entry.mode_change == "reset"
            gpu.epoch += 1
            gpu.lost = False
            gpu.busy = None
            gpu.instances = []
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


def process(
    folder: Path, gpu: int, slice: int | None = None, uid: int | None = None, memory_mib: int = PROCESS_MIB
) -> int:
    """Start a real idle process that the driver reports on the GPU, or on its
    `slice`-th instance by start (needed while MIG is on). Returns its pid.

    Raises PermissionError when this user may not start one for `uid`.
    """
    with Store(folder).edit() as machine:
        card = _gpu(machine, gpu)
        if card.lost:
            raise ValueError(_("GPU {gpu} is lost").format(gpu=gpu))
        instance, limit = _room_for_process(card, gpu, slice)
        used = sum(child.memory_mib for child in children(machine, card, instance))
        if not 0 <= memory_mib <= limit - used:
            raise ValueError(
                _("{wanted} MiB do not fit: {free} MiB are free").format(wanted=memory_mib, free=limit - used)
            )
        pid, started = simulator_processes.start(uid)
        machine.children = [
            one for one in machine.children if simulator_processes.lives(one.pid, one.started)
        ]
        gi, ci = (instance.id, instance.inner[0].id) if instance else (None, None)
        child = Child(pid=pid, started=started, gpu=card.uuid, gi=gi, ci=ci, memory_mib=memory_mib)
        machine.children.append(child)
    return pid


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
        if simulator_processes.lives(child.pid, child.started)
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
