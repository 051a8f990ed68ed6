"""The examples of docs/quota.md: each is run through the code, and the page has to say what comes out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from pool.core import budget, fairness, quota_lines, reclaim, standing, waitline
from pool.core.errors import Code, Refusal
from pool.core.fleet import of_views
from pool.core.guarantees import Claim
from pool.core.lowering import above
from pool.core.period import Period
from pool.core.placement import Use
from pool.models import Pool
from pool.services import thresholds
from tests.core.standings import H100, Work, World, booking, grant, line
from tests.core.test_guarantees import guarded, whole, wholes
from tests.core.test_reclaim import borrower
from tests.core.test_waitline import place, waits
from tests.core.worlds import at, gpu, span, wall

PAGE = Path(__file__).parent.parent / "docs" / "quota.md"
VISION, SPEECH, SOUND, VIDEO, AUDIO = 1, 2, 3, 4, 5
#: Sections that state a rule, and so have an example.
SECTIONS = [part.split("\n", 1) for part in PAGE.read_text().split("\n## ")[1:]]
EXAMPLES = {
    title: " ".join(text.split("**Example.** ")[1].split())
    for title, text in SECTIONS
    if "**Example.**" in text
}
TOLD: set[str] = set()


def tells(title: str, *parts: str) -> None:
    """The example of this section says all of these, in this order."""
    TOLD.add(title)
    assert re.search(".*?".join(map(re.escape, parts)), EXAMPLES[title]), EXAMPLES[title]


def gpus(milli: int) -> str:
    return f"{milli / 1000:g}"


def clock(instant: datetime) -> str:
    return instant.strftime("%H:%M")


def refused(world: World, wanted: standing.Booking) -> dict:
    with pytest.raises(Refusal) as caught:
        standing.check(world.standing, wanted)
    assert caught.value.code == Code.QUOTA_EXCEEDED
    return caught.value.data


def borrowed(world: World, wanted: standing.Booking) -> dict[str, int]:
    found = {"siblings": 0, "others": 0}
    for loan in standing.check(world.standing, wanted):
        found[loan.source] += loan.milli
    return found


def test_a_line() -> None:
    world = World((line(VISION, 0, 4000),), (Work(VISION, 3000, 9, 12), Work(VISION, 4000, 12, 15, number=2)))
    assert standing.check(world.standing, booking(VISION, 1000, 11, 12))
    told = refused(world, booking(VISION, 1000, 11, 13))
    peak, when = gpus(told["used"] + told["asked"]), clock(datetime.fromisoformat(told["at"]))
    cap = f"cap {gpus(told['cap'])}"
    tells("A line: guaranteed and cap", cap, "the peak is 4", f"at {when} it would be {peak}")


FAMILY = {VIDEO: VISION, AUDIO: VISION, VISION: None}


def test_teams_below_teams() -> None:
    lines = (line(VISION, 8000, 16_000), line(VIDEO, 3000, 10_000), line(AUDIO, 2000, 10_000))
    world = World(lines, (Work(VISION, 11_000, 9, 12),), (), FAMILY, {H100: 20_000})
    told = refused(world, booking(VIDEO, 6000, 9, 12))
    assert told["team"] == VISION
    used, asked, cap = (gpus(told[name]) for name in ("used", "asked", "cap"))
    own = standing.shares(world.standing, at(9))[VISION].guaranteed
    title = "Teams below teams"
    tells(
        title,
        f"{used} + {asked} = {gpus(told['used'] + told['asked'])} is above {cap}",
        f"{gpus(own)} are left",
    )


def test_grants() -> None:
    world = World((line(VISION, 0, 4000),), (), (grant(VISION, 0, 2000, 0, 12),))
    assert standing.check(world.standing, booking(VISION, 6000, 9, 12))
    assert standing.check(world.standing, booking(VISION, 4000, 9, 18))
    told = refused(world, booking(VISION, 6000, 9, 12.5))
    when = clock(datetime.fromisoformat(told["at"]))
    tells(
        "Grants: more for a time", "09:00 to 12:30 are refused", f"at {when} the cap is {gpus(told['cap'])}"
    )


def test_what_is_inside() -> None:
    work = (
        Work(VISION, 1000, 9, 18, created=1, number=1),
        Work(VISION, 1000, 9, 18, klass="interactive", created=2, number=2),
        Work(VISION, 1000, 9, 12, klass="online", created=3, number=3),
    )
    now = World((line(VISION, 2000, 6000),), work).standing
    assert standing.borrowed_now(now, at(9)) == {work[0].id: 1000}
    assert standing.borrowed_now(now, at(12)) == {}
    tells(
        "What is inside, and what is borrowed", "the batch GPU is borrowed", "ends at 12:00, batch is inside"
    )


def test_what_cannot_be_taken_back() -> None:
    world = World((line(VISION, 2000, 6000),), (Work(VISION, 1000, klass="online"),))
    told = refused(world, booking(VISION, 2000, firm=True))
    assert told["reason"] == "firm_over_guaranteed"
    assert standing.check(world.standing, booking(VISION, 1000, firm=True)) == ()
    borrows = borrowed(world, booking(VISION, 5000))
    title = "What cannot be taken back"
    numbers = f"{gpus(told['used'] + told['asked'])} are asked of a guarantee of {gpus(told['cap'])}"
    tells(title, numbers, f"{gpus(borrows['others'])} of them are borrowed")


def test_siblings_first() -> None:
    lines = (line(VISION, 8000, 20_000), line(VIDEO, 3000, 20_000), line(AUDIO, 2000, 20_000))
    world = World(lines, (), (), FAMILY, {H100: 20_000})
    six, nine = (borrowed(world, booking(VIDEO, milli)) for milli in (6000, 9000))
    tells(
        "Siblings first",
        f"3 are inside, {gpus(six['siblings'])} are borrowed from the family",
        f"{gpus(six['others'])} from others",
        f"3 are inside, {gpus(nine['siblings'])} borrowed from the family",
        f"{gpus(nine['others'])} from others",
    )


def test_what_is_lent() -> None:
    lines = (line(VISION, 2000, 8000), line(SPEECH, 4000, 8000, lend_milli=1000))
    world = World(lines, (), (), None, {H100: 8000})
    five = borrowed(world, booking(VISION, 5000))
    assert refused(world, booking(VISION, 6000))["reason"] == "not_lent"
    busy = World(lines, (Work(SPEECH, 3000),), (), None, {H100: 8000})
    assert borrowed(busy, booking(VISION, 5000)) == five
    tells(
        "What is lent",
        f"it keeps {gpus(lines[1].kept_milli)}",
        f"may have 5: 2 inside and {gpus(five['others'])} borrowed",
        "The sixth is refused with `not_lent`",
        "uses 3 itself, Vision may still have 5",
    )


def test_a_guarantee_is_a_place() -> None:
    views = wholes("aaaabbbb")
    promised = guarded(views, [Claim(2, H100, 4000, span(0, 4), "node", 4)])
    assert promised.allow([whole(view) for view in views[:4]])
    assert not promised.allow([whole(view) for view in (*views[:2], *views[4:6])])
    tells("A guarantee is a place, not only a number", "one whole node, never 2 and 2")


def test_taking_back() -> None:
    vision = [borrower(n, team=VISION, over_share=3000.0, priority=50 - 10 * (n == 0)) for n in range(3)]
    sound = [borrower(n + 3, team=SOUND, over_share=4000 / 2) for n in range(4)]
    every = [*sound, *vision]
    taken = reclaim.smallest(every, lambda gone: len(gone) >= 2)
    assert taken is not None
    victims = [every[n] for n in taken.tolist()]
    # Of Vision's the one of lowest priority, and the newest of the rest.
    assert {one.created for one in victims} == {vision[0].created, vision[2].created}
    rule = reclaim.Notice(timedelta(minutes=5), timedelta(minutes=10))

    def minutes(ago: timedelta) -> str:
        one = borrower(0, started=at(0) - ago)
        return f"{reclaim.recall([one], at(0), rule) // timedelta(minutes=1)}"

    short, long = minutes(timedelta(minutes=4)), minutes(timedelta(hours=1))
    tells(
        "Taking back",
        "is 3 over its share, sound 2",
        "2 of Vision",
        f"takes {short} minutes",
        f"would take {long}.",
    )


@pytest.mark.django_db
def test_approval() -> None:
    pool = Pool.objects.create(name="main", approve_above_milli=4000)
    now = datetime(2027, 3, 1, 10, tzinfo=UTC)

    def lapses(hour: float) -> datetime:
        start = now.replace(hour=0) + timedelta(hours=hour)
        return thresholds.approve_by(pool, 8000, Period(start, None), team_id=1, now=now)

    assert thresholds.needs(pool, 4001)
    assert not thresholds.needs(pool, 4000)
    with pytest.raises(Refusal) as caught:
        lapses(11.5)
    first = clock(datetime.fromisoformat(caught.value.data["earliest"]))
    assert lapses(58) == now + timedelta(days=1)
    soon, late = clock(lapses(18)), clock(lapses(58))
    tells("Approval", f"lapses at {soon}", f"lapses at {late} tomorrow", f"the first start is {first}")


def test_budget() -> None:
    lasts = Period(datetime(2027, 4, 30, 22, tzinfo=UTC), datetime(2027, 5, 1, 4, tzinfo=UTC))
    april, may = budget.months(lasts, ZoneInfo("UTC"))
    item = budget.Charged(2000, lasts)
    costs = [budget.charge([item], month) for month in (april, may)]
    one = quota_lines.Line(1, None, 0, 4000, budget_milli_hours=100_000)
    with pytest.raises(Refusal) as caught:
        budget.check(one, 93_000, costs[1], may)
    assert caught.value.data["reason"] == "over_budget"
    budget.check(one, 92_000, costs[1], may)
    tells(
        "Budget",
        f"April {gpus(costs[0])} GPU-hours and May {gpus(costs[1])}",
        "93 are used: refused",
        "93 + 8",
    )


def test_giving_back_late() -> None:
    kept = [
        gpus(budget.late_release(1000, span(0, length), at(after)))
        for length, after in ((20, 4), (20, 12), (2, 0.5))
    ]
    assert kept[1] == "0"
    tells("Giving back late", f"{kept[0]} GPU-hours are kept", "nothing is kept", f"keeps {kept[2]}:")


def test_fair_share() -> None:
    claimants = [fairness.Claimant(VISION, 2000, 2), fairness.Claimant(SPEECH, 2000, 1)]

    def fair(speech_wants: int) -> list[fairness.Share]:
        wants = {VISION: 10_000, SPEECH: speech_wants}
        demands = [fairness.Demand(team, milli, 50, at(0)) for team, milli in wants.items()]
        found = fairness.shares(10_000, claimants, demands)
        return [found[team] for team in (VISION, SPEECH)]

    vision, speech = fair(10_000)
    tells(
        "Fair share",
        f"Each gets its {gpus(vision.deserved)}",
        f"Vision gets {gpus(vision.beyond)} and Speech {gpus(speech.beyond)}",
        f"share is {gpus(vision.milli)}, Speech's {gpus(speech.milli)}",
        f"wants only 3, Vision's is {gpus(fair(3000)[0].milli)}",
    )


def decided(hours: float) -> waitline.Decision:
    """Of 4 GPUs 3 are busy for 3 hours; the first wants all for 4 hours, the second one for so many."""
    views = [gpu(n, use=Use.WHOLE, busy=[wall(0, 8, span(-1, 3))] if n else []) for n in range(4)]
    first = waits(0, count=4, length=timedelta(hours=4), window=Period(at(-1), None))
    second = waits(1, SPEECH, length=timedelta(hours=hours), window=Period(at(-1), None))
    return waitline.decide(of_views(views), [first, second], at(0), place)


def test_the_wait_list() -> None:
    short, long = decided(3), decided(4)
    assert [one.waiting.id for one in short.given] == [UUID(int=2)]
    assert not long.given
    for one in (short, long):
        assert one.reserved is not None
        assert one.reserved.period.start == at(3)
    # 09:00 is the zero hour.
    reserved = clock(at(9 + 3))
    tells(
        "The wait list",
        f"reserved at {reserved}",
        "for 3 hours: it passes",
        "Had it wanted 4 hours, it would wait",
    )


def test_lowering_a_limit() -> None:
    work = (Work(VISION, 6000, 9, 12), Work(VISION, 3000, 12, 15, number=2))
    lowered = line(VISION, 0, 4000)
    (found,) = above(World((line(VISION, 0, 8000),), work).standing, lowered, at(9))
    after = World((lowered,), work)
    assert refused(after, booking(VISION, 1000, 9, 12))["reason"] == "over_cap"
    assert standing.check(after.standing, booking(VISION, 1000, 12, 15))
    assert found.period.end is not None
    when = f"{clock(found.period.start)} to {clock(found.period.end)}"
    tells("Lowering a limit", f"to {gpus(found.limit)}: the list shows {when} with {gpus(found.used)} used")


def test_every_example_is_run() -> None:
    tests = [name for name in globals() if name.startswith("test_")]
    assert len(EXAMPLES) == len(tests) - 1
    assert set(EXAMPLES) >= TOLD
