"""What a dcgm-exporter on this machine measures: A100 and A30 have no other source of activity."""

from __future__ import annotations

import logging
import math
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException

log = logging.getLogger("agents.dcgm")

#: Ratios 0 to 1 (dcgm-exporter, etc/default-counters.csv).
ENGINES, MEMORY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"
#: The exporter itself measures every 30 s by default, so more often would tell nothing new.
READ_S = 10.0
#: One that does not answer is left alone for so long: waiting for it would hold up the samples.
PAUSE_S = 60.0
_PATIENCE_S = 1.0
_LONGEST = 16 * 1024 * 1024
_LINE = re.compile(rf"({ENGINES}|{MEMORY})\{{(.*)\}}\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: The exporter is on this machine: no proxy stands between.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: Our own exporter repeats what is read here; reading it would make an echo out of a measurement.
_OURS = "\ngpupool_"

Activity = dict[tuple[str, int | None], tuple[float | None, float | None]]


class Dcgm:
    """Reads `url` every few samples at most; a machine without one costs nothing."""

    def __init__(self, url: str | None, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._now = now
        self._next_at = -math.inf
        self._activity: Activity = {}
        self._fault = ""

    def activity(self) -> Activity:
        """(GPU UUID, GPU instance id or None) -> percent of engines and of memory; {} without an answer."""
        if self._url is None or self._now() < self._next_at:
            return self._activity
        page, fault = self._read(self._url)
        self._activity = parse(page)
        self._say_once(fault)
        self._next_at = self._now() + (PAUSE_S if fault else READ_S)
        return self._activity

    def _read(self, url: str) -> tuple[str, str]:
        """The page and no fault, or no page and why."""
        if not url.startswith(("http://", "https://")):
            return "", "no http address"
        try:
            with _OPENER.open(url, timeout=_PATIENCE_S) as answer:
                page = "\n" + answer.read(_LONGEST).decode(errors="replace")
        except (OSError, ValueError, HTTPException) as error:
            return "", str(error) or type(error).__name__
        return ("", "this is gpupool's own exporter") if _OURS in page else (page, "")

    def _say_once(self, fault: str) -> None:
        if fault != self._fault:
            log.info("dcgm-exporter at %s: %s", self._url, fault or "answers")
        self._fault = fault


def parse(page: str) -> Activity:
    """The two series by GPU and instance; of several lines for one (one a pod, say) the highest."""
    found: dict[tuple[str, int | None], dict[str, float]] = {}
    for name, key, percent in _lines(page):
        values = found.setdefault(key, {})
        values[name] = max(percent, values.get(name, 0.0))
    return {key: (values.get(ENGINES), values.get(MEMORY)) for key, values in found.items()}


def _lines(page: str) -> Iterator[tuple[str, tuple[str, int | None], float]]:
    """What is no number from 0 to 1, or names no GPU, is left out alone."""
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        ratio, gi = _number(match[3]), labels.get("GPU_I_ID", "")
        if ratio is not None and labels.get("UUID") and (not gi or gi.isdecimal()):
            yield match[1], (labels["UUID"], int(gi) if gi else None), round(ratio * 100, 2)


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
