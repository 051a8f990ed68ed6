"""A pool for tests of decisions: nodes that have just reported, and what they would report next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from pool.core import mig, wire
from pool.core.errors import Code, Refusal
from pool.core.observed import Seen
from pool.core.shapes import Ask, Class, GpuAsk, MigAsk, ShareAsk
from pool.models import (
    Allocation,
    Event,
    Gpu,
    GpuState,
    Membership,
    Node,
    Pool,
    QuotaLine,
    Reservation,
    Team,
    User,
)
from pool.queries import clock
from pool.services import locks, reservations, settling

#: A clock that stands still; nodes report in real time, which has nothing to do with it.
AN_HOUR = timedelta(hours=1)
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
H100 = "H100-80GB"
ONE_SLICE = MigAsk(profile="1g.10gb")
HALF = MigAsk(profile="3g.40gb")
WHOLE = GpuAsk(models=(H100,))
#: A tenth of the compute, and 8 GiB.
SHARE = ShareAsk(memory_mib=8192, guaranteed=10, limit=10)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


@dataclass(frozen=True, slots=True)
class Scene:
    """One pool, two teams, and of the cast (tests/cast.py) those whom bookings need."""

    pool: Pool
    vision: Team
    speech: Team
    lena: User
    milo: User
    sam: User
    otto: User

    def book(
        self,
        ask: Ask = ONE_SLICE,
        *,
        actor: User | None = None,
        team: str = "vision",
        start: datetime | None = None,
        duration: timedelta = AN_HOUR,
        now: datetime = NOON,
        klass: Class = Class.INTERACTIVE,
        **more: object,
    ) -> Reservation:
        """As Lena, who leads vision, or as `actor`: one slice for an hour from now, unless said otherwise."""
        return reservations.book(
            actor=actor or self.lena,
            team=team,
            pool=self.pool.name,
            ask=ask,
            start=start,
            duration=duration,
            klass=klass,
            now=now,
            **more,  # type: ignore[arg-type]
        )


def make_scene(*, cap: int = 100_000, guaranteed: int = 100_000) -> Scene:
    """People and quota, and no node yet."""
    pool = Pool.objects.create(name="main")
    vision, speech = Team.objects.create(name="vision"), Team.objects.create(name="speech")
    scene = Scene(
        pool=pool,
        vision=vision,
        speech=speech,
        lena=_person("lena", vision, "lead"),
        milo=_person("milo", vision, "member"),
        sam=_person("sam", speech, "lead"),
        otto=User.objects.create(username="otto", roles=["operator"]),
    )
    for team in (vision, speech):
        QuotaLine.objects.create(team=team, pool=pool, guaranteed_milli=guaranteed, cap_milli=cap)
    return scene


def _person(name: str, team: Team, role: str) -> User:
    user = User.objects.create(username=name)
    Membership.objects.create(team=team, user=user, role=role)
    return user


def add_node(
    pool: Pool, name: str = "dgx-01", *, mig_gpus: int = 1, whole_gpus: int = 0, model: str = H100
) -> list[Gpu]:
    """A node that has just reported (it stays so for a slow test), all its GPUs managed."""
    known = mig.models()[model]
    node = Node.objects.create(pool=pool, name=name, machine_id=name, received_at=clock.real_now() + AN_HOUR)
    gpus = [
        Gpu(
            node=node,
            index=index,
            uuid=f"GPU-{name}-{index}",
            name=known.nvml_names[0],
            model=model,
            memory_mib=known.total_memory_mib,
            grid=known.grid,
            mig_capable=True,
            profiles=offers(model) if index < mig_gpus else [],
            use=Gpu.Use.MIG if index < mig_gpus else Gpu.Use.WHOLE,
            managed=True,
        )
        for index in range(mig_gpus + whole_gpus)
    ]
    Gpu.objects.bulk_create(gpus)
    GpuState.objects.bulk_create(GpuState(gpu=gpu, received_at=clock.real_now()) for gpu in gpus)
    return gpus


def add_shares(
    pool: Pool,
    name: str = "dgx-02",
    *,
    gpus: int = 1,
    sharing: Gpu.Sharing = Gpu.Sharing.MPS,
    model: str = H100,
) -> list[Gpu]:
    """As `add_node`, with all its GPUs given in shares."""
    made = add_node(pool, name, mig_gpus=0, whole_gpus=gpus, model=model)
    for gpu in made:
        gpu.use, gpu.sharing = Gpu.Use.SHARE, sharing
    Gpu.objects.bulk_update(made, ["use", "sharing"])
    return made


def offers(model: str) -> list[dict[str, object]]:
    """What a driver of this model offers, as rows keep it."""
    found = tuple(
        wire.Offer(
            profile_id=p.profile_id,
            name=p.name,
            compute_slices=p.compute_slices,
            size=p.size,
            memory_mib=p.memory_mib,
            sm=p.sm,
            max_instances=p.max_instances,
            starts=p.starts,
        )
        for p in mig.models()[model].profiles
    )
    built: list[dict[str, object]] = msgspec.to_builtins(found)
    return [{**one, "starts": list(one["starts"])} for one in built]  # type: ignore[call-overload]


def refused(code: Code, call: Callable[[], object]) -> dict[str, Any]:
    """What a refusal tells; it must not have written anything."""
    before = (Reservation.objects.count(), Allocation.objects.count(), Event.objects.count())
    changes = list(Pool.objects.values_list("change", flat=True))
    with pytest.raises(Refusal) as caught:
        call()
    assert caught.value.code == code
    assert (Reservation.objects.count(), Allocation.objects.count(), Event.objects.count()) == before
    assert list(Pool.objects.values_list("change", flat=True)) == changes
    return caught.value.data


# --- What a node would report ---------------------------------------------------


def seen(
    gpu: Gpu,
    *,
    generation: int | None = None,
    leftover: Iterable[wire.Instance] = (),
    held: Collection[str] | None = None,
    trouble: str | None = None,
) -> Seen:
    """The GPU as its wanted layout says, applied at its generation, unless said otherwise."""
    layout = msgspec.convert(gpu.wanted, wire.Layout) if gpu.wanted else wire.Layout(mig=gpu.use == "mig")
    made = [] if held is not None or not layout.mig else [instance(one) for one in layout.held]
    at = gpu.generation if generation is None else generation
    return Seen(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        model=gpu.model,
        pci_bus_id="",
        memory_mib=gpu.memory_mib,
        grid=gpu.grid,
        mig_capable=True,
        mig=layout.mig,
        mig_pending=layout.mig,
        offers=[],
        instances=(*made, *leftover),
        unsure=False,
        processes=[],
        generation=at,
        held=frozenset(one.allocation for one in layout.held) if held is None else frozenset(held),
        trouble=wire.Trouble(generation=at, code=trouble) if trouble else None,
        lost=False,
        fabric_cluster="",
        fabric_clique=None,
    )


def instance(held: wire.Held, owned: bool = True) -> wire.Instance:
    """An instance that was made for `held`; its UUID stays with owner and span."""
    assert held.profile_id is not None
    name = f"{held.owner}/{held.start}/{held.size}"
    return wire.Instance(
        gi=held.start + 1,
        ci=0,
        mig_uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, name)}",
        profile_id=held.profile_id,
        profile=held.profile,
        start=held.start,
        size=held.size,
        owned=owned,
        allocation=held.allocation,
    )


@locks.use_case
def settle(pool: Pool, gpu: Gpu, report: Seen | None = None, now: datetime = NOON) -> Gpu:
    """Take over a report of this GPU, by default that all is as wanted. The GPU as it is afterwards."""
    locked = locks.pool(pool.pk)
    row = locks.gpus([gpu.pk])[0]
    settling.settle_gpu(pool=locked, gpu=row, seen=report or seen(row), now=now, label="node:test")
    return Gpu.objects.get(pk=gpu.pk)
