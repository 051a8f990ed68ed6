"""A GPU goes from its view to card and rows and back, with nothing lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pool.core.fleet_rows import ALWAYS, NEVER
from pool.core.fleet_views import busy_of, card_of, node_domain, record_of, view_of
from pool.core.placement import Busy, Portion, Use
from pool.core.shapes import Sharing
from tests.core.worlds import DAWN, at, gpu, profile, span, taken, wall

NUMBERS: dict[str | None, int] = {None: 0, "user:1": 5}


def back(busy: Busy) -> Busy:
    return busy_of(record_of(3, busy, NUMBERS), {5: "user:1"}, DAWN)


def test_a_view_is_its_card_again() -> None:
    view = replace(
        gpu(3, use=Use.SHARE),
        sharing=Sharing.MPS,
        block="rack-1",
        domain="c/1",
        imex="READY",
        cpu_milli=64_000,
        ram_mib=512_000,
        mig_now=True,
        mig_capable=True,
        numa=1,
        links=(("GPU-4", 12), ("", 4)),
    )
    card = card_of(view)
    assert view_of(card, (), late=False, most_shares=0, one_user=False) == view
    ruled = view_of(card, (), late=False, most_shares=4, one_user=True)
    assert (ruled.most_shares, ruled.one_user) == (4, True)


def test_only_mps_belongs_to_one_account() -> None:
    card = card_of(replace(gpu(use=Use.SHARE), sharing=Sharing.HAMI))
    assert not view_of(card, (), late=False, most_shares=4, one_user=True).one_user


def test_without_a_fabric_the_domain_is_the_node() -> None:
    assert card_of(gpu(node="node-b")).domain == node_domain("node-b")


def test_what_makes_it_unusable_comes_before_its_nodes_silence() -> None:
    frozen, fine = card_of(gpu(why="frozen")), card_of(gpu())
    assert view_of(frozen, (), late=True, most_shares=0, one_user=False).why == "frozen"
    silent = view_of(fine, (), late=True, most_shares=0, one_user=False)
    assert (silent.usable, silent.why) == (False, "unknown")


def test_a_slice_a_share_and_a_wall_are_what_they_were() -> None:
    slices = taken(profile("H100-80GB", "1g.10gb+me"), 2, span(1, None), "booked")
    share = Busy(0, 8, span(1, 2), None, "booked", None, Portion(1024, 5, 80, "user:1"), 500, 2048)
    for one in (slices, share, wall(1, 3, span(0, 4))):
        assert back(one) == one


def test_what_was_always_there_is_in_the_way_from_now() -> None:
    row = record_of(3, wall(0, 2, span(0, None)), NUMBERS)
    row["start"], row["end"] = ALWAYS, NEVER
    assert busy_of(row, {}, at(4)) == wall(0, 2, span(4, None))


def test_an_account_that_is_not_known_yet_is_nobodys() -> None:
    row = record_of(3, Busy(0, 8, span(1, 2), None, "booked", None, Portion(1, 1, 1, "user:1")), NUMBERS)
    busy = busy_of(row, {}, DAWN)
    assert busy.portion is not None
    assert busy.portion.user == "?5"
    assert np.int64(5) == row["account"]
