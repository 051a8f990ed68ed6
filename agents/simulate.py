"""`python -m agents simulate`: drives a running simulated driver from outside."""

from __future__ import annotations

from collections.abc import Sequence


def simulate_main(argv: Sequence[str]) -> int:
    """Run one command on `--state DIR` and return the exit status (2: nonsense, with one clear line).

    create SPEC --seed NAME [--cluster UUID] [--clique N] [--mig 0,1] | reboot |
    xid 79 --gpu 3 [--slice 0] | lose --gpu 3 | process --gpu 3 [--slice 0] [--uid N] [--memory MIB] |
    busy --mig UUID 0 | permission on|off | stop-processes
    """
    raise NotImplementedError
