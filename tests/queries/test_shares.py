"""What a pool offers in shares."""

from __future__ import annotations

import pytest

from pool.core.shapes import Sharing
from pool.core.shares import shareable_mib
from pool.models import Gpu, Pool
from pool.queries.shares import Offer, offered
from tests.scene import H100, Scene, add_node, add_shares, make_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def test_it_names_model_kind_memory_and_number_of_gpus(scene: Scene) -> None:
    add_node(scene.pool)
    add_shares(scene.pool, "a", gpus=2, sharing=Gpu.Sharing.TIMESLICE)
    add_shares(scene.pool, "b")
    memory = Gpu.objects.values_list("memory_mib", flat=True)[0]
    assert memory is not None
    assert offered(scene.pool) == [
        Offer(H100, Sharing.MPS, shareable_mib(memory), 1),
        Offer(H100, Sharing.TIMESLICE, shareable_mib(memory), 2),
    ]


def test_the_memory_is_that_of_the_smallest(scene: Scene) -> None:
    first, _ = add_shares(scene.pool, gpus=2)
    Gpu.objects.filter(pk=first.pk).update(memory_mib=40_000)
    assert [one.memory_mib for one in offered(scene.pool)] == [shareable_mib(40_000)]


@pytest.mark.parametrize("change", [{"managed": False}, {"use": "whole", "sharing": ""}])
def test_what_is_not_given_in_shares_now_is_no_offer(scene: Scene, change: dict[str, object]) -> None:
    add_shares(scene.pool)
    Gpu.objects.update(**change)
    assert offered(scene.pool) == []
    assert offered(Pool.objects.create(name="other")) == []
