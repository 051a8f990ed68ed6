"""A fleet with what nobody has booked yet: it is in the way, and counts as its owner's."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings

from pool.core.fleet import CLASSES, halves, micros
from pool.core.placement import SWITCH, Pick, Portion, Use, candidates, clash
from pool.core.quota_uses import Uses
from pool.core.shapes import MigAsk, Sharing
from pool.core.supposed import Owner, supposing
from tests.core.test_reclaim import booked
from tests.core.worlds import DAWN, Case, at, cases, gpu, span

WHOSE = Owner(UUID(int=77), team=3, created=at(-1), owner=9, klass="interactive", firm=True, priority=20)
H100 = "H100-80GB"


@settings(max_examples=80, deadline=None)
@given(cases(H100))
def test_what_is_supposed_to_be_there_is_in_the_way_and_nothing_else_is_gone(case: Case) -> None:
    gpus, ask, period = case
    fleet = booked(gpus)
    found = candidates(fleet, ask, period, 1)
    if not found:
        return
    after = supposing(fleet, found[0].picks, period, WHOSE)
    assert len(after.rows()) == len(fleet.rows()) + len(found[0].picks)
    views = [after.view(card.id, DAWN) for card in after.cards]
    assert clash(views, found[0].picks, period) is not None
    mine = [row for row in after.rows() if (row["reservation"] == halves(WHOSE.reservation)).all()]
    assert {(int(row["team"]), int(row["owner"]), bool(row["firm"])) for row in mine} == {(3, 9, True)}
    assert {CLASSES[row["klass"]] for row in mine} == {"interactive"}
    assert sum(int(row["charge"]) for row in mine) == found[0].charge_milli


def test_it_counts_in_quota_for_its_own_period() -> None:
    fleet = booked([gpu(0)])
    picks = candidates(fleet, MigAsk("3g.40gb"), span(1, 2))[0].picks
    uses = Uses.of(supposing(fleet, picks, span(1, 2), WHOSE), span(0, 4))
    assert (uses.team.tolist(), uses.milli.tolist()) == ([3], [500])
    assert (uses.since.tolist(), uses.until.tolist()) == ([micros(at(1))], [micros(at(2))])


def test_a_share_is_its_accounts_and_a_change_of_mode_is_blocked_for() -> None:
    view = replace(gpu(0, use=Use.SHARE), sharing=Sharing.MPS, most_shares=4, one_user=True)
    fleet = booked([view])
    share = Pick(0, H100, None, 0, 8, 100, Portion(8192, 10, 10, "user:4"))
    after = supposing(fleet, [share], span(1, 2), WHOSE)
    (there,) = after.view(0, DAWN).busy
    assert there.portion == share.portion
    whole = Pick(0, H100, None, 0, 8, 1000, switch=True)
    (row,) = supposing(booked([gpu(0, use=Use.AUTO)]), [whole], span(1, 2), WHOSE).rows()
    assert (int(row["start"]), int(row["since"])) == (micros(at(1) - SWITCH), micros(at(1)))
