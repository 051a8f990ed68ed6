"""What goes on in a demo from its first start on: somebody borrows, somebody waits, somebody asks for more.

Laid once: where there is a booking, or a request, nothing is added.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pool.core.period import Period
from pool.core.shapes import Class, GpuAsk
from pool.core.terms import Preempt, Terms
from pool.models import Pool, QuotaRequest, Reservation, Team, User
from pool.services import quota_requests, reservations
from pool.services.wishes import Asked

#: The team that is guaranteed nothing, and lives on what others do not use.
BORROWER = "research"
MODEL = "GB200-186GB"
_SIGNAL = Preempt("SIGUSR1", timedelta(minutes=2))


def ask_for_more(pool: Pool, team: Team, lead: User, now: datetime) -> None:
    """A request that waits for the approver: two more GPUs, guaranteed, for two weeks from tomorrow on."""
    if QuotaRequest.objects.exists():
        return
    begin = (now + timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    quota_requests.submit(
        actor=lead,
        team=team,
        pool=pool,
        amounts=quota_requests.Amounts(guaranteed_milli=2000, cap_milli=4000),
        valid=Period(begin, begin + timedelta(days=14)),
        justification="We retrain the detector on the new cameras before the release; two GPUs are missing.",
        now=now,
    )


def borrow_and_wait(pool: Pool, lead: User, now: datetime) -> None:
    """Three whole GPUs that are others' by right, until the evening; two more are waited for."""
    if Reservation.objects.exists() or not Team.objects.filter(name=BORROWER).exists():
        return
    reservations.book(
        actor=lead,
        team=BORROWER,
        pool=pool.name,
        title="Pretraining on what is idle",
        ask=GpuAsk(models=(MODEL,), count=3, same_node=True),
        duration=timedelta(hours=12),
        klass=Class.BATCH,
        now=now,
        terms=Terms(preempt=_SIGNAL),
    )
    reservations.join(
        asked=Asked(
            lead,
            BORROWER,
            pool.name,
            "Evaluation of the checkpoints",
            GpuAsk(models=(MODEL,), count=2, same_node=True),
            None,
            None,
            timedelta(hours=4),
            Class.BATCH,
            None,
            Reservation.Visibility.TEAM,
            None,
            now,
        ),
        latest=now + timedelta(days=2),
        asks_first=True,
    )
