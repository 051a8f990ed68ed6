"""The inbox is its owner's alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.errors import Code, Refusal
from pool.models import OutboxMessage
from pool.queries import notices
from tests.cast import Cast
from tests.scene import NOON

pytestmark = pytest.mark.django_db


def test_one_sees_ones_own_messages_newest_first(cast: Cast) -> None:
    made = [
        OutboxMessage.objects.create(
            recipient=cast.lena, kind="evicted", key=str(n), created_at=NOON + timedelta(minutes=n)
        )
        for n in range(2)
    ]
    assert list(notices.visible_to(cast.lena)) == made[::-1]
    assert notices.one(cast.lena, made[0].pk) == made[0]
    assert notices.unread(cast.lena) == 2
    OutboxMessage.objects.filter(pk=made[0].pk).update(read_at=NOON)
    assert notices.unread(cast.lena) == 1
    for other in (cast.milo, cast.sam, cast.anna):
        assert not notices.visible_to(other).exists()
        assert notices.unread(other) == 0
        with pytest.raises(Refusal) as refused:
            notices.one(other, made[0].pk)
        assert refused.value.code == Code.NOT_FOUND
    cast.lena.is_active = False
    assert not notices.visible_to(cast.lena).exists()
