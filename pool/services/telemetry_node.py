"""The part of a report that is about the node itself: its agent, who else gives out its GPUs, what it offers.

All functions are steps of telemetry.record.
"""

from __future__ import annotations

from datetime import UTC

from django.conf import settings

from pool.core import health, observed, reported, wire
from pool.core.health import Freshness, clean_int
from pool.core.states import State
from pool.models import Node, Reservation
from pool.services import commands, events
from pool.services.telemetry_desk import Desk

#: What `note` changes of the node's row; the one who calls it saves.
WRITTEN = (
    "boot_id",
    "seq",
    "agent",
    "wire",
    "driver",
    "agent_frozen",
    "received_at",
    "good_reports",
    "unknown_since",
    "skew_ms",
    "dropped_values",
    "broker_ok",
    "managed_by",
    "sharing_offered",
    "access_offered",
    "imex",
    "run_folder",
    "exporter_port",
    "dropped_reports",
    "happened_n",
)

#: Wires before it say nothing about others on the node, or about what it offers.
TELLS_MORE = 2
_SHARING = frozenset({"mps", "hami", "timeslice"})
_ACCESS = frozenset({"advisory", "cdi", "unix"})


def note(desk: Desk) -> bool:
    """Bring the node's row up to date, unsaved; True when whatever failed before may work now."""
    node, report, received = desk.node, desk.report, desk.received
    before = Freshness(node.unknown_since, node.good_reports)
    if node.received_at is not None:
        before = health.silent(before, node.received_at, received, settings.REPORT_SECONDS)
    after = health.heard(before)
    was_unknown, was_frozen = node.unknown_since is not None, node.agent_frozen
    if was_unknown != (after.unknown_since is not None) or was_frozen != report.frozen:
        desk.need_pool()
    if node.boot_id not in ("", report.boot_id):
        _note_boot(desk)
    returned = report.boot_id != node.boot_id or (was_unknown and after.unknown_since is None)
    returned = returned or (report.broker and not node.broker_ok)
    node.unknown_since, node.good_reports = after.unknown_since, after.good
    node.boot_id, node.seq = report.boot_id, report.seq
    node.agent, node.wire = observed.text(report.agent, 32), report.wire
    node.driver = observed.text(report.driver or "", 64)
    node.broker_ok, node.received_at = report.broker, received
    node.skew_ms = round((report.sampled_at.astimezone(UTC) - received).total_seconds() * 1000)
    if report.wire >= TELLS_MORE:
        _note_more(desk)
    if was_frozen != report.frozen:
        _note_freeze(desk)
    return returned


def _note_boot(desk: Desk) -> None:
    """Each booking that was active there is told once: its programs are gone, and slices are made anew."""
    node = desk.node
    held = [one for there in desk.allocations.values() for one in there]
    active = {one.reservation_id for one in held if one.reservation.state == State.ACTIVE}
    if not active:
        return
    rows = Reservation.objects.filter(pk__in=active).order_by("pk")
    desk.drafts.extend(
        events.draft(
            "reservation.node_booted",
            actor=None,
            now=desk.now,
            label=f"node:{node.name}",
            team_id=team_id,
            pool_id=node.pool_id,
            node_id=node.pk,
            reservation_id=pk,
            after={"node": node.name},
        )
        for pk, team_id in rows.values_list("pk", "team_id")
    )


def _note_more(desk: Desk) -> None:
    node, report = desk.node, desk.report
    port, odd = clean_int(report.exporter, 1, 65535)
    missed, also_odd = clean_int(report.dropped, 0, 2**53)
    desk.odd += odd + also_odd
    node.exporter_port, node.dropped_reports = port, missed or 0
    node.sharing_offered = reported.words(report.sharing, known=_SHARING)
    node.access_offered = reported.words(report.access, known=_ACCESS)
    node.imex, node.run_folder = reported.word(report.imex), reported.folder(report.run)
    others = reported.words(report.managed_by)
    if others != node.managed_by:
        _note_others(desk, others)


def _note_others(desk: Desk, others: list[str]) -> None:
    """Whoever else gives out the node's GPUs came or went: they are ours only while it is away."""
    desk.need_pool()
    node = desk.node
    before = {"managed_by": node.managed_by}
    desk.tell("node.managed_by", before=before, after={"node": node.name, "managed_by": others})
    node.managed_by = others
    Node.objects.filter(pk=node.pk).update(managed_by=others)
    commands.issue([gpu for gpu in desk.gpus.values() if gpu.managed], desk.now)


def _note_freeze(desk: Desk) -> None:
    """The node was frozen or thawed on itself, without the portal."""
    node = desk.node
    node.agent_frozen = desk.report.frozen
    Node.objects.filter(pk=node.pk).update(agent_frozen=node.agent_frozen)
    desk.tell("node.agent_frozen" if node.agent_frozen else "node.agent_thawed", after={"node": node.name})
    if not node.agent_frozen:
        commands.issue([gpu for gpu in desk.gpus.values() if gpu.managed], desk.now)


def note_old_agent(node_id: int, report: wire.Report) -> None:
    """An agent that is not understood any more: only who it is is kept."""
    agent = observed.text(report.agent, 32)
    Node.objects.filter(pk=node_id).exclude(wire=report.wire, agent=agent).update(
        wire=max(report.wire, 0), agent=agent
    )
