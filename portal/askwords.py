"""What an ask wants, in words of the moment's language: for pages, refusals and answers alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext, ngettext


def asked(ask: Mapping[str, Any]) -> str:
    """`2 × 1g.10gb`, `4 × H100-80GB`, `1 × GPU with 40 GiB`: what a stored ask wants."""
    count, models = ask.get("count", 1), ask.get("models") or ()
    if ask.get("kind") == "gpu":
        name = " / ".join(models) or gettext("whole GPU")
    elif ask.get("kind") == "share":
        return f"{count} × {_share(ask, ' / '.join(models))}"
    elif ask.get("profile"):
        name = str(ask["profile"])
    else:
        name = gettext("MIG slice")
    if ask.get("memory_mib"):
        name = gettext("%(name)s with %(gib)s GiB") % {"name": name, "gib": f"{ask['memory_mib'] / 1024:.4g}"}
    return f"{count} × {name}"


def in_full(ask: Mapping[str, Any]) -> str:
    """As `asked`, and where the pieces have to lie: `4 × H100-80GB, all on one node, 16 CPUs with each`."""
    return ", ".join([asked(ask), *_conditions(ask)])


def _share(ask: Mapping[str, Any], models: str) -> str:
    """`share of H100-80GB with 8 GiB and 20 % compute`; `20–100 %` where more may be taken."""
    name = gettext("share of %(model)s") % {"model": models} if models else gettext("share")
    given = ask.get("memory_pct")
    memory = f"{given} %" if given else f"{ask.get('memory_mib', 0) / 1024:.4g} GiB"
    compute = ask.get("compute") or {}
    least, most = compute.get("guaranteed", 0), compute.get("limit", 0)
    part = f"{least} %" if least == most else f"{least}–{most} %"
    return gettext("%(name)s with %(memory)s memory and %(compute)s compute") % {
        "name": name,
        "memory": memory,
        "compute": part,
    }


def _conditions(ask: Mapping[str, Any]) -> Iterator[str]:
    if ask.get("same_node"):
        yield gettext("all on one node")
    if ask.get("node"):
        yield gettext("on %(node)s") % {"node": ask["node"]}
    if ask.get("same_nvlink_domain"):
        yield gettext("all in one NVLink domain")
    if ask.get("spread"):
        yield gettext("each on another node")
    if ask.get("segment"):
        yield _segment(int(ask["segment"]), bool(ask.get("spread")))
    if ask.get("node_cpu_milli"):
        yield gettext("%(n)s CPUs with each") % {"n": f"{ask['node_cpu_milli'] / 1000:g}"}
    if ask.get("node_memory_mib"):
        yield gettext("%(gib)s GiB of the node's memory with each") % {
            "gib": f"{ask['node_memory_mib'] / 1024:.4g}"
        }


def _segment(size: int, of_nodes: bool) -> str:
    if of_nodes:
        said = ngettext("in segments of %(n)s node", "in segments of %(n)s nodes", size)
    else:
        said = ngettext("in segments of %(n)s GPU", "in segments of %(n)s GPUs", size)
    return said % {"n": size}
