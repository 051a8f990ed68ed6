"""Names that people read for states, reasons, events, classes and kinds: stable code -> translatable words.

Tones are the pills of gpupool.css. A code without words is shown as it is,
never hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.statewords import NAMES

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

#: State -> (words, tone). "busy" tones breathe: something is going on.
STATES: Mapping[str, tuple[Words, str]] = {
    "held": (NAMES["held"], "info"),
    "pending_approval": (NAMES["pending_approval"], "warn"),
    "waiting": (NAMES["waiting"], "warn"),
    "scheduled": (NAMES["scheduled"], "info"),
    "starting": (NAMES["starting"], "info pill-busy"),
    "active": (NAMES["active"], "good"),
    "paused": (NAMES["paused"], "quiet"),
    "ending": (NAMES["ending"], "info pill-busy"),
    "ended": (NAMES["ended"], "quiet pill-hollow"),
    "cancelled": (NAMES["cancelled"], "quiet pill-hollow"),
    "denied": (NAMES["denied"], "bad pill-hollow"),
    "preempted": (NAMES["preempted"], "bad pill-hollow"),
    "expired": (NAMES["expired"], "quiet pill-hollow"),
    "failed": (NAMES["failed"], "bad pill-hollow"),
}

REASONS: Mapping[str, Words] = {
    "booked": _("granted as asked"),
    "approved": _("approved"),
    "denied": _("an approver said no"),
    "needs_approval": _("needs an approval"),
    "offered": _("set aside while you confirm"),
    "moved": _("moved to other GPUs"),
    "waiting_for_node": _("waiting for the node to carve it"),
    "waiting_for_cleanup": _("waiting until the slice before it is taken down"),
    "node_unknown": _("the node is not heard from"),
    "driver_refused": _("the driver refused"),
    "in_use": _("a process still uses the GPU"),
    "reset_required": _("the GPU needs a reset that cannot be done here"),
    "blocked": _("something that is not booked stands in the way"),
    "frozen": _("frozen by an operator"),
    "applied": _("the node reported it ready"),
    "handed_over": _("took over the slice of the booking before it"),
    "between_windows": _("until its next window"),
    "time_up": _("its time is up"),
    "released": _("released by its owner"),
    "released_by_lead": _("released by a lead"),
    "stopped_by_operator": _("stopped by an operator"),
    "cancelled": _("cancelled by its owner"),
    "cancelled_by_lead": _("cancelled by a lead"),
    "no_capacity": _("nothing is free for it"),
    "no_quota": _("no quota is left for it"),
    "not_lent": _("it would have to borrow, and nothing is lent to it"),
    "borrowing_stopped": _("a team waits for what it is guaranteed; nobody borrows meanwhile"),
    "not_its_turn": _("it would delay the one before it"),
    "not_yet": _("its earliest time has not come"),
    "offer_lapsed": _("it was offered, and nobody accepted in time"),
    "reclaimed": _("its borrowed capacity was wanted back"),
    "reclaiming": _("what its team lent is being taken back for it"),
    "quota_lowered": _("the quota under it was lowered"),
    "hold_lapsed": _("the hold lapsed"),
    "approval_lapsed": _("nobody decided in time"),
    "wait_lapsed": _("the wait lapsed"),
    "never_started": _("its whole time went by before it could start"),
    "no_show": _("nobody checked in"),
    "gpu_lost": _("its GPU is gone"),
    "node_lost": _("its node is gone"),
    "retired": _("its GPU was retired"),
}

VERBS: Mapping[str, Words] = {
    "reservation.booked": _("Booked"),
    "reservation.held": _("Held"),
    "reservation.scheduled": _("Confirmed"),
    "reservation.extended": _("Extended"),
    "reservation.released": _("Released"),
    "reservation.cancelled": _("Cancelled"),
    "reservation.starting": _("Starting"),
    "reservation.active": _("Active"),
    "reservation.ending": _("Ending"),
    "reservation.ended": _("Ended"),
    "reservation.failed": _("Failed"),
    "reservation.expired": _("Expired"),
    "reservation.noted": _("Noted"),
    "reservation.moved": _("Placed on another GPU"),
    "reservation.recalled": _("To be taken back"),
    "reservation.put_back": _("Not taken back after all"),
    "reservation.preempted": _("Taken back"),
    "reservation.pending_approval": _("Waits for an approver"),
    "reservation.waiting": _("On the wait list"),
    "reservation.restarted": _("Put at the head of the wait list"),
    "reservation.placed": _("Placed from the wait list"),
    "reservation.joined": _("Joined the wait list"),
    "reservation.passed": _("Passed by another that could not delay it"),
    "reservation.adopted": _("Adopted"),
    "reservation.node_booted": _("Its node was booted: programs ended, slices are made anew"),
    "reservation.fault": _("Fault of its GPU"),
    "reservation.xid": _("Error of a program"),
    "reservation.hook": _("The site's own step was run"),
    "reservation.signal": _("A process was told to end"),
    "reservation.line": _("A line was written to its terminals"),
    "reservation.reset": _("The GPU was reset"),
    "reservation.pause": _("Services of the node were stopped or started"),
    "reservation.over_memory": _("More memory used than its share has"),
    "reservation.degraded": _("Its share is degraded"),
    "reservation.answered": _("Answered by an approver"),
    "reservation.unattributed": _("A process runs there that is nobody's"),
}

#: States of requests for quota.
REQUEST_STATES: Mapping[str, tuple[Words, str]] = {
    "submitted": (_("to be decided"), "warn"),
    "approved": (_("granted, not begun"), "info"),
    "active": (_("granted"), "good"),
    "denied": (_("denied"), "bad"),
    "withdrawn": (_("withdrawn"), "quiet"),
    "expired": (_("ended"), "quiet"),
}

#: What an offer is good for.
GOODS: Mapping[str, Words] = {
    "soonest": _("soonest"),
    "least_fragmenting": _("leaves the most for others"),
    "longest_extendable": _("can go on for longest"),
}

CLASSES: Mapping[str, tuple[Words, Words]] = {
    "interactive": (_("Interactive"), _("notebooks, debugging, a person waits")),
    "batch": (_("Batch"), _("training and jobs, may be moved in time")),
    "online": (_("Online"), _("a service that must not stop")),
}

ROLES: Mapping[str, Words] = {
    "operator": _("Operator"),
    "approver": _("Approver"),
    "admin": _("Admin"),
    "lead": _("Lead"),
    "member": _("Member"),
}

USES: Mapping[str, Words] = {
    "mig": _("MIG slices"),
    "whole": _("Whole GPUs"),
    "share": _("Shares"),
    "auto": _("Whatever is asked for"),
}

#: How shares of a GPU are kept apart: name, and what that keeps.
SHARINGS: Mapping[str, tuple[Words, Words]] = {
    "mps": (_("MPS"), _("the driver keeps the limits")),
    "hami": (_("HAMi-core"), _("a library keeps the limits")),
    "timeslice": (_("time slicing"), _("nothing keeps the limits")),
}

ACCESS: Mapping[str, Words] = {
    "advisory": _("Not enforced: the node does not keep others off this device."),
    "cdi": _("Enforced by the container runtime (CDI)."),
    "unix": _("Enforced by the system (device permissions)."),
}

#: What that does not keep off, beside it.
ACCESS_LIMITS: Mapping[str, Words] = {
    "cdi": _("Whoever may start containers with other devices can still get at other GPUs."),
    "unix": _("This holds for logins of your account, not for system services or the container engine."),
}

#: What keeps a holder apart from the others on the GPU: name, and what that means.
ISOLATION: Mapping[str, tuple[Words, Words]] = {
    "hardware": (
        _("Hardware"),
        _("it has memory and engines of its own"),
    ),
    "driver": (
        _("Driver (MPS)"),
        _("the driver keeps the limits; a fatal fault of one program may end the others on the GPU"),
    ),
    "driver_shared_user": (
        _("Driver (MPS), shared user"),
        _("as driver, and the programs of several accounts are served as one"),
    ),
    "library": (_("Library (HAMi-core)"), _("a library in your program keeps the limits")),
    "none": (_("None"), _("programs take turns; nothing keeps them to a share")),
}

#: Faults that no Xid tells.
FAULTS: Mapping[str, Words] = {
    "lost": _("it has fallen off the bus, or does not answer any more"),
    "remap": _("rows of its memory wait for a reset to be replaced"),
    "remap_failed": _("rows of its memory are broken and cannot be replaced"),
}

#: What the driver's number of an error stands for.
XIDS: Mapping[int, Words] = {
    8: _("a program stopped making progress"),
    13: _("a program made the GPU fail, mostly by a wrong address"),
    31: _("a program used memory that is not its own"),
    32: _("a program sent commands that cannot be read"),
    37: _("the driver met a fault of a program"),
    43: _("a program was stopped on the GPU"),
    45: _("what a program left on the GPU was cleared away"),
    46: _("the GPU stopped processing"),
    48: _("a memory error that cannot be corrected"),
    62: _("the GPU's own controller halted"),
    63: _("a row of memory is to be replaced"),
    64: _("a row of memory could not be replaced"),
    68: _("an error in the video decoder"),
    69: _("a program used the GPU in a way that it does not know"),
    74: _("an error of NVLink"),
    79: _("the GPU has fallen off the bus"),
    92: _("many memory errors, all corrected"),
    94: _("a memory error that hit one program only"),
    95: _("a memory error that may have hit every program"),
    109: _("a program could not be switched in time"),
    119: _("the GPU's system processor did not answer in time"),
    120: _("an error of the GPU's system processor"),
    140: _("a memory error that was not recovered from"),
    154: _("what the GPU needs to recover has changed"),
}

#: What is done about a fault.
ACTIONS: Mapping[str, Words] = {
    "note": _("it is only put down"),
    "end": _("the program that it hit has to end"),
    "drain": _("nothing new starts there until an operator has looked"),
    "reset": _("nothing new starts there, and it is reset once it is empty"),
    "lost": _("nothing runs there any more"),
}

BLOCKERS: Mapping[str, Words] = {
    "overrun": _("Still running after its end"),
    "foreign": _("Used without a booking"),
    "unknown": _("Not known"),
    "health": _("Not healthy"),
}

#: Why a GPU cannot be booked now.
UNUSABLE: Mapping[str, Words] = {
    "unknown": _("not heard from"),
    "frozen": _("frozen"),
    "observe": _("only observed"),
    "lost": _("lost"),
    "retired": _("retired"),
    "blocked": _("occupied by something that is not booked"),
    "managed_elsewhere": _("given out by something else on its node"),
    "update_needed": _("its agent is too old for this"),
    "unhealthy": _("taken out of use by a fault"),
}

#: Why a GPU cannot be managed.
AGAINST: Mapping[str, Words] = {
    "retired": _("It is retired."),
    "lost": _("It is lost."),
    "not_reported": _("No report has described it yet."),
    "not_mig_capable": _("It cannot be divided into MIG slices."),
    "managed_elsewhere": _("Something else on its node gives it out, and it is not excluded there."),
    "not_offered": _("Its node cannot keep shares apart so."),
    "update_needed": _("Its agent is too old for this."),
}

TROUBLES: Mapping[str, Words] = {
    "in_use": _("The GPU is in use by processes."),
    "reset_required": _("The GPU needs a reset before its mode changes."),
    "no_permission": _("The agent may not change this GPU."),
    "insufficient_resources": _("The driver found no room for the slice."),
    "not_supported": _("The driver does not support this."),
    "gpu_is_lost": _("The GPU has fallen off the bus."),
    "foreign": _("An instance that is not ours stands in the way."),
    "frozen": _("The agent is frozen."),
    "observe": _("The GPU is only observed."),
    "sharing": _("What keeps its shares apart could not be set up."),
    "access": _("It could not be handed to its holder."),
    "driver": _("The driver refused."),
}

#: In what the memory of a share is said.
MEMORY_UNITS: Mapping[str, Words] = {
    "gib": _("GiB"),
    "percent": _("percent of the GPU"),
}

UNITS: Mapping[str, Words] = {
    "minutes": pgettext_lazy("unit of a duration", "minutes"),
    "hours": pgettext_lazy("unit of a duration", "hours"),
    "days": pgettext_lazy("unit of a duration", "days"),
}


def fault(kind: str, xid: int | None) -> str:
    """`Xid 48: a memory error that cannot be corrected`: what is wrong with a GPU."""
    if xid is None:
        return str(FAULTS.get(kind, kind))
    meaning = XIDS.get(xid)
    return f"Xid {xid}: {meaning}" if meaning else f"Xid {xid}"


def share(memory_mib: int, guaranteed: int, limit: int) -> str:
    """`share of 8 GiB, 20 % compute`: what a share has of its GPU."""
    compute = f"{guaranteed} %" if guaranteed == limit else f"{guaranteed}–{limit} %"
    said = {"memory": f"{memory_mib / 1024:.4g} GiB", "compute": compute}
    return gettext("share of %(memory)s, %(compute)s compute") % said
