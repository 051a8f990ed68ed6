"""What a pool offers in shares: which GPUs, kept apart how, with how much memory to give."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from pool.core.shapes import Sharing
from pool.core.shares import shareable_mib
from pool.models import Pool


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs of one model that are given in shares of one kind.

    `memory_mib` is what the smallest of them can give in all, None where no
    report has told; `gpus` are those that are managed and not retired.
    """

    model: str
    sharing: Sharing
    memory_mib: int | None
    gpus: int


_OFFERS = """
SELECT gpu.model, gpu.sharing, min(gpu.memory_mib), count(*)
FROM pool_gpu gpu JOIN pool_node node ON node.id = gpu.node_id
WHERE gpu.use = 'share' AND gpu.managed AND gpu.retired_at IS NULL AND node.pool_id = %s
GROUP BY gpu.model, gpu.sharing
"""


def offered(pool: Pool) -> list[Offer]:
    """By model, and then the stronger isolation first."""
    with connection.cursor() as cursor:
        cursor.execute(_OFFERS, [pool.pk])
        found = [
            Offer(model, Sharing(sharing), None if memory is None else shareable_mib(memory), gpus)
            for model, sharing, memory, gpus in cursor.fetchall()
        ]
    return sorted(found, key=lambda one: (one.model, list(Sharing).index(one.sharing)))
