"""The table of refusals: code -> status, title, sentences with their numbers, next step.

`portal.errors` says it in the language of the moment; nothing else turns a code into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from pool.core.errors import Code

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words


class DoorCode(StrEnum):
    """Refusals that exist only at a door: the domain never hears of such a request."""

    UNAUTHENTICATED = "unauthenticated"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    LENGTH_REQUIRED = "length_required"
    TOO_LARGE = "too_large"
    UNKNOWN_PARAMETER = "unknown_parameter"
    REPEATED_PARAMETER = "repeated_parameter"
    CSRF = "csrf"
    THROTTLED = "throttled"
    NOT_READY = "not_ready"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. The first of `sentences` whose numbers are all known is said."""

    status: int
    title: Words
    sentences: tuple[Words, ...]
    next_step: Words


#: Why GPUs do not take an ask, each counted once (core.placement); nobody is named.
IN_THE_WAY: Mapping[str, Words] = {
    "busy": _("%(n)s booked"),
    "media": _("%(n)s without a free media engine"),
    "limit": _("%(n)s with the most slices of that kind"),
    "room": _("%(n)s with some room"),
    "same_node": _("%(n)s with room on other nodes"),
    "other_domain": _("%(n)s with room in other NVLink domains"),
    "other_block": _("%(n)s with room in other blocks"),
    "imex_not_ready": _("%(n)s with room on nodes that cannot share memory with others (IMEX is not ready)"),
    "node_full": _("%(n)s on nodes with too little cpu or memory left"),
    "guaranteed_to_others": _("%(n)s free, but needed for what other teams are guaranteed"),
    "other_mode": _("%(n)s in another mode at that time or just before or after it"),
    "unknown": _("%(n)s not heard from"),
    "frozen": _("%(n)s frozen"),
    "observe": _("%(n)s only observed, not managed"),
    "lost": _("%(n)s lost"),
    "retired": _("%(n)s retired"),
    "blocked": _("%(n)s occupied by something that is not booked"),
    "overrun": _("%(n)s where what is over still runs"),
    "foreign": _("%(n)s used by somebody without a booking"),
    "unusable": _("%(n)s not usable"),
    "unhealthy": _("%(n)s taken out of use by a fault"),
    "managed_elsewhere": _("%(n)s given out by something else on their node"),
    "update_needed": _("%(n)s whose agent is too old for shares"),
    "other_user": _("%(n)s whose shares are another account's"),
    "memory_full": _("%(n)s with too little memory left"),
    "compute_full": _("%(n)s with too little compute left"),
    "shares_full": _("%(n)s with the most shares that are allowed"),
    "no_such_sharing": _("%(n)s shared in another way"),
    "not_enforced": _("%(n)s that keep no limit, which you have not accepted"),
    "node": _("%(n)s on other nodes than asked"),
    "no_such_model": _("%(n)s of other models"),
    "wrong_use": _("%(n)s set to another use"),
    "no_such_profile": _("%(n)s without that profile"),
    "too_small": _("%(n)s too small"),
    "memory_unknown": _("%(n)s whose memory is not known"),
}

#: The next step where no time helps: the pool cannot hold so much of it even when it is empty.
#: Not where a GPU in the way may come back by itself or by an operator's hand.
MAY_COME_BACK = frozenset(
    {"unknown", "frozen", "observe", "lost", "blocked", "unusable", "unhealthy", "memory_unknown"}
    | {"managed_elsewhere", "update_needed", "overrun", "foreign"}
)
NEVER_FITS = _("No other time helps. Ask for fewer or for something else, or ask an operator.")
#: What only some may do -> whom to ask; of all else the table says it.
WHOM: Mapping[str, Words] = {
    "decide": _("Ask an approver to decide."),
    "set_quota": _("Ask an approver to set it."),
}
#: What needs an approver is not given from the wait list.
NOT_WAITED = _("So large a booking needs an approver, and is not given from the wait list.")
BOOK_AHEAD = _("Book it with a start that leaves time to approve it, or wait for less.")
LARGEST_FITS = _("Book what fits instead, or choose another time.")

TABLE: Mapping[str, Row] = {
    Code.MALFORMED: Row(
        400,
        _("The request cannot be read"),
        (
            _("%(pointer)s must look like %(expected)s."),
            _("%(pointer)s cannot be read: %(why)s."),
            _("It cannot be read: %(why)s."),
            _("It cannot be read."),
        ),
        _("Send well-formed input as the documentation shows."),
    ),
    Code.NAIVE_TIME: Row(
        400,
        _("A time lacks its offset"),
        (_("%(pointer)s has no offset from UTC."), _("The time has no offset from UTC.")),
        _("Write times like 2027-03-01T10:00:00Z or 2027-03-01T18:00:00+08:00."),
    ),
    Code.INVALID: Row(
        422,
        _("Some fields cannot be taken"),
        (_("At least one field cannot be taken as it is."),),
        _("Correct the fields that are named and send it again."),
    ),
    Code.FORBIDDEN: Row(
        403,
        _("Not permitted"),
        (_("Your role does not allow this."),),
        _("Ask a lead of the team, or an operator."),
    ),
    Code.NOT_FOUND: Row(
        404,
        _("Not found"),
        (_("Nothing by that name exists, or it is not yours to see."),),
        _("Check the name or the id."),
    ),
    Code.NO_CAPACITY: Row(
        409,
        _("No room"),
        (
            _("%(asked)s asked, %(free)s free for the whole time, of %(offered)s that the pool can hold."),
            _("%(asked)s asked, %(free)s free for the whole time."),
            _("Nothing that fits is free for the whole time."),
        ),
        _("Choose another time, fewer, or a smaller slice."),
    ),
    Code.QUOTA_EXCEEDED: Row(
        409,
        _("Over quota"),
        (_("The team's quota does not allow it."),),
        _("Ask for quota, choose another time, or release something."),
    ),
    Code.NEEDS_APPROVAL: Row(
        409,
        _("It needs approval"),
        (
            _("So large a booking needs an approver; it can start at %(earliest)s at the earliest."),
            _("So large a booking needs an approver, and %(most)s of the team's wait for one already."),
            _("So large a booking needs an approver, also for more time."),
        ),
        _("Ask for less, for a later start, or for the time after it as a new booking."),
    ),
    Code.TAKEN: Row(
        409,
        _("Already taken"),
        (_("%(name)s exists already."), _("Somebody else was quicker.")),
        _("Look again and choose anew."),
    ),
    Code.ONE_HOLD: Row(
        409,
        _("You hold something already"),
        (_("What you hold is kept for you until %(hold_until)s."), _("Each person can hold one thing.")),
        _("Book it or release it, then hold another."),
    ),
    Code.LAPSED: Row(
        409,
        _("The hold has lapsed"),
        (
            _("It was kept for you until %(hold_until)s."),
            _("It could be approved until %(approve_by)s."),
            _("It was not booked in time."),
        ),
        _("Look at the offers again and hold another, or book it anew."),
    ),
    Code.WRONG_STATE: Row(
        409,
        _("Not possible in this state"),
        (
            ngettext_lazy(
                "%(count)s booking stands in the way.", "%(count)s bookings stand in the way.", "count"
            ),
            _("Its state is “%(state)s”; “%(wanted)s” cannot follow that."),
            _("Its state is “%(state)s”; that does not allow this."),
            _("Its state does not allow this."),
        ),
        _("Look at its state and its events."),
    ),
    Code.PROMISED: Row(
        409,
        _("More is promised already"),
        (
            _("Bookings that lie above that limit, wholly or in part: %(count)s."),
            _("Bookings lie above that limit, wholly or in part."),
        ),
        _("They would stay as they are, and what is new would be refused. Confirm that you want this."),
    ),
    Code.OWN_REQUEST: Row(
        403,
        _("It is your own"),
        (_("Nobody decides on what they, or a service account of theirs, have asked for."),),
        _("Ask another approver to decide."),
    ),
    Code.STALE: Row(
        412,
        _("Changed in the meantime"),
        (
            _("%(decided_by)s has decided on it already."),
            _("It is at version %(version)s, you knew version %(known)s."),
            _("It is at version %(version)s by now."),
            _("It was changed after you read it."),
        ),
        _("Read it again, then decide."),
    ),
    Code.FROZEN: Row(
        409,
        _("Frozen"),
        (_("%(target)s is frozen by an operator."), _("It is frozen by an operator.")),
        _("Bookings are kept. Wait until it is thawed, or ask an operator."),
    ),
    Code.NOT_HEALTHY: Row(
        409,
        _("Not healthy yet"),
        (
            _("%(good)s good reports in a row since its last fault; %(needed)s are needed."),
            _("It has not been seen healthy for long enough."),
        ),
        _("Wait for the next reports. If it stays so, look at its faults and at the node."),
    ),
    Code.KEY_REUSED: Row(
        422,
        _("Idempotency key used before"),
        (_("This Idempotency-Key came with another request before."),),
        _("Use a new key for a new request."),
    ),
    Code.IN_PROGRESS: Row(
        409,
        _("Still in progress"),
        (_("A request with this Idempotency-Key is being worked on."),),
        _("Send the same request again in a moment."),
    ),
    Code.BUSY: Row(
        503,
        _("Busy"),
        (_("Too many changes at once; nothing was written."),),
        _("Try again in a few seconds."),
    ),
    Code.WRONG_NODE: Row(
        403,
        _("Another node's report"),
        (_("The token belongs to another node than the report; nothing was taken."),),
        _("Check the agent's state folder, or join the node anew."),
    ),
    Code.UNSUPPORTED_WIRE: Row(
        409,
        _("Agent and portal do not understand one another"),
        (_("The agent speaks version %(wire)s, the portal %(accepted)s."), _("The version is not accepted.")),
        _("Update the portal first, then the agent."),
    ),
    Code.BAD_TOKEN: Row(
        401,
        _("Token not accepted"),
        (_("The token or code is unknown, used up, expired or revoked."),),
        _("Make a new token and send it as Authorization: Bearer ..."),
    ),
    DoorCode.UNAUTHENTICATED: Row(
        401,
        _("Who are you?"),
        (_("The request carries no token and no session."),),
        _("Send a token as Authorization: Bearer gpp_..."),
    ),
    DoorCode.METHOD_NOT_ALLOWED: Row(
        405,
        _("Method not allowed"),
        (_("%(method)s is not possible here, only %(allow)s."), _("That method is not possible here.")),
        _("Use one of the methods of the Allow header."),
    ),
    DoorCode.NOT_ACCEPTABLE: Row(
        406,
        _("Only JSON is spoken here"),
        (_("The Accept header excludes application/json."),),
        _("Accept application/json."),
    ),
    DoorCode.UNSUPPORTED_MEDIA_TYPE: Row(
        415,
        _("Only JSON is read here"),
        (_("The content type %(content_type)s is not read here."), _("The content type is missing.")),
        _("Send JSON with Content-Type: application/json."),
    ),
    DoorCode.LENGTH_REQUIRED: Row(
        411,
        _("Length required"),
        (_("The request does not say how long its body is."),),
        _("Send Content-Length, and no Transfer-Encoding."),
    ),
    DoorCode.TOO_LARGE: Row(
        413,
        _("Too large"),
        (
            _("The body has %(bytes)s bytes, the limit is %(limit)s."),
            _("The body is over the limit of %(limit)s bytes."),
            _("The body is over the limit."),
        ),
        _("Send less at once."),
    ),
    DoorCode.UNKNOWN_PARAMETER: Row(
        400,
        _("Unknown parameter"),
        (
            _("%(parameter)s is not known here; known: %(known)s."),
            _("%(parameter)s is not known here; no parameters are taken."),
            _("A parameter is not known here."),
        ),
        _("Leave it out or correct its name."),
    ),
    DoorCode.REPEATED_PARAMETER: Row(
        400,
        _("Parameter given more than once"),
        (_("%(parameter)s is given %(times)s times; once is possible."), _("A parameter is given twice.")),
        _("Give it once."),
    ),
    DoorCode.CSRF: Row(
        403,
        _("The form has expired"),
        (_("The CSRF token is missing or wrong."),),
        _("Load the page again, or use a token."),
    ),
    DoorCode.THROTTLED: Row(
        429,
        _("Too many requests"),
        (_("Try again in %(wait_s)s seconds."), _("Too many requests came from there.")),
        _("Wait for the time in Retry-After."),
    ),
    DoorCode.NOT_READY: Row(
        503,
        _("Not ready"),
        (_("%(pending)s migrations are missing."), _("The database does not answer.")),
        _("Wait; if it stays, look at the portal's log."),
    ),
    DoorCode.INTERNAL: Row(
        500,
        _("Something broke on our side"),
        (_("It has been logged under the request id."),),
        _("Try again; if it happens again, tell an operator the request id."),
    ),
}
