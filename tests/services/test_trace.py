"""services.trace: the id of the request at hand."""

from __future__ import annotations

from contextvars import copy_context

from pool.services.trace import request_id


def test_outside_of_a_request_there_is_none() -> None:
    assert copy_context().run(request_id.get) == ""


def test_it_stays_in_its_own_context() -> None:
    copy_context().run(request_id.set, "one")
    assert request_id.get() == ""
