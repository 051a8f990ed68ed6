"""What the node does beside carving: the site's own programs run, and what they print is told."""

from __future__ import annotations

from tests.journeys.journey import SLICE, Journey
from tests.stack import await_


def test_the_sites_program_runs_at_the_start_and_what_it_prints_is_told(journey: Journey) -> None:
    programs = journey.folder / "root/etc/gpupool/on-start.d"
    programs.mkdir(parents=True, exist_ok=True)
    program = programs / "10-greet"
    program.write_text('#!/bin/sh\necho "ready: $GPUPOOL_RESERVATION"\n')
    program.chmod(0o755)
    try:
        booked = journey.active(SLICE)
        said = (
            "SELECT after ->> 'text' FROM pool_event WHERE reservation_id = %s AND verb = 'reservation.hook'"
        )
        await_(lambda: journey.rows(said, booked["id"]), "its output is told")
        assert f"ready: {booked['id']}" in journey.rows(said, booked["id"])[0][0]
    finally:
        program.unlink()
