from __future__ import annotations
import pytest
from pool.core.shapes import Class, GpuAsk, MigAsk
from pool.core.errors import Refusal
from pool.models import *
from pool.models import Team, QuotaLine, Gpu, Reservation
from pool.queries import consistency
from pool.services import lanes, reservations
from tests.scene import *
pytestmark = pytest.mark.django_db

def diffs(now=NOON):
    return [one for one in consistency.differences(now) if not one.kept]

def world(n=4, mig=0, **g):
    s = make_scene(cap=4000, guaranteed=0)
    for name, (gu, lend, unit) in g.items():
        team, _ = Team.objects.get_or_create(name=name)
        QuotaLine.objects.update_or_create(team=team, pool=s.pool, defaults=dict(guaranteed_milli=gu, cap_milli=4000, lend_milli=lend, unit=unit))
    from pool.models import Membership
    for name in g:
        Membership.objects.get_or_create(team=Team.objects.get(name=name), user=s.lena, role="lead")
    add_node(s.pool, mig_gpus=mig, whole_gpus=n)
    return s

def test_kept(capsys):
    s = world(a=(2000, None, "gpu"), c=(1000, 0, "gpu"), vision=(0, None, "gpu"))
    s.book(GpuAsk(count=3), klass=Class.BATCH, duration=hours(6))
    print(diffs())
    try:
        r = s.book(GpuAsk(), team="a")
        print("A got", r.state, r.period.lower - NOON)
    except Refusal as e:
        print("A refused", e.data)
    print(diffs())
    try:
        r = s.book(GpuAsk(), team="c", duration=hours(1))
        print("C got", r.state, r.period.lower - NOON)
    except Refusal as e:
        print("C refused", e.data)
    print(diffs())

def test_inside_elsewhere():
    s = world(n=0, mig=2, a=(1000, None, "gpu"), vision=(1000, None, "slots"))
    half = MigAsk(profile="3g.40gb")
    one = s.book(half, duration=hours(6)); two = s.book(half, duration=hours(6)); three = s.book(half, duration=hours(6))
    print({r.pk: [a.gpu.index for a in r.allocations.all()] for r in (one, two, three)})
    print(diffs())
    reservations.release(actor=s.lena, reservation_id=one.pk, now=NOON)
    lanes.due(now=NOON)
    for g in Gpu.objects.all(): settle(s.pool, g)
    print(diffs())
    try:
        r = s.book(MigAsk(profile="7g.80gb"), team="a", duration=hours(1))
        print("A got", r.state, r.period.lower - NOON)
    except Refusal as e:
        print("A refused", e.data)

def test_victim_life():
    s = world(a=(2000, None, "gpu"), vision=(0, None, "gpu"))
    b = s.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6)); b2 = s.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6))
    for g in Gpu.objects.all(): settle(s.pool, g)
    r = s.book(GpuAsk(count=2), team="a", duration=hours(2))
    print("A", r.state, r.state_reason, r.period.lower - NOON); print(diffs())
    for m in (5, 10, 11, 20, 130, 140):
        now = NOON + hours(m/60)
        lanes.due(now=now)
        for g in Gpu.objects.all(): settle(s.pool, g, now=now)
        lanes.due(now=now)
        print(m, list(Reservation.objects.order_by("created_at").values_list("team__name","state","state_reason")), diffs(now))
def test_put_back():
    s = world(a=(2000, None, "gpu"), vision=(0, None, "gpu"))
    b = s.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6)); b2 = s.book(GpuAsk(count=2), klass=Class.BATCH, duration=hours(6))
    r = s.book(GpuAsk(count=2), team="a", duration=hours(2))
    reservations.release(actor=s.lena, reservation_id=r.pk, now=NOON)
    lanes.due(now=NOON)
    print(list(Reservation.objects.order_by("created_at").values_list("team__name","state","state_reason","recall_at")), diffs())
