"""The most requests that could have been served by somebody who knew them all beforehand, proven by HiGHS.

A binary variable for each request and each of its places; at every arrival no memory
slice of a GPU is taken twice. That is enough: what overlaps at all, overlaps at the
later one's arrival.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence

import highspy
import numpy as np

from bench.mig_streams import Place, Request, World


class NotProvenError(Exception):
    """The solver ended without a proof."""


def optimum(
    world: World, requests: Sequence[Request], known: Sequence[Place | None], seconds: float = 600
) -> list[Place | None]:
    """Where each request goes, or None, so that most are served. `known`: some solution, to begin with."""
    variables = [
        (number, gpu, start, mask)
        for number, request in enumerate(requests)
        for gpu in range(min(world.gpus, number + 1))
        for start, mask in world.places(request.kind)
    ]
    solver = _solver()
    solver.setOptionValue("time_limit", seconds)
    # Whole requests are counted: less than one is no gap.
    solver.setOptionValue("mip_abs_gap", 0.99)
    solver.setOptionValue("mip_rel_gap", 0.0)
    for _ in variables:
        solver.addVar(0.0, 1.0)
    count = len(variables)
    every = np.arange(count, dtype=np.int32)
    solver.changeColsIntegrality(count, every, np.full(count, highspy.HighsVarType.kInteger))
    solver.changeColsCost(count, every, np.ones(count))
    solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
    for row in sorted(_rows(world, requests, variables)):
        solver.addRow(-highspy.kHighsInf, 1.0, len(row), np.array(row, dtype=np.int32), np.ones(len(row)))
    held = {(number, *place) for number, place in enumerate(known) if place is not None}
    begin = highspy.HighsSolution()
    begin.col_value = [float((number, gpu, start) in held) for number, gpu, start, _ in variables]
    solver.setSolution(begin)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise NotProvenError(str(solver.getModelStatus()))
    went: list[Place | None] = [None] * len(requests)
    for (number, gpu, start, _), value in zip(variables, solver.getSolution().col_value, strict=True):
        if value > 0.5:
            went[number] = (gpu, start)
    return went


def _solver() -> highspy.Highs:
    """A silent one. Even that announces itself on standard output, where only results belong."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    solver.silent()
    return solver


def _rows(
    world: World, requests: Sequence[Request], variables: Sequence[tuple[int, int, int, int]]
) -> set[tuple[int, ...]]:
    """Sets of variables of which at most one may be 1, without those that lie in another."""
    rows: set[tuple[int, ...]] = set()
    of_request: dict[int, list[int]] = defaultdict(list)
    for at, (number, *_) in enumerate(variables):
        of_request[number].append(at)
    rows.update(tuple(places) for places in of_request.values())
    for now in (request.start for request in requests):
        taken: dict[tuple[int, int], list[int]] = defaultdict(list)
        for at, (number, gpu, _, mask) in enumerate(variables):
            if requests[number].start <= now < requests[number].end:
                for place in range(world.model.grid):
                    if mask >> place & 1:
                        taken[gpu, place].append(at)
        rows.update(tuple(held) for held in taken.values() if len(held) > 1)
    return rows
