"""Filters and tags of the pages, built into every template (settings): times, sizes, charges, words.

A value that is None comes out as "not measured" or "unknown", never as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from pool.queries import notices, quota_requests
from portal.web import words

register = template.Library()


@register.simple_tag
def moment(at: datetime | None, style: str = "full") -> SafeString | str:
    """A `<time>` in the viewer's zone; the title has it in ISO with the zone's name.

    `style`: full, short (no year when it is this year's), or clock.
    """
    if at is None:
        return _("open")
    title = f"{timezone.localtime(at).isoformat(timespec='seconds')} {timezone.get_current_timezone_name()}"
    return format_html(
        '<time class="nowrap" datetime="{}" title="{}">{}</time>', at.isoformat(), title, written(at, style)
    )


def written(at: datetime, style: str = "full") -> str:
    """As `moment`, as plain text."""
    patterns = {
        "full": pgettext("date format: day and time with year", "D j M Y, H:i"),
        "short": pgettext("date format: day and time", "D j M, H:i"),
        "clock": pgettext("date format: time with seconds", "H:i:s"),
    }
    return date_format(timezone.localtime(at), patterns[style])


@register.filter
def offset(at: datetime) -> str:
    """`CET, UTC+01:00`: which of two readings of a clock this instant is."""
    text = at.strftime("%z")
    return f"{at.tzname()}, UTC{text[:3]}:{text[3:5]}"


@register.filter
def lasts(span: timedelta | None) -> str:
    """`2 d 3 h`, `45 min`, `12 s`: the two largest units; never negative."""
    if span is None:
        return _("open-ended")
    seconds = max(int(span.total_seconds()), 0)
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    named = [
        (days, pgettext("unit", "%(n)s d")),
        (hours, pgettext("unit", "%(n)s h")),
        (minutes, pgettext("unit", "%(n)s min")),
        (seconds if not (days or hours) else 0, pgettext("unit", "%(n)s s")),
    ]
    parts = [text % {"n": n} for n, text in named if n][:2]
    return " ".join(parts) or pgettext("unit", "%(n)s s") % {"n": 0}


@register.filter
def minutes(count: int) -> str:
    return lasts(timedelta(minutes=count))


@register.filter
def percent(share: float | None) -> str:
    """`12 %` for 0.12; what is there is never told as 0 %, nor what is not all as 100 %."""
    if share is None:
        return _("unknown")
    if 0 < share < 0.005:
        return "< 1 %"
    return f"{min(round(100 * share), 100 if share >= 1 else 99)} %"


@register.filter
def gpus(milli: float | None) -> str:
    """`0.125` for 125 thousandths of a GPU."""
    return _("unknown") if milli is None else f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


@register.filter
def count_gpus(milli: int | None) -> str:
    """`0.125 GPU`, `2 GPUs`."""
    if milli is None:
        return _("unknown")
    return ngettext("%(n)s GPU", "%(n)s GPUs", max(1, -(-milli // 1000))) % {"n": gpus(milli)}


@register.filter
def gib(mib: float | None) -> SafeString | str:
    """`9.8 GiB`; "not measured" for None."""
    if mib is None:
        return unmeasured()
    return f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"


@register.filter
def measured(value: float | None, unit: str = "") -> SafeString | str:
    """A reading with its unit, without false digits."""
    return unmeasured() if value is None else f"{value:.4g} {unit}".rstrip()


@register.simple_tag
def unmeasured() -> SafeString:
    return format_html('<span class="unmeasured">{}</span>', _("not measured"))


@register.filter
def slices(start_size: tuple[int, int]) -> str:
    """`slice 3` or `slices 4-7` for a (start, size) on the memory grid."""
    start, size = start_size
    if size == 1:
        return _("slice %(n)s") % {"n": start}
    return _("slices %(first)s–%(last)s") % {"first": start, "last": start + size - 1}


@register.filter
def span(start: int, size: int) -> str:
    """As `slices`, of two values."""
    return slices((start, size))


@register.inclusion_tag("frame/pill.html")
def state_pill(state: str) -> dict[str, Any]:
    label, tone = words.STATES.get(state, (state, "quiet"))
    return {"label": label, "tone": tone}


@register.inclusion_tag("frame/pill.html")
def pill(label: str, tone: str = "quiet") -> dict[str, Any]:
    return {"label": label, "tone": tone}


@register.inclusion_tag("frame/pill.html")
def request_pill(state: str) -> dict[str, Any]:
    label, tone = words.REQUEST_STATES.get(state, (state, "quiet"))
    return {"label": label, "tone": tone}


@register.simple_tag(takes_context=True)
def unread(context: Mapping[str, Any]) -> int:
    """How many messages the viewer has not read."""
    return notices.unread(context["user"])


@register.simple_tag(takes_context=True)
def decides(context: Mapping[str, Any]) -> bool:
    """Whether the viewer decides on quota and bookings."""
    return quota_requests.decides(context["user"])


@register.filter
def gib_of(mib: float | None) -> str:
    """As `gib`; "not limited" for None."""
    return _("not limited") if mib is None else f"{mib / 1024:.4g} GiB"


@register.filter
def hours_of(milli: int | None) -> str:
    """GPU-hours of thousandths of them; "not limited" for None."""
    if milli is None:
        return _("not limited")
    return _("%(n)s GPU-hours") % {"n": f"{milli / 1000:,.1f}".removesuffix(".0")}


def _lookup(table: Mapping[str, Any], code: str) -> Any:
    return table.get(code, code)


@register.filter
def state_label(state: str) -> Any:
    return words.STATES.get(state, (state, ""))[0]


@register.filter
def reason_label(code: str) -> Any:
    return _lookup(words.REASONS, code)


@register.filter
def verb_label(code: str) -> Any:
    return _lookup(words.VERBS, code)


@register.filter
def role_label(code: str) -> Any:
    return _lookup(words.ROLES, code)


@register.filter
def use_label(code: str) -> Any:
    return _lookup(words.USES, code)


@register.filter
def class_label(code: str) -> Any:
    return words.CLASSES.get(code, (code, ""))[0]


@register.filter
def access_label(code: str) -> Any:
    return _lookup(words.ACCESS, code)


@register.filter
def blocker_label(code: str) -> Any:
    return _lookup(words.BLOCKERS, code)


@register.filter
def unusable_label(code: str) -> Any:
    return _lookup(words.UNUSABLE, code)


@register.filter
def trouble_label(code: str) -> Any:
    return _lookup(words.TROUBLES, code)


@register.filter
def isolation_label(code: str) -> Any:
    return words.ISOLATION.get(code, (code, ""))[0]


@register.filter
def isolation_means(code: str) -> Any:
    return words.ISOLATION.get(code, ("", ""))[1]


@register.filter
def access_limit(code: str) -> Any:
    """What a way of access does not keep off; "" where there is no more to say."""
    return words.ACCESS_LIMITS.get(code, "")


@register.filter
def fault_action(code: str) -> Any:
    return _lookup(words.ACTIONS, code)


@register.filter
def sharing_label(code: str) -> Any:
    return words.SHARINGS.get(code, (code, ""))[0]
