"""Every code that a page can show has words."""

from __future__ import annotations

from typing import get_args

import pytest

from pool.core import connect, health, roles, shapes, wire
from pool.core.states import Reason, State
from pool.models import Blocker, Gpu
from portal.web import tags, words
from portal.web.forms import FIELD_OF, BookForm
from portal.web.reservations import GROUPS


def test_every_state_and_reason_has_words() -> None:
    assert set(words.STATES) == {state.value for state in State}
    assert {reason.value for reason in Reason} <= set(words.REASONS)


def test_every_group_of_states_is_covered() -> None:
    assert GROUPS["now"] | GROUPS["ahead"] == GROUPS["open"]
    assert GROUPS["open"] | GROUPS["over"] == GROUPS["all"] == set(State)


def test_every_class_role_use_and_blocker_has_words() -> None:
    assert set(words.CLASSES) == {one.value for one in shapes.Class}
    assert set(words.ROLES) == {one.value for one in (*roles.GlobalRole, *roles.TeamRole)}
    assert set(words.USES) == set(Gpu.Use.values)
    assert set(words.BLOCKERS) == set(Blocker.Kind.values)


def test_every_trouble_that_an_agent_may_name_has_words() -> None:
    documented = wire.Trouble.__doc__ or ""
    named = {code for code in words.TROUBLES if code in documented}
    assert named == set(words.TROUBLES)


def test_every_fault_xid_action_and_isolation_has_words() -> None:
    assert set(words.XIDS) == set(health.XIDS)
    assert set(words.ACTIONS) == {one.value for one in health.Action}
    assert set(words.FAULTS) | {"xid"} == {one.value for one in health.FaultKind}
    assert set(words.ISOLATION) == {one.value for one in connect.Isolation}
    assert set(words.SHARINGS) == set(get_args(wire.Sharing))
    assert set(words.ACCESS_LIMITS) == set(get_args(wire.Access)) - {"advisory"}


def test_a_fault_is_told_with_its_number_and_what_that_stands_for() -> None:
    assert words.fault("xid", 79) == "Xid 79: the GPU has fallen off the bus"
    assert words.fault("xid", 4711) == "Xid 4711"
    assert words.fault("remap", None) == "rows of its memory wait for a reset to be replaced"


def test_a_code_without_words_is_shown_as_it_is() -> None:
    assert tags.reason_label("brand_new") == "brand_new"
    assert tags.state_pill("brand_new")["label"] == "brand_new"


def test_errors_of_the_domain_land_on_fields_of_the_form() -> None:
    assert set(FIELD_OF.values()) <= set(BookForm.base_fields)


@pytest.mark.parametrize(
    ("milli", "text"),
    [(125, "0.125 GPU"), (1000, "1 GPU"), (1500, "1.5 GPUs"), (16000, "16 GPUs"), (None, "unknown")],
)
def test_charges_are_told_in_gpus(milli: int | None, text: str) -> None:
    assert tags.count_gpus(milli) == text


def test_memory_that_nobody_measured_is_not_zero() -> None:
    assert "not measured" in tags.gib(None)
    assert tags.gib(10 * 1024) == "10 GiB"
    assert tags.gib(0) == "0 GiB"


def test_a_wire_phase_is_no_page_word() -> None:
    assert get_args(wire.Phase) == ("run", "checkpoint", "end")
