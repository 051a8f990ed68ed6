"""How large a lane's batches are, and the rows that it leaves out because they break them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from pool.models import SetAside
from pool.queries import clock
from pool.services import suspects

log = logging.getLogger(__name__)

BATCH = 500
FIRST_BATCH = 40
LEAST_BATCH = 20
HOLD_SECONDS = 0.08
#: A row that was set aside is tried again after this, doubled each time, at most an hour.
RETRY = timedelta(seconds=30)
MOST_RETRY = timedelta(hours=1)


class Pace:
    """How many rows a batch takes, so that the pool's lock is held for some 80 ms at most."""

    def __init__(self) -> None:
        self.size = min(FIRST_BATCH, BATCH)

    def learn(self, rows: int, seconds: float) -> None:
        """What so many took. Of much less than a batch that tells nothing: any batch takes some time."""
        if rows * 2 >= self.size or seconds > HOLD_SECONDS:
            fit = rows * HOLD_SECONDS / max(seconds, 0.001)
            self.size = int(min(BATCH, max(LEAST_BATCH, fit)))


class Aside:
    """Rows of a lane that broke their batch: hidden until they are tried again.

    `suspects` are those that will, as far as is known: left out of what comes along with others, and
    tried alone when it is their turn.
    """

    def __init__(self, lane: str) -> None:
        self.lane = lane
        now = clock.real_now()
        rows = dict(SetAside.objects.filter(lane=lane).values_list("subject", "retry_at"))
        self.known = set(rows)
        self.hidden = [UUID(subject) for subject, at in rows.items() if at > now]
        self.suspects: set[UUID] = set()

    def suspect(self, error: Exception, *, pool_id: int) -> bool:
        """Whether it is seen now who caused the error, other than those that are suspected already."""
        found = suspects.among(error, pool_id=pool_id) - self.suspects
        self.suspects |= found
        return bool(found)

    def put(self, pk: UUID, error: Exception) -> None:
        log.error("lane.set_aside", exc_info=error, extra={"lane": self.lane, "subject": str(pk)})
        now = clock.real_now()
        text = f"{type(error).__name__}: {error}".replace("\0", "")[:300]
        row, new = SetAside.objects.get_or_create(
            lane=self.lane,
            subject=str(pk),
            defaults={"error": text, "at": now, "retry_at": now + RETRY},
        )
        if not new:
            row.error, row.retry_at = text, now + min(RETRY * 2 ** min(row.tries, 10), MOST_RETRY)
            row.tries += 1
            row.save()
        self.hidden.append(pk)

    def clear(self, ids: Collection[UUID]) -> None:
        done = self.known & {str(pk) for pk in ids}
        if done:
            SetAside.objects.filter(lane=self.lane, subject__in=done).delete()
