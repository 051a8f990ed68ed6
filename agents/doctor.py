"""`agents doctor`: what works on this machine and what does not, in words."""

from __future__ import annotations

from agents.place import Place

#: The exit status on a machine without a GPU.
NO_GPU = 3


def doctor(place: Place) -> tuple[str, int]:
    """A text for a person, and the exit status: 0 all well, 1 something does not work, 3 no GPU."""
    return "", NO_GPU
