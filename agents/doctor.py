"""`agents doctor`: what works on this machine and what does not, in words. It changes nothing.

What is looked at lies in doctor_gpus, doctor_machine and doctor_portal; here is how it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from gettext import gettext as _
from gettext import ngettext

from agents import config, doctor_gpus, doctor_machine, doctor_portal
from agents.dcgm import Dcgm
from agents.doctor_finding import Finding, Grade
from agents.driver import Driver
from agents.place import Fault, Place

#: The exit status on a machine without a GPU.
NO_GPU = 3
WRONG = 1

_MARKS = {Grade.OK: "ok", Grade.NOTE: "--", Grade.WRONG: "!!"}


def doctor(place: Place) -> tuple[str, int]:
    """A text for a person, and the exit status: 0 all well, 1 something does not work, 3 no GPU."""
    own = _joined(place)
    driver = Driver(dcgm=Dcgm(own.asks_dcgm if own else None))
    try:
        cards = doctor_gpus.look(place, driver)
        parts = {
            _("GPUs"): doctor_gpus.findings(place, cards, own),
            _("This machine"): doctor_machine.findings(place, driver, cards, own),
            _("Portal"): doctor_portal.findings(place, own),
        }
        said = {title: list(found) for title, found in parts.items()}
    finally:
        driver.close()
    wrong = sum(one.grade is Grade.WRONG for found in said.values() for one in found)
    text = "\n".join([*_lines(said.items()), "", _summary(wrong, cards)])
    if cards.none_here:
        return text, NO_GPU
    return text, WRONG if wrong else 0


def _joined(place: Place) -> config.Config | None:
    try:
        return config.load(place)
    except Fault:
        return None


def _lines(said: Iterable[tuple[str, list[Finding]]]) -> Iterator[str]:
    for title, found in said:
        yield title
        for one in found:
            yield f"  [{_MARKS[one.grade]}] {one.text}"
            if one.advice:
                yield f"       {one.advice}"


def _summary(wrong: int, cards: doctor_gpus.Cards) -> str:
    if cards.none_here:
        return _("This machine has no GPU to give out.")
    if not wrong:
        return _("Nothing here is wrong.")
    words = ngettext("{n} thing does not work: see [!!].", "{n} things do not work: see [!!].", wrong)
    return words.format(n=wrong)
