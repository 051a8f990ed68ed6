"""The geometry of the drawings."""

from __future__ import annotations

import pytest

from portal.web import svg


@pytest.mark.parametrize("grid", [4, 8, 12])
def test_a_slice_lies_at_its_share_of_the_width(grid: int) -> None:
    row = svg.line("", "", grid, [svg.Mark(grid // 4, grid // 2, "mine", "half")])
    assert row.boxes is not None
    (box,) = row.boxes
    assert (box.x, box.width) == ("25%", "50%")


def test_what_is_in_the_way_is_drawn_over_what_is_there() -> None:
    marks = [svg.Mark(0, 4, "blocked", "in the way"), svg.Mark(0, 1, "busy", "1g.10gb")]
    row = svg.line("", "", 8, marks)
    assert row.boxes is not None
    assert [box.mark.tone for box in row.boxes] == ["busy", "blocked"]


def test_texts_do_not_lie_over_one_another() -> None:
    wide = svg.line("", "", 8, [svg.Mark(0, 4, "blocked", "in the way"), svg.Mark(0, 1, "busy", "1g")])
    narrow = svg.line("", "", 8, [svg.Mark(0, 1, "blocked", "in the way"), svg.Mark(0, 4, "busy", "4g")])
    for row, told in ((wide, ["in the way"]), (narrow, ["4g"])):
        assert row.boxes is not None
        assert [box.mark.label for box in row.boxes if box.told] == told


def test_not_known_stays_not_known_and_is_not_empty() -> None:
    assert svg.line("", "", 8, None).boxes is None
    assert svg.line("", "", 8, []).boxes == ()


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (7, 2), (0, 0)])
def test_what_does_not_lie_on_the_grid_is_not_drawn(start: int, size: int) -> None:
    assert svg.line("", "", 8, [svg.Mark(start, size, "busy", "odd")]).boxes == ()


def test_a_narrow_box_has_a_label_that_fits_a_phone() -> None:
    row = svg.line("", "", 8, [svg.Mark(0, 1, "mine", "1g.10gb+me"), svg.Mark(4, 4, "busy", "4g.40gb")])
    assert row.boxes is not None
    assert [(box.narrow, box.mark.short) for box in row.boxes] == [(True, "1g"), (False, "4g")]


def test_a_gpu_that_is_used_whole_has_no_ticks() -> None:
    assert svg.drawing("a", "GPU 0", 8, [], ticked=False).ticks == ()
    assert [tick.number for tick in svg.drawing("a", "GPU 0", 4, []).ticks] == [0, 1, 2, 3]


def test_the_pieces_of_a_bar_never_exceed_it() -> None:
    pieces = svg.bar(4000, [("used", 3000), ("frozen-part", 0), ("unknown-part", 2000)])
    assert [(p.tone, p.x, p.width) for p in pieces] == [("used", "0%", "75%"), ("unknown-part", "75%", "25%")]
    assert svg.bar(0, [("used", 1)]) == ()
