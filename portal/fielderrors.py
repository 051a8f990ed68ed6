"""What is wrong with one field, in words: field code -> sentence. Used by `portal.errors` and by forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

#: The first sentence whose numbers are all known is said.
SENTENCES: Mapping[str, tuple[Words, ...]] = {
    "required": (_("This is required."),),
    "blank": (_("This must not be empty."),),
    "unknown_field": (
        _("There is no such field; known: %(known)s."),
        _("There is no such field; no fields are taken."),
    ),
    "not_an_object": (_("This must be an object with fields."),),
    "not_a_list": (_("This must be a list."),),
    "not_a_string": (_("This must be text."),),
    "not_an_integer": (
        _("This must be a whole number from %(min)s to %(max)s."),
        _("This must be a whole number."),
    ),
    "not_a_boolean": (_("This must be true or false."),),
    "malformed": (
        _("This cannot be read: %(why)s."),
        _("This is not readable text of at most %(max_length)s characters."),
        _("This cannot be read."),
    ),
    "not_a_choice": (_("This must be one of: %(choices)s."), _("This is not one of the choices.")),
    "too_small": (_("This must be at least %(min)s."), _("This is too small.")),
    "too_large": (_("This must be at most %(max)s."), _("This is too large.")),
    "too_long": (_("This may have at most %(max)s characters."), _("This is too long.")),
    "bad_characters": (_("This holds characters that cannot be stored."),),
    "too_few": (_("At least %(min)s are needed."), _("More are needed.")),
    "too_many": (_("At most %(max)s are possible."), _("These are too many.")),
    "duplicate": (_("This is named twice."),),
    "unknown_profile": (
        _("No model has such a profile; known: %(known)s."),
        _("No model has such a profile."),
    ),
    "unknown_model": (_("No such model is known; known: %(known)s."), _("No such model is known.")),
    "online_is_firm": (_("Online work is never taken back."),),
    "never_taken_back": (_("What is never taken back needs no word before."),),
    "not_together": (_("This cannot go together with %(other)s."), _("These exclude one another.")),
    "one_of": (_("Exactly one of these is needed: %(choices)s."), _("Exactly one of these is needed.")),
    "naive_time": (_("The time has no offset from UTC."),),
    "start_in_past": (
        _("The start %(start)s lies before now (%(now)s) by more than %(grace_s)s seconds."),
        _("The start %(start)s lies in the past; it is %(now)s."),
        _("The start lies in the past."),
    ),
    "end_before_start": (
        _("The end %(end)s is not after the start %(start)s."),
        _("The end is not after the start."),
    ),
    "not_later": (
        _("The end %(end)s is not later than the present one, %(current)s."),
        _("This is not later than the present end."),
    ),
    "end_in_past": (
        _("The end %(end)s lies in the past; it is %(now)s."),
        _("The end lies in the past."),
    ),
    "too_early": (_("This must not be before %(min)s."), _("This is too early.")),
    "too_late": (_("This must not be after %(max)s."), _("This is too late.")),
    "unknown_zone": (_("There is no such time zone."),),
    "no_such_time": (
        _("The clocks skip this time; choose one of: %(choices)s."),
        _("The clocks skip this time."),
    ),
    "ambiguous_time": (
        _("The clocks show this time twice; choose one of: %(choices)s."),
        _("The clocks show this time twice."),
    ),
    "too_far": (_("This must not be after %(max)s."), _("This is too far away.")),
    "only_batch_above": (
        _("Only batch work may take more than the %(guaranteed)s percent that are guaranteed."),
        _("Only batch work may take more than is guaranteed."),
    ),
    "does_not_divide": (
        _("%(count)s cannot be cut into segments of %(segment)s."),
        _("The count cannot be cut into such segments."),
    ),
    "only_whole_gpus": (
        _("Only whole GPUs reach one another over NVLink; slices and shares have no such traffic."),
    ),
    "not_enforced": (
        _("Time slicing keeps neither limit; say that you accept it, or choose another kind of share."),
    ),
    "managed_elsewhere": (
        _(
            "%(managers)s on its node gives this GPU out. Take the GPU out of its configuration first, "
            "and then state here that it is excluded."
        ),
        _("Something else on its node gives this GPU out. Exclude it there first, and then state so here."),
    ),
    "nothing_foreign": (_("The last report shows no foreign use that begins there."),),
    "not_a_slice": (_("What is there is no slice that this GPU offers, so nobody could be given it."),),
    "not_offered": (_("Its node cannot keep shares apart so."),),
    "update_needed": (_("Its agent is too old for this. Update it first."),),
    "not_mig_capable": (_("It cannot be divided into MIG slices."),),
    "not_reported": (_("No report has described it yet."),),
    "lost": (_("It is lost."),),
    "retired": (_("It is retired."),),
    "not_a_member": (_("No such member of the team."),),
    "more_than_there_is": (
        _(
            "Together %(guaranteed_gpu)s GPU would be guaranteed from %(at)s on, of %(room_gpu)s GPU that "
            "%(whose)s is guaranteed."
        ),
        _(
            "Together %(guaranteed_gpu)s GPU would be guaranteed from %(at)s on, of %(room_gpu)s GPU that "
            "there are."
        ),
    ),
    "nothing_asked": (_("Ask for something: GPUs, memory or GPU-hours."),),
    "other_line": (_("A renewal is for the same team, pool and model as what it renews."),),
    "not_granted": (_("Only what was granted can be renewed."),),
}

UNKNOWN = _("This cannot be taken (%(code)s).")


def field_sentence(code: str, data: Mapping[str, Any]) -> str:
    """What is wrong, in the active language; `data` holds the numbers as they shall be shown."""
    for sentence in SENTENCES.get(code, ()):
        try:
            return str(sentence) % data
        except KeyError:
            continue
    return str(UNKNOWN) % {"code": code}
