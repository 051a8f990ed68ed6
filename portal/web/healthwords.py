"""Words for how a card is: what holds its clocks down, its fabric, whose what is; codes are the wire's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Words

#: Why clocks are held down.
THROTTLE: Mapping[str, Words] = {
    "idle": _("nothing to do"),
    "applications_clocks": _("set clocks"),
    "sw_power_cap": _("power limit"),
    "hw_slowdown": _("slowed down by the hardware"),
    "sync_boost": _("kept in step with other GPUs"),
    "sw_thermal": _("too warm"),
    "hw_thermal": _("too hot: slowed down by the hardware"),
    "power_brake": _("power brake of the server"),
    "display_clocks": _("display clocks"),
    "board_limit": _("limit of the board"),
    "reliability": _("voltage limit"),
}

FABRIC: Mapping[str, Words] = {
    "not_supported": _("not supported"),
    "not_started": _("not started"),
    "in_progress": _("being set up"),
    "completed": _("ready"),
    "failed": _("failed"),
    "healthy": _("healthy"),
    "unhealthy": _("not healthy"),
    "limited": _("limited"),
}

COMPUTE_MODES: Mapping[str, Words] = {
    "default": _("any number of processes"),
    "prohibited": _("no process"),
    "exclusive_process": _("one process"),
    "exclusive_thread": _("one thread"),
}

LINKS: Mapping[str, Words] = {
    "nvlink": _("NVLink to"),
    "nvswitch": _("NVLink switch"),
}

#: How a share is on its node.
SHARES: Mapping[str, Words] = {
    "ok": _("there"),
    "degraded": _("what keeps it apart does not answer"),
    "over": _("takes more memory than it has"),
}

#: How a process was found to be somebody's.
BY: Mapping[str, Words] = {
    "cdi": _("its container has the device"),
    "label": _("the label of its container"),
    "environment": _("its environment"),
    "user": _("its account"),
    "adopted": _("it ran there when it was adopted"),
}

SESSIONS: Mapping[str, Words] = {
    "terminal": _("terminal"),
    "notebook": _("notebook"),
}

#: What measured the activity of an instance.
SOURCES: Mapping[str, Words] = {
    "nvml": _("the driver"),
    "gpm": _("the driver's performance monitor (GPM)"),
    "dcgm": _("dcgm-exporter"),
}
