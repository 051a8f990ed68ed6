"""Files of the openb format (CSV with a head line, plain or .gz): nodes and tasks as placement knows them."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pool.core.mix import WHOLE, Form, Kind
from pool.core.usual import Model
from pool.core.worth import Nodes

#: So much more than there is, is asked in the end.
FLOOD = 1.3


def rows(file: Path) -> Iterator[Mapping[str, str]]:
    """The lines of one file, by the names in its head."""
    if file.suffix == ".gz":
        with gzip.open(file, "rt", newline="") as packed:
            yield from csv.DictReader(packed)
    else:
        with file.open(newline="") as plain:
            yield from csv.DictReader(plain)


def nodes_of(file: Path) -> tuple[Nodes, tuple[Model, ...]]:
    """The nodes by name, all of them free, and the models of their GPUs."""
    found = sorted(rows(file), key=lambda row: row["sn"])
    counts = [int(row["gpu"] or 0) for row in found]
    names = sorted({row.get("model") or "" for row in found})
    model = np.array([names.index(row.get("model") or "") for row in found], dtype=np.int64)
    memory = np.zeros((len(found), max(counts)), dtype=np.int64)
    for at, count in enumerate(counts):
        memory[at, :count] = WHOLE
    models = tuple(
        Model(name, sum(count for at, count in enumerate(counts) if model[at] == number))
        for number, name in enumerate(names)
    )
    cpu = np.array([float(row["cpu_milli"]) for row in found])
    ram = np.array([float(row["memory_mib"]) for row in found])
    return Nodes(memory, model, cpu, ram), models


def tasks_of(file: Path) -> list[Kind]:
    """What each task asks for, by the tasks' names; files without `gpu_spec` bind nothing."""
    return [_kind(row) for row in sorted(rows(file), key=lambda row: row["name"])]


def _kind(row: Mapping[str, str]) -> Kind:
    gpus = int(row["num_gpu"] or 0)
    milli = int(row["gpu_milli"] or 0) if gpus else 0
    cpu, ram = int(row["cpu_milli"]), int(row["memory_mib"])
    if not gpus or not milli:
        return Kind(Form.CPU, 0, 0, cpu_milli=cpu, ram_mib=ram)
    models = tuple(sorted({name for name in (row.get("gpu_spec") or "").split("|") if name}))
    if gpus == 1 and milli < WHOLE:
        return Kind(Form.SHARE, 1, milli, models=models, cpu_milli=cpu, ram_mib=ram)
    return Kind(Form.WHOLE, gpus, WHOLE, models=models, cpu_milli=cpu, ram_mib=ram)


def milli(kind: Kind) -> int:
    """What it asks of GPUs, in thousandths."""
    return kind.gpus * kind.memory_milli


def arrivals(tasks: Sequence[Kind], total: int, seed: int) -> list[Kind]:
    """The published order: every task once, shuffled; then drawn anew until one would pass the flood."""
    chance = random.Random(seed)
    order = list(tasks)
    chance.shuffle(order)
    asked = sum(milli(one) for one in order)
    while asked + milli(one := chance.choice(tasks)) <= FLOOD * total:
        order.append(one)
        asked += milli(one)
    return order


def name_of(file: Path) -> str:
    """`openb_pod_list_default.csv.gz` is the trace `default`."""
    return file.name.removesuffix(".gz").removesuffix(".csv").removeprefix("openb_pod_list_")
