"""The gate before the driver: together or alone, and never both."""

from __future__ import annotations

import threading

from agents.gate import Gate


def test_many_are_inside_together() -> None:
    gate, meet = Gate(), threading.Barrier(3, timeout=20)

    def enter() -> None:
        with gate.together():
            meet.wait()

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for one in threads:
        one.start()
    enter()
    for one in threads:
        one.join(20)
    assert not gate.taken


def test_who_is_alone_waits_for_all_and_keeps_all_out() -> None:
    gate, order = Gate(), list[str]()
    inside, leave, entered = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with gate.together():
            inside.set()
            assert leave.wait(20)
            order.append("first leaves")

    def later() -> None:
        with gate.together():
            order.append("later enters")

    def alone() -> None:
        with gate.alone():
            assert gate.taken
            order.append("alone")
            entered.set()
            third.start()

    third = threading.Thread(target=later)
    threads = [threading.Thread(target=first), threading.Thread(target=alone)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    assert not entered.is_set()
    leave.set()
    for one in threads:
        one.join(20)
    third.join(20)
    assert order == ["first leaves", "alone", "later enters"]


def test_an_exception_leaves_it_open() -> None:
    gate = Gate()
    for enter in (gate.alone, gate.together):
        try:
            with enter():
                raise LookupError
        except LookupError:
            pass
    with gate.alone():
        pass
    assert not gate.taken
