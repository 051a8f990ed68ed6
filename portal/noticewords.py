"""What people are told, in words of the moment's language: for the inbox and for mail alike.

A kind is a row of the table; the first sentence whose numbers are all known is said. A mail
has the recipient's language, absolute times with their zone, and a link to the message's own
page, where what can be done takes a login and one confirmation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.formats import date_format
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from pool.core.calendar import zone as zone_named
from pool.core.errors import Refusal
from portal.askwords import asked

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

    from pool.models import OutboxMessage, User


@dataclass(frozen=True, slots=True)
class Kind:
    """`acts`: what its page offers beside a link to what it is about: extend, release, accept, renew."""

    subject: Words
    sentences: tuple[Words, ...]
    tone: str = "info"
    acts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """A message in words."""

    subject: str
    sentence: str
    tone: str
    acts: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    "ends_soon": Kind(
        _("It ends soon: %(what)s"),
        (_("%(what)s ends %(end)s. Extend it if you need it for longer, or give it back if you do not."),),
        "warn",
        ("extend", "release"),
    ),
    "started_late": Kind(
        _("It started late: %(what)s"),
        (
            _("%(what)s was to start %(planned)s and started %(start)s."),
            _("%(what)s started later than it was booked for."),
        ),
        "info",
        ("extend", "release"),
    ),
    "evicted": Kind(
        _("It is taken back: %(what)s"),
        (
            _(
                "%(what)s ends %(recall_at)s: its %(inside_gpu)s GPU lie within what %(team)s is guaranteed, "
                "but where alone another team finds what it is guaranteed. Save your work before. The rest "
                "of its time waits at the head of the wait list, and gets as much in another place."
            ),
            _(
                "%(what)s ends %(recall_at)s: it was borrowed, and %(for_team)s needs what it is guaranteed. "
                "Save your work before. The rest of its time waits at the head of the wait list."
            ),
            _(
                "%(what)s ends %(recall_at)s: it was borrowed, and a team needs what it is guaranteed. "
                "Save your work before. The rest of its time waits at the head of the wait list."
            ),
            _("%(what)s is taken back. The rest of its time waits at the head of the wait list."),
        ),
        "bad",
        ("release",),
    ),
    "returned": Kind(
        _("It stays: %(what)s"),
        (_("%(what)s is not taken back after all: what was to have its place does not need it any more."),),
        "good",
    ),
    "offered": Kind(
        _("It is offered to you: %(what)s"),
        (
            _("%(what)s is free and kept for you until %(hold_until)s. Accept it, or it goes to the next."),
            _("%(what)s is free and kept for you. Accept it, or it goes to the next."),
        ),
        "good",
        ("accept", "release"),
    ),
    "offer_lapsed": Kind(
        _("The offer has lapsed: %(what)s"),
        (_("%(what)s was kept for you, and nobody accepted in time."),),
        "warn",
        ("release",),
    ),
    "wait_lapsed": Kind(
        _("The wait is over: %(what)s"),
        (_("%(what)s did not become free in the time that you named. Ask anew if you still need it."),),
        "warn",
    ),
    "started_from_wait": Kind(
        _("It is yours: %(what)s"),
        (
            _("%(what)s came free and is booked for you from %(start)s until %(end)s."),
            _("%(what)s came free and is booked for you."),
        ),
        "good",
        ("extend", "release"),
    ),
    "booking_to_approve": Kind(
        _("To approve: %(what)s"),
        (_("%(by)s of %(team)s asks for %(what)s from %(start)s until %(end)s. It lapses %(approve_by)s."),),
        "warn",
    ),
    "booking_approved": Kind(
        _("Approved: %(what)s"),
        (
            _("%(by)s has approved %(what)s. It starts %(start)s."),
            _("%(what)s is approved. It starts %(start)s."),
        ),
        "good",
        ("release",),
    ),
    "booking_denied": Kind(
        _("Denied: %(what)s"),
        (_("%(by)s has denied %(what)s: %(answer)s"), _("%(what)s was denied.")),
        "bad",
    ),
    "approval_lapsed": Kind(
        _("Nobody decided: %(what)s"),
        (_("Nobody has approved %(what)s in time, so it has lapsed. Ask again, or for less."),),
        "bad",
    ),
    "request_submitted": Kind(
        _("To decide: %(team)s asks for quota"),
        (_("%(by)s asks for more of the pool %(pool)s for the team %(team)s."),),
        "warn",
    ),
    "request_comment": Kind(
        _("A word on the request of %(team)s"),
        (_("%(by)s has said something about the request of %(team)s in the pool %(pool)s."),),
    ),
    "request_approved": Kind(
        _("Granted to %(team)s"),
        (_("%(by)s has granted %(team)s %(amount)s in the pool %(pool)s from %(start)s until %(end)s."),),
        "good",
    ),
    "request_denied": Kind(
        _("Denied to %(team)s"),
        (_("%(by)s has denied the request of %(team)s in the pool %(pool)s: %(answer)s"),),
        "bad",
    ),
    "grant_began": Kind(
        _("It has begun: what was granted to %(team)s"),
        (_("%(team)s has %(amount)s more in the pool %(pool)s until %(end)s."),),
        "good",
    ),
    "grant_ends": Kind(
        _("It ends soon: what was granted to %(team)s"),
        (
            _(
                "What was granted to %(team)s in the pool %(pool)s (%(amount)s) ends %(end)s. "
                "Renew it if you need it for longer."
            ),
        ),
        "warn",
        ("renew",),
    ),
    "grant_ended": Kind(
        _("It has ended: what was granted to %(team)s"),
        (
            _(
                "What was granted to %(team)s in the pool %(pool)s (%(amount)s) has ended. Bookings that go "
                "on stay, and may be taken back where they are above what is guaranteed."
            ),
        ),
        "warn",
        ("renew",),
    ),
    "budget": Kind(
        _("%(percent)s percent of the budget of %(team)s"),
        (
            _(
                "%(team)s is charged %(spent_hours)s of its %(budget_hours)s GPU-hours of this month in the "
                "pool %(pool)s. Once all is used, nothing new is booked until the next month."
            ),
        ),
        "warn",
    ),
}

#: What is said of a kind that has no words yet.
ELSE = Kind(_("Something happened: %(kind)s"), (_("Look at what it is about."),))


def said(message: OutboxMessage) -> Said:
    """The message in the active language, with times in the active zone."""
    kind = KINDS.get(message.kind, ELSE)
    shown = _shown(message)
    return Said(_say((kind.subject,), shown), _say(kind.sentences, shown), kind.tone, kind.acts)


def letter(message: OutboxMessage) -> tuple[str, str]:
    """Subject and text of a mail: in the recipient's language and zone."""
    user = message.recipient
    with translation.override(_language(user)), timezone.override(zone_of(user)):
        told = said(message)
        link = settings.URL + reverse("notice", args=[message.pk])
        lines = [
            told.sentence,
            "",
            gettext("See it and decide what to do:"),
            link,
            "",
            gettext("You get this mail because it is yours or you decide on it."),
        ]
        return f"[gpupool] {told.subject}", "\n".join(lines) + "\n"


def zone_of(user: User) -> ZoneInfo:
    """The user's own zone, else that of a team of theirs, else UTC."""
    names = [user.zone]
    if not user.zone:
        names += [one.team.zone for one in user.memberships.select_related("team").order_by("pk")[:1]]
    for name in names:
        try:
            return zone_named(name)
        except Refusal:
            continue
    return ZoneInfo("UTC")


def _language(user: User) -> str:
    known = {code for code, _name in settings.LANGUAGES}
    return user.language if user.language in known else settings.LANGUAGE_CODE


def _shown(message: OutboxMessage) -> dict[str, str]:
    """The numbers as a person reads them; what is None is not known, so its sentence is not said."""
    data = {name: value for name, value in message.data.items() if value is not None}
    shown = {name: _text(value) for name, value in data.items()}
    shown["kind"] = message.kind
    if message.reservation is not None:
        row = message.reservation
        shown.setdefault("what", row.title or asked(row.ask))
        shown.setdefault("team", row.team.name)
        shown.setdefault("start", _instant(row.period.lower))
        if row.period.upper is not None:
            shown.setdefault("end", _instant(row.period.upper))
    if "cap_milli" in data:
        shown["amount"] = amount(data)
    return shown


def amount(data: Mapping[str, Any]) -> str:
    """`2 GPUs (1 guaranteed), 80 GiB, 100 GPU-hours a month`: of a grant what there is of it."""
    cap, guaranteed = data.get("cap_milli") or 0, data.get("guaranteed_milli") or 0
    memory, hours = data.get("memory_mib") or 0, data.get("budget_milli_hours") or 0
    parts = []
    if cap:
        parts.append(
            gettext("%(cap)s GPU, of which %(guaranteed)s guaranteed")
            % {"cap": f"{cap / 1000:g}", "guaranteed": f"{guaranteed / 1000:g}"}
            if guaranteed
            else gettext("%(cap)s GPU") % {"cap": f"{cap / 1000:g}"}
        )
    if memory:
        parts.append(gettext("%(gib)s GiB of GPU memory") % {"gib": f"{memory / 1024:.4g}"})
    if hours:
        parts.append(gettext("%(hours)s GPU-hours a month") % {"hours": f"{hours / 1000:g}"})
    return ", ".join(parts) or gettext("nothing")


def _say(sentences: tuple[Words, ...], shown: Mapping[str, str]) -> str:
    for sentence in sentences:
        try:
            return str(sentence) % shown
        except KeyError:
            continue
    return str(ELSE.subject) % shown


def _text(value: object) -> str:
    if isinstance(value, str) and len(value) >= 20 and value[10:11] == "T":
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return value
        return value if at.tzinfo is None else _instant(at)
    return str(value)


def _instant(at: datetime) -> str:
    """Day, time and zone with its offset: what it says is the same wherever it is read."""
    local = timezone.localtime(at)
    offset = local.strftime("%z")
    pattern = pgettext("date format: day and time with year", "D j M Y, H:i")
    return f"{date_format(local, pattern)} {local.tzname()} (UTC{offset[:3]}:{offset[3:5]})"
