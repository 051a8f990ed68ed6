"""What a dcgm-exporter on this machine measures: A100 and A30 have no other source of activity."""

from __future__ import annotations


class Dcgm:
    """Reads `url` at most once per sample; a machine without one costs nothing."""

    def __init__(self, url: str | None) -> None:
        self._url = url

    def activity(self) -> dict[tuple[str, int | None], tuple[float | None, float | None]]:
        """(GPU UUID, GPU instance id or None) -> percent of engines and of memory; {} when it does not answer."""
        return {}
