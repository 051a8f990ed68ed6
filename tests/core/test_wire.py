"""Messages survive the wire, ignore what they do not know, and need only what they name."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from pool.core import wire
from tests.core.worlds import DAWN

GPU = wire.GpuReport(
    uuid="GPU-1",
    index=0,
    name="NVIDIA H100 80GB HBM3",
    offers=(
        wire.Offer(
            profile_id=19, name="MIG 1g.10gb", compute_slices=1, size=1, memory_mib=9984, sm=16,
            max_instances=7, starts=(0, 1),
        ),
    ),
    instances=(
        wire.Instance(
            gi=7, ci=0, mig_uuid="MIG-1", profile_id=19, profile="1g.10gb", start=6, size=1, owned=True
        ),
    ),
    trouble=wire.Trouble(generation=3, code="in_use", nvml=19, holders=(wire.Process(pid=5, uid=1000),)),
    power_w=msgspec.to_builtins(wire.Window(min=1, mean=2, max=3, last=2)),  # read as it is: may be nonsense
)  # fmt: skip
REPORT = wire.Report(
    agent="1", node="dgx-1", machine_id="m", boot_id="b", seq=1, sampled_at=DAWN, driver="580", gpus=(GPU,)
)
HELD = wire.Held(allocation="a", owner="o", profile="1g.10gb", profile_id=19, start=6, size=1)
COMMAND = wire.Command(
    id="c", node="dgx-1", gpu="GPU-1", generation=7, layout=wire.Layout(mig=True, held=(HELD,))
)
ANSWER = wire.Answer(accepted_seq=1, commands=(COMMAND,), manage=("GPU-1",))
JOIN = wire.JoinAsk(code="x", node="dgx-1", machine_id="m", agent="1")
MESSAGES = [REPORT, COMMAND, ANSWER, JOIN, wire.JoinAnswer(node="dgx-1", token="t")]
EACH = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)


@EACH
def test_a_message_survives_the_wire(message: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


@EACH
def test_a_message_says_its_version_and_what_is_new_in_it_is_ignored(message: msgspec.Struct) -> None:
    raw: dict[str, Any] = msgspec.to_builtins(message)
    assert raw["wire"] == wire.WIRE
    assert msgspec.convert(raw | {"invented_later": {"x": [1]}}, type(message), str_keys=True, strict=False)


@EACH
def test_a_message_without_what_it_must_say_is_refused(message: msgspec.Struct) -> None:
    for field in msgspec.structs.fields(message):
        if field.required:
            raw = {k: v for k, v in msgspec.to_builtins(message).items() if k != field.name}
            with pytest.raises(msgspec.ValidationError, match=field.name):
                msgspec.convert(raw, type(message))


def test_a_nonsense_measurement_does_not_lose_its_report() -> None:
    raw: dict[str, Any] = msgspec.to_builtins(REPORT)
    raw["gpus"][0]["memory_total_mib"] = "plenty"
    raw["gpus"][0]["power_w"]["max"] = {"a": 1}
    raw["gpus"][0]["offers"][0]["memory_mib"] = -5
    assert msgspec.convert(raw, wire.Report).gpus[0].memory_total_mib == "plenty"


def test_two_versions_are_accepted() -> None:
    assert wire.ACCEPTED == (wire.WIRE - 1, wire.WIRE)


@pytest.mark.parametrize("name", ["a", "dgx-h100-01", "0", "a" * 63])
def test_a_node_name_is_a_host_label(name: str) -> None:
    assert re.match(wire.NODE_NAME, name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a*", "a:b", "a b", "a.b", "a" * 64, "ä"])
def test_a_name_that_would_widen_a_node_s_keys_is_refused(name: str) -> None:
    assert not re.match(wire.NODE_NAME, name)
