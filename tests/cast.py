"""The fixed cast of every test that needs a database, and nodes that are simulated by their reports.

Teams vision and speech, pool main. Lena leads vision, Milo is its member, the
robot its service account; Sam of speech is the stranger; Ada approves, Otto
operates, Anna is the admin. A `SimNode` does what an agent does, but at once.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pool.core import mig, wire
from pool.models import Command, Gpu, Membership, Node, Pool, QuotaLine, Team, User
from pool.queries import clock
from pool.services import inventory, telemetry

PASSWORD = "right-horse-battery"
#: A moment for tests that pass `now` themselves.
NOW = datetime(2027, 3, 1, 10, 0, tzinfo=UTC)


@dataclass
class Cast:
    vision: Team
    speech: Team
    main: Pool
    lena: User
    milo: User
    robot: User
    sam: User
    ada: User
    otto: User
    anna: User


def make_person(name: str, *roles: str, kind: str = User.Kind.PERSON) -> User:
    user = User(username=name, first_name=name.capitalize(), kind=kind, roles=sorted(roles))
    user.is_staff = "admin" in roles
    if kind == User.Kind.PERSON:
        user.set_password(PASSWORD)
    else:
        user.set_unusable_password()
    user.save()
    return user


def make_cast() -> Cast:
    vision = Team.objects.create(name="vision", title="Vision")
    speech = Team.objects.create(name="speech", title="Speech")
    main = Pool.objects.create(name="main", title="Main")
    cast = Cast(
        vision=vision,
        speech=speech,
        main=main,
        lena=make_person("lena"),
        milo=make_person("milo"),
        robot=make_person("robot", kind=User.Kind.SERVICE),
        sam=make_person("sam"),
        ada=make_person("ada", "approver"),
        otto=make_person("otto", "operator"),
        anna=make_person("anna", "admin"),
    )
    for user, team, role in (
        (cast.lena, vision, "lead"),
        (cast.milo, vision, "member"),
        (cast.robot, vision, "member"),
        (cast.sam, speech, "lead"),
    ):
        Membership.objects.create(user=user, team=team, role=role)
    QuotaLine.objects.create(team=vision, pool=main, guaranteed_milli=8000, cap_milli=16000)
    QuotaLine.objects.create(team=speech, pool=main, guaranteed_milli=4000, cap_milli=8000)
    return cast


@pytest.fixture
def cast(db: None) -> Cast:
    return make_cast()


@pytest.fixture
def vision(cast: Cast) -> Team:
    return cast.vision


@pytest.fixture
def speech(cast: Cast) -> Team:
    return cast.speech


@pytest.fixture
def main_pool(cast: Cast) -> Pool:
    return cast.main


@pytest.fixture
def lena(cast: Cast) -> User:
    return cast.lena


@pytest.fixture
def milo(cast: Cast) -> User:
    return cast.milo


@pytest.fixture
def robot(cast: Cast) -> User:
    return cast.robot


@pytest.fixture
def sam(cast: Cast) -> User:
    return cast.sam


@pytest.fixture
def ada(cast: Cast) -> User:
    return cast.ada


@pytest.fixture
def otto(cast: Cast) -> User:
    return cast.otto


@pytest.fixture
def anna(cast: Cast) -> User:
    return cast.anna


# --- Nodes ---------------------------------------------------------------------


@dataclass
class SimGpu:
    """A card as its driver would show it; `model` is a name of the catalogue."""

    uuid: str
    index: int
    model: str
    mig: bool = False
    instances: list[wire.Instance] = field(default_factory=list)
    processes: tuple[wire.Process, ...] = ()
    held: tuple[str, ...] = ()
    generation: int = 0
    trouble: wire.Trouble | None = None
    lost: bool = False

    @property
    def catalogue(self) -> mig.Model:
        return mig.models()[self.model]

    def offers(self) -> tuple[wire.Offer, ...]:
        return tuple(
            wire.Offer(
                profile_id=p.profile_id,
                name=f"MIG {p.name}",
                compute_slices=p.compute_slices,
                size=p.size,
                memory_mib=p.memory_mib,
                sm=p.sm,
                max_instances=p.max_instances,
                starts=p.starts,
            )
            for p in self.catalogue.profiles
        )

    def report(self, **over: Any) -> wire.GpuReport:
        values: dict[str, Any] = {
            "uuid": self.uuid,
            "index": self.index,
            "name": self.catalogue.nvml_names[0],
            "pci_bus_id": f"00000000:{self.index + 16:02X}:00.0",
            "pci_device_id": next(iter(self.catalogue.pci_device_ids), None),
            "memory_total_mib": self.catalogue.total_memory_mib,
            "mig_capable": True,
            "mig": self.mig,
            "mig_pending": self.mig,
            "grid": self.catalogue.grid,
            "offers": self.offers(),
            "instances": tuple(self.instances),
            "processes": self.processes,
            "generation": self.generation,
            "held": self.held,
            "trouble": self.trouble,
            "lost": self.lost,
            "power_w": wire.Window(min=90, mean=100.5, max=110, last=101),
            "temperature_c": wire.Window(min=30, mean=31, max=33, last=31),
        }
        return wire.GpuReport(**values | over)

    def carve(self, command: wire.Command) -> None:
        """Look like the command, unless it is an older one; what others made stays."""
        if command.generation < self.generation:
            return
        layout = command.layout
        keep = {(i.start, i.size): i for i in self.instances if not i.owned}
        self.instances = list(keep.values()) + [self._instance(h) for h in layout.held if layout.mig]
        self.mig, self.generation, self.trouble = layout.mig, command.generation, None
        self.held = tuple(h.allocation for h in layout.held)

    def _instance(self, held: wire.Held) -> wire.Instance:
        assert held.profile_id is not None
        return self.instance(held.profile_id, held.start, held.size, held.profile, allocation=held.allocation)

    def instance(
        self, profile_id: int, start: int, size: int, profile: str | None, **over: Any
    ) -> wire.Instance:
        values: dict[str, Any] = {
            "gi": 1 + start,
            "ci": 0,
            "mig_uuid": f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.uuid}/{start}/{profile_id}')}",
            "profile_id": profile_id,
            "profile": profile,
            "start": start,
            "size": size,
            "owned": True,
            "processes": (),
        }
        return wire.Instance(**values | over)


@dataclass
class SimNode:
    """A node without a process: it reports when told to, and carves when it follows."""

    row: Node
    gpus: list[SimGpu]
    boot_id: str = "boot-1"
    seq: int = 0
    broker: bool = True

    def report(self, **over: Any) -> wire.Report:
        """The next report; `over` replaces fields of it."""
        self.seq += 1
        values: dict[str, Any] = {
            "agent": "0.1.0",
            "node": self.row.name,
            "machine_id": self.row.machine_id,
            "boot_id": self.boot_id,
            "seq": self.seq,
            "sampled_at": clock.real_now(),
            "driver": "580.65.06",
            "broker": self.broker,
            "gpus": tuple(gpu.report() for gpu in self.gpus),
        }
        return wire.Report(**values | over)

    def send(
        self, report: wire.Report | None = None, now: datetime | None = None, received: datetime | None = None
    ) -> wire.Answer:
        """Report as the door would hand it on, over the wire and back."""
        message = msgspec.json.encode(report or self.report())
        return telemetry.record(
            node=Node.objects.select_related("pool").get(pk=self.row.pk),
            report=msgspec.json.decode(message, type=wire.Report),
            received=received or clock.real_now(),
            now=now,
        )

    def carve(self) -> list[wire.Command]:
        """Carry out every open command, as if its nudge had come."""
        done = []
        for row in Command.objects.filter(node=self.row, state="open").select_related("gpu"):
            command = wire.Command(
                id=str(row.pk),
                node=self.row.name,
                gpu=row.gpu.uuid,
                generation=row.generation,
                layout=msgspec.convert(row.layout, wire.Layout),
            )
            self.gpu(row.gpu.uuid).carve(command)
            done.append(command)
        return done

    def follow(self, now: datetime | None = None) -> wire.Answer:
        """Carve what is open, and report it."""
        self.carve()
        return self.send(now=now)

    def reboot(self) -> None:
        """Instances are gone, MIG mode is off (as since Hopper), and numbers start anew."""
        self.boot_id, self.seq = f"boot-{uuid.uuid4().hex[:8]}", 0
        for gpu in self.gpus:
            gpu.instances, gpu.held, gpu.mig = [], (), False

    def gpu(self, uuid_: str) -> SimGpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid_)

    def rows(self) -> list[Gpu]:
        return list(Gpu.objects.filter(node=self.row).order_by("index"))


def enrol_node(
    pool: Pool,
    name: str = "node-1",
    model: str = "H100-80GB",
    count: int = 1,
    *,
    use: str = "mig",
    managed: bool = True,
) -> SimNode:
    """A node that has joined `pool` and reported `count` GPUs; managed ones look as commanded already."""
    row = Node.objects.create(pool=pool, name=name, machine_id=f"machine-{name}")
    gpus = [
        SimGpu(f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}/{index}')}", index, model)
        for index in range(count)
    ]
    node = SimNode(row, gpus)
    node.send()
    if managed:
        uuids = [gpu.uuid for gpu in gpus]
        inventory.set_use(actor=None, gpus=uuids, use=use, now=clock.now())
        inventory.set_managed(actor=None, gpus=uuids, managed=True, now=clock.now())
        node.follow()
    return node


@pytest.fixture
def node(cast: Cast) -> SimNode:
    """One managed H100-80GB for slices, in pool main."""
    return enrol_node(cast.main)
