"""What `agents status` tells: from the folder's files alone, without portal, broker or driver."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from gettext import gettext as _
from typing import Any

import msgspec

from agents import config
from agents.place import Place, is_running
from agents.record import Record
from agents.watch import Last
from pool.core.wire import GpuReport, Instance, Report, ShareSeen


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """No secret is in it. `last` is None before the first report.

    `frozen` says that it is frozen here, `stopped` that the portal has frozen it;
    `managed` counts the GPUs that the portal may have changed.
    """

    node: str
    portal: str
    running: bool
    frozen: bool
    simulated: str | None
    by_broker: bool
    last: Last | None
    stopped: bool = False
    managed: int = 0


def status(place: Place) -> Status:
    """Raises `Fault` when the node has not joined."""
    own, record = config.load(place), _record(place)
    return Status(
        node=own.node,
        portal=own.portal,
        running=is_running(place),
        frozen=place.is_frozen(),
        simulated=own.simulated,
        by_broker=own.broker_url is not None,
        last=_last(place),
        stopped=record.frozen,
        managed=len(record.manage),
    )


def _record(place: Place) -> Record:
    """As the agent left it; here it is only read, and what cannot be read says nothing."""
    try:
        return msgspec.json.decode(place.record.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return Record(boot_id="")


def _last(place: Place) -> Last | None:
    try:
        return msgspec.json.decode(place.last.read_bytes(), type=Last)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def as_json(status: Status) -> str:
    return msgspec.json.format(msgspec.json.encode(status)).decode()


def as_text(status: Status) -> str:
    """A few lines for a person at the node."""
    return "\n".join([*_head(status), *(line for gpu in _gpus(status) for line in _gpu(gpu))])


def _head(status: Status) -> Iterator[str]:
    kind = _("simulated as {spec}").format(spec=status.simulated) if status.simulated else _("real")
    yield _("Node {node} ({kind}), portal {portal}").format(node=status.node, kind=kind, portal=status.portal)
    yield _("Agent: {state}").format(state=_("running") if status.running else _("not running"))
    if status.frozen:
        yield _("FROZEN here: nothing on this node is changed (`freeze --off` ends it)")
    if status.stopped:
        yield _("FROZEN by the portal: nothing on this node is changed")
    last = status.last
    if last is None:
        yield _("No report yet")
        return
    at = last.accepted_at
    yield _("Last report taken: {when}").format(when=_ago(at) if at else _("never"))
    if last.fault:
        yield _("Portal: {fault}").format(fault=last.fault)
    line = (
        (_("connected") if last.report.broker else _("not connected")) if status.by_broker else _("not used")
    )
    yield _("Broker: {line}").format(line=line)
    yield from _node(status, last.report)


def _node(status: Status, report: Report) -> Iterator[str]:
    yield _("Managed GPUs: {some} of {all}").format(some=status.managed, all=len(report.gpus))
    if report.managed_by:
        yield _("Managed by others too: {names}").format(names=", ".join(report.managed_by))
    if report.dropped:
        yield _("Reports that were not taken since the start: {n}").format(n=report.dropped)
    port = _("port {n}").format(n=report.exporter) if report.exporter else _("not served")
    yield _("Metrics: {port}").format(port=port)


def _gpus(status: Status) -> tuple[GpuReport, ...]:
    return status.last.report.gpus if status.last else ()


def _gpu(gpu: GpuReport) -> Iterator[str]:
    mode = {
        True: "MIG",
        False: _("whole"),
        None: _("mode unknown") if gpu.mig_capable is None else _("whole"),
    }
    state = _("LOST") if gpu.lost else mode[gpu.mig]
    yield f"GPU {gpu.index} {gpu.name} {gpu.uuid}: {state}, " + _("generation {n}").format(n=gpu.generation)
    for one in gpu.instances or ():
        yield f"  {_slice(one)}"
    for share in gpu.shares:
        yield f"  {_share(share)}"
    if gpu.mig is not True and not gpu.shares and gpu.held:
        yield "  " + _("held whole by {allocation}").format(allocation=gpu.held[0])
    if gpu.throttle and (reasons := [one for one in gpu.throttle if one != "idle"]):
        yield "  " + _("clocks held down: {reasons}").format(reasons=", ".join(reasons))
    if gpu.trouble:
        yield "  " + _("trouble in generation {n}: {what}").format(
            n=gpu.trouble.generation, what=_trouble(gpu.trouble)
        )


def _slice(one: Instance) -> str:
    whose = one.allocation if one.owned else _("foreign")
    return f"{one.profile or one.profile_id} @{one.start}+{one.size} {one.mig_uuid or '-'} {whose}"


def _share(one: ShareSeen) -> str:
    used = "" if one.memory_used_mib is None else f", {one.memory_used_mib} MiB"
    return _("share {allocation}: {state}").format(allocation=one.allocation, state=one.state) + used


def _trouble(trouble: Any) -> str:
    holders = ", ".join(
        f"{one.name or '?'} (pid {one.pid}, {one.user or one.uid})" for one in trouble.holders
    )
    return "; ".join(part for part in (trouble.code, trouble.detail, holders) if part)


def _ago(at: datetime) -> str:
    seconds = int((datetime.now(UTC) - at).total_seconds())
    return _("{at}, {seconds} s ago").format(at=at.isoformat(timespec="seconds"), seconds=seconds)
