"""On what terms something is booked: what follows from its class, and what contradicts it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pool.core.asks import Class
from pool.core.errors import Invalid
from pool.core.terms import ORDINARILY, Preempt, Terms, settle

SOON = timedelta(minutes=2)


@pytest.mark.parametrize(
    ("klass", "preemptible"), [(Class.ONLINE, False), (Class.INTERACTIVE, True), (Class.BATCH, True)]
)
def test_all_but_online_work_may_be_taken_back_unless_it_says_otherwise(
    klass: Class, preemptible: bool
) -> None:
    assert settle(ORDINARILY, klass).preemptible is preemptible
    assert settle(Terms(preemptible=False), klass).firm


@pytest.mark.parametrize(
    ("terms", "klass", "pointer", "code"),
    [
        (Terms(preemptible=True), Class.ONLINE, "/preemptible", "online_is_firm"),
        (Terms(priority=101), Class.BATCH, "/priority", "not_an_integer"),
        (Terms(priority=-1), Class.BATCH, "/priority", "not_an_integer"),
        (Terms(justification="x" * 4001), Class.BATCH, "/justification", "too_long"),
        (Terms(justification="\0"), Class.BATCH, "/justification", "bad_characters"),
        (Terms(preempt=Preempt("SIGUSR1", SOON)), Class.ONLINE, "/preempt", "never_taken_back"),
        (Terms(False, preempt=Preempt("SIGUSR1", SOON)), Class.BATCH, "/preempt", "never_taken_back"),
        (Terms(preempt=Preempt("SIGKILL", SOON)), Class.BATCH, "/preempt/signal", "not_a_choice"),
        (Terms(preempt=Preempt("SIGUSR1", timedelta())), Class.BATCH, "/preempt/grace", "too_small"),
        (Terms(preempt=Preempt("SIGUSR1", timedelta(hours=2))), Class.BATCH, "/preempt/grace", "too_large"),
    ],
)
def test_what_contradicts_itself_is_refused(terms: Terms, klass: Class, pointer: str, code: str) -> None:
    with pytest.raises(Invalid) as caught:
        settle(terms, klass)
    assert [(one.pointer, one.code) for one in caught.value.errors] == [(pointer, code)]


def test_a_signal_before_the_end_is_kept() -> None:
    assert settle(Terms(preempt=Preempt("SIGUSR1", SOON)), Class.BATCH).preempt == Preempt("SIGUSR1", SOON)
