"""The one process of a node: worker in the main thread, watch and applier and what waits in their own."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

from agents import config, imex, worker
from agents.apply import Applier
from agents.dcgm import Dcgm
from agents.driver import Driver
from agents.gpu import DriverRefusal
from agents.imex import Imex
from agents.parts import assemble
from agents.place import Place
from agents.post import portal
from agents.watch import Watch, Who


class Agent:
    """`place` is settled: it knows whether the machine is a real one."""

    def __init__(self, place: Place, own: config.Config, version: str) -> None:
        simulated = own.simulated is not None
        self._own = own
        self._line = worker.Line()
        boot_id = partial(config.boot_id, place, simulated=simulated)
        # The host's own daemon knows nothing of a simulated machine.
        driver = Driver(Dcgm(own.asks_dcgm), Imex(() if simulated else imex.PROGRAM))
        self._parts = assemble(place, driver, boot_id, own)
        who = Who(
            agent=version,
            node=own.node,
            token=own.token,
            machine_id=config.machine_id(place, simulated=simulated),
            boot_id=boot_id,
            report_s=own.report_s,
        )
        self._applier = Applier(own.node, self._parts)
        door = portal(own.portal, own.ca_file)
        self._watch = Watch(who, door, self._parts, self._applier, lambda: self._line.up, own.exports_on)

    def start(self) -> None:
        with suppress(DriverRefusal):  # the watch says so, and opens it when it answers
            self._parts.driver.open()
        self._applier.start()
        self._parts.hooks.start()
        self._watch.start()

    def serve(self, stopping: threading.Event) -> None:
        """Take commands from the broker until the end; without a broker they come with the answers."""
        if self._own.broker_url is None:
            stopping.wait()
            return
        worker.run(
            self._own.broker_url,
            self._own.node,
            self._applier.offer,
            self._line,
            stopping,
            ca_file=self._own.ca_file,
        )

    def stop(self, patience_s: float) -> None:
        self._watch.stop(patience_s)
        self._applier.stop(patience_s)
        self._parts.units.leave()  # what a change that is cut here has stopped
        self._parts.hooks.stop(patience_s)
