"""The one process of a node: worker in the main thread, watch and applier in their own."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

from agents import config, worker
from agents.apply import Applier
from agents.driver import Driver
from agents.gpu import DriverRefusal
from agents.place import Place
from agents.post import portal
from agents.record import Ledger
from agents.watch import Watch, Who


class Agent:
    def __init__(self, place: Place, own: config.Config, version: str) -> None:
        simulated = own.simulated is not None
        self._own = own
        self._line = worker.Line()
        self._driver = driver = Driver()
        boot_id = partial(config.boot_id, place, simulated=simulated)
        ledger = Ledger(place, boot_id)
        who = Who(
            agent=version,
            node=own.node,
            token=own.token,
            machine_id=config.machine_id(place, simulated=simulated),
            boot_id=boot_id,
            report_s=own.report_s,
        )
        self._applier = Applier(own.node, driver, ledger, place)
        door = portal(own.portal)
        self._watch = Watch(who, door, place, driver, ledger, self._applier, lambda: self._line.up)

    def start(self) -> None:
        with suppress(DriverRefusal):  # the watch says so, and opens it when it answers
            self._driver.open()
        self._applier.start()
        self._watch.start()

    def serve(self, stopping: threading.Event) -> None:
        """Take commands from the broker until the end; without a broker they come with the answers."""
        if self._own.broker_url is None:
            stopping.wait()
            return
        worker.run(self._own.broker_url, self._own.node, self._applier.offer, self._line, stopping)

    def stop(self, patience_s: float) -> None:
        self._watch.stop(patience_s)
        self._applier.stop(patience_s)
