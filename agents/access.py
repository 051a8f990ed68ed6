"""How holders get their slice, and nobody else: files of CDI, devices of systemd, or advice only."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from agents import access_unix, cdi, devices, simulator_devices
from agents.access_unix import Closed, Slices
from agents.cdi import Mount, Slice
from agents.devices import Node
from agents.gpu import DriverRefusal, Gpu
from agents.place import Place
from agents.plan import span_of
from agents.simulator_state import Store
from pool.core import connect
from pool.core.connect import Part
from pool.core.wire import Held, Layout

log = logging.getLogger("agents.access")


class Access:
    """One thread changes (the applier). What it wrote is on disk, so that it is taken back after a crash."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._slices = Slices(place)
        if not place.real:
            with suppress(FileNotFoundError):  # a folder without a simulated driver has no devices
                simulator_devices.lay_out(place.root, len(Store(place.folder).read().gpus))

    def offered(self) -> tuple[str, ...]:
        """What works on this node: advisory always; cdi, unix where their parts are there."""
        found = ["advisory"]
        if cdi.works(self._place):
            found.append("cdi")
        if access_unix.works(self._place):
            found.append("unix")
        return tuple(found)

    def bring(
        self,
        gpu: Gpu,
        layout: Layout,
        environment: Mapping[str, Mapping[str, str]],
        check: Callable[[], None],
    ) -> bool:
        """Give each holder of `layout` that is in force its way in, take everybody else's; True if changed.

        `environment` holds, by allocation, what a share has to set. Idempotent.
        `check` raises when nothing may be changed now. Raises `DriverRefusal` (access, no_permission).
        Everybody else's is taken also when somebody's cannot be given.
        """
        refusals: list[DriverRefusal] = []
        slices: dict[str, Slice] = {}
        closed = Closed(minor=devices.minor_of(self._place, gpu)) if layout.access == "unix" else None
        for held in layout.held:
            try:
                if layout.access == "advisory":
                    self._channel(held)
                    continue
                nodes = self._nodes(gpu, held)
                if layout.access == "cdi":
                    slices[held.allocation] = self._slice(gpu, layout, held, nodes, environment)
                elif closed is not None:
                    closed = _opened(closed, _accounts(held), nodes)
            except DriverRefusal as refusal:
                refusals.append(refusal)
        changed = cdi.bring(self._place, gpu.uuid, slices, check)
        changed |= self._slices.bring(gpu.uuid, closed, check)
        if refusals:
            raise refusals[0]
        return changed

    def _nodes(self, gpu: Gpu, held: Held) -> tuple[Node, ...]:
        """The device files that this holder needs, and no other's."""
        minor = devices.minor_of(self._place, gpu)
        common = (
            *devices.of_everybody(self._place),
            devices.of_card(self._place, minor),
            *self._channel(held),
        )
        if held.profile_id is None:
            return common
        one = next((one for one in gpu.instances or () if span_of(one) == span_of(held)), None)
        if one is None:
            raise DriverRefusal("access", None, f"the instance at {held.start} is not there")
        return (*common, *devices.of_instance(self._place, minor, one))

    def _channel(self, held: Held) -> tuple[Node, ...]:
        """Of GPUs on several nodes; the file has to be there also where nothing is enforced."""
        return () if held.imex is None else (devices.of_imex(self._place, held.imex),)

    def _slice(
        self,
        gpu: Gpu,
        layout: Layout,
        held: Held,
        nodes: tuple[Node, ...],
        environment: Mapping[str, Mapping[str, str]],
    ) -> Slice:
        part = Part(held.allocation, held.reservation, gpu.uuid, share=held.share, sharing=layout.sharing)
        own = cdi.mark(self._place, held.allocation)
        said = {
            # NVIDIA's runtime shall not add what the holder asks for.
            "NVIDIA_VISIBLE_DEVICES": "void",
            **connect.marks(part),
            **environment.get(held.allocation, {}),
        }
        if held.share and layout.sharing == "hami":
            said |= {"CUDA_DISABLE_CONTROL": "false", "CUDA_OVERSUBSCRIBE": "false"}
        mounts = [Mount(str(own), f"{connect.RUN}/slices/{held.allocation}"), *self._share_mounts(part)]
        return Slice(held.allocation, nodes, tuple(said.items()), tuple(mounts))

    def _share_mounts(self, part: Part) -> Iterable[Mount]:
        """What a share needs beside its devices, at the same paths as on the machine."""
        if part.share is None:
            return
        run = str(self._place.run)
        if part.sharing == "mps":
            yield _same(connect.pipe(part.gpu, run))
            yield _same("/dev/shm")  # noqa: S108  clients and server meet there
        elif part.sharing == "hami":
            library, preload = f"{run}/{connect.LIBRARY}", f"{run}/{connect.PRELOAD}"
            yield Mount(os.path.realpath(library), library)
            yield Mount(preload, "/etc/ld.so.preload")  # holds whatever the tenant sets or unsets
            yield _same(connect.cache(part.allocation, run))
            yield Mount(str(self._place.root / connect.LOCKS[1:]), connect.LOCKS, writable=True)


def _same(path: str) -> Mount:
    return Mount(path, path, writable=True)


def _opened(closed: Closed, accounts: Iterable[int], nodes: Iterable[Node]) -> Closed:
    """The same GPU with these devices open to these accounts, too."""
    found = dict(closed.grants)
    for uid, rules in access_unix.grants(accounts, nodes).items():
        found[uid] = tuple(sorted({*found.get(uid, ()), *rules}))
    return Closed(minor=closed.minor, grants=found)


def _accounts(held: Held) -> tuple[int, ...]:
    """The uids of a holder's accounts; raises `DriverRefusal` when none of them is on this machine."""
    found = []
    for name in held.users:
        with suppress(KeyError):
            found.append(pwd.getpwnam(name).pw_uid)
    if not found:
        named = ", ".join(held.users) or "none is named"
        raise DriverRefusal("access", None, f"no account of this holder is on the machine: {named}")
    return tuple(found)
