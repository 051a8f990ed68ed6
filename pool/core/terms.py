"""On what terms something is booked: whether it may be taken back, with which word before, what for.

Settled before the pool is looked at. What of a booking is borrowed is decided in standing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from pool.core.asks import Class
from pool.core.errors import FieldError, Invalid, invalid
from pool.core.wire import SIGNALS

#: What everybody has who says nothing; above it only who may book for others.
ORDINARY = 50
HIGHEST = 100
#: So long before it is taken back a signal may come.
LONGEST_GRACE = timedelta(hours=1)
JUSTIFICATION_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class Preempt:
    """The signal that its processes get so long before it is taken back."""

    signal: str
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Terms:
    """`preemptible` None: as its class is by default; online work never is.

    `priority` 0 to 100: of two borrowers of one team's kind the lower gives way first.
    `justification` is for whoever approves it, where it needs that.
    """

    preemptible: bool | None = None
    priority: int = ORDINARY
    preempt: Preempt | None = None
    justification: str = ""

    @property
    def firm(self) -> bool:
        """Of settled terms: whether it can never be taken back."""
        return self.preemptible is False


ORDINARILY = Terms()


def settle(terms: Terms, klass: Class) -> Terms:
    """The terms with `preemptible` decided. Refuses with INVALID what contradicts itself or the class."""
    if klass is Class.ONLINE and terms.preemptible:
        raise invalid("/preemptible", "online_is_firm")
    if not 0 <= terms.priority <= HIGHEST:
        raise invalid("/priority", "not_an_integer", min=0, max=HIGHEST)
    preemptible = klass is not Class.ONLINE if terms.preemptible is None else terms.preemptible
    _check_text(terms.justification)
    if terms.preempt is not None:
        _check_preempt(terms.preempt, preemptible)
    return replace(terms, preemptible=preemptible)


def _check_text(text: str) -> None:
    if len(text) > JUSTIFICATION_LIMIT:
        raise invalid("/justification", "too_long", max=JUSTIFICATION_LIMIT)
    if "\0" in text:
        raise invalid("/justification", "bad_characters")


def _check_preempt(preempt: Preempt, preemptible: bool) -> None:
    if not preemptible:
        raise invalid("/preempt", "never_taken_back")
    errors = []
    if preempt.signal not in SIGNALS:
        errors.append(FieldError("/preempt/signal", "not_a_choice", {"choices": list(SIGNALS)}))
    if preempt.grace < timedelta(seconds=1):
        errors.append(FieldError("/preempt/grace", "too_small", {"min": "PT1S"}))
    if preempt.grace > LONGEST_GRACE:
        errors.append(FieldError("/preempt/grace", "too_large", {"max": "PT1H"}))
    if errors:
        raise Invalid(errors)
