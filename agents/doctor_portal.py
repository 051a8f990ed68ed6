"""What the doctor finds on the way to the portal: joining, certificate, clocks, broker, reports, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from gettext import gettext as _
from typing import Any

import msgspec

from agents.config import Config
from agents.dcgm import Dcgm
from agents.doctor_finding import Finding, note, ok, wrong
from agents.exporter import runs_here
from agents.place import Fault, Place, is_running
from agents.post import NoAnswer, Portal, portal
from agents.watch import Last

#: Half a second is HTTP's own grain, and some more may be the way.
FEW_S = 5.0


def findings(place: Place, own: Config | None) -> Iterator[Finding]:
    if own is None:
        yield note(
            _("This node has not joined a portal."),
            _("Get a code from an operator: agents join --portal URL --code CODE --name NAME"),
        )
        return
    try:
        door = portal(own.portal, own.ca_file)
    except Fault as fault:
        yield wrong(str(fault))
        return
    yield from _answers(door)
    last = _last(place)
    yield from _reports(last, running=is_running(place))
    yield from _broker(own)
    yield from _metrics(place, own, last)


def _last(place: Place) -> Last | None:
    try:
        return msgspec.json.decode(place.last.read_bytes(), type=Last)
    except (OSError, msgspec.DecodeError):
        return None


def _answers(door: Portal) -> Iterator[Finding]:
    address = door.url.geturl()
    try:
        status, date = door.knock()
    except NoAnswer as error:
        yield wrong(_("{url} does not answer: {why}").format(url=address, why=error))
        return
    if status != 200:
        yield wrong(
            _("{url} answers with {status}, not as a portal does.").format(url=address, status=status)
        )
        return
    yield ok(_("{url} answers.").format(url=address))
    if door.url.scheme == "http" and door.url.hostname not in ("127.0.0.1", "localhost", "::1"):
        yield wrong(_("{url} is not encrypted: others can read this node's token.").format(url=address))
    yield from _clock(date)


def _clock(date: str | None) -> Iterator[Finding]:
    try:
        theirs = parsedate_to_datetime(date or "")
    except ValueError:
        return
    skew = (datetime.now(UTC) - theirs).total_seconds()
    if abs(skew) > FEW_S:
        yield wrong(
            _("This machine's clock is {n:.0f} s off the portal's: notices come at odd times.").format(
                n=skew
            ),
            _("Let it be set by NTP (chrony, systemd-timesyncd)."),
        )
    else:
        yield ok(_("The clocks agree."))


def _reports(last: Last | None, *, running: bool) -> Iterator[Finding]:
    if last is None:
        yield note(_("No report has been made yet."))
    elif last.fault and running:
        yield wrong(_("The last report was not taken: {why}").format(why=last.fault))
    elif last.accepted_at is not None:
        at = last.accepted_at.isoformat(timespec="seconds")
        yield ok(_("Last report taken: {at}; dropped so far: {n}.").format(at=at, n=last.report.dropped))


def _broker(own: Config) -> Iterator[Finding]:
    if own.broker_url is None:
        yield note(_("No broker: commands come with the answers to reports, up to one report later."))
        return
    why = _refused(own.broker_url, own.node, own.ca_file)
    if why is None:
        yield ok(_("The broker answers: commands come at once."))
    else:
        yield wrong(
            _("The broker does not answer: {why}").format(why=why),
            _("Until it does, commands come with the answers to reports."),
        )


def _refused(url: str, node: str, ca_file: str | None) -> str | None:
    """Why the broker cannot be used; None when it can. No secret is in the words."""
    from agents.worker import Line, make_app  # here, because it imports Celery

    app = make_app(url, node, lambda command: None, Line(), ca_file)
    try:
        with app.connection_for_read() as connection:
            connection.connect()
            channel: Any = connection.default_channel
            channel.client.ping()
    except Exception as error:  # whatever Redis, kombu or the network raises
        return type(error).__name__ if url in str(error) else str(error) or type(error).__name__
    finally:
        app.close()
    return None


def _metrics(place: Place, own: Config, last: Last | None) -> Iterator[Finding]:
    port = own.exports_on
    served = last.report.exporter if last and is_running(place) else None
    if not port:
        yield note(_("No metrics are served: exporter_port is 0."))
    elif served is not None:
        yield ok(_("Metrics are served on port {port}.").format(port=served))
    elif is_running(place) and last:
        yield wrong(
            _("No metrics are served: ports {one} and {two} are taken.").format(one=port, two=port + 1)
        )
    if port and runs_here(place.root):
        yield note(
            _("A dcgm-exporter runs here: gpupool serves only its own series, on port {port}.").format(
                port=port + 1
            ),
            _("Give it DCGM_HPC_JOB_MAPPING_DIR={folder} to label its series with reservations.").format(
                folder=place.run / "jobs"
            ),
        )
    if own.dcgm_url and not Dcgm(own.dcgm_url).activity():
        yield wrong(_("dcgm_url={url} tells no activity.").format(url=own.dcgm_url))
