"""The text format as Prometheus' own client reads it back."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from agents.exporter_text import Family, text


def parsed(*families: Family) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        one.name: {tuple(sample.labels.values()): sample.value for sample in one.samples}
        for one in text_string_to_metric_families(text(families))
    }


def gauge(*samples: tuple[float | None, dict[str, str]], name: str = "room") -> Family:
    family = Family(name, "gauge", "How much there is.")
    for value, labels in samples:
        family.add(value, labels)
    return family


def test_a_family_has_its_help_its_type_and_its_samples() -> None:
    assert text([gauge((3, {"gpu": "0"}), (2.5, {}))]) == (
        '# HELP room How much there is.\n# TYPE room gauge\nroom{gpu="0"} 3\nroom 2.5\n'
    )


def test_what_was_not_measured_makes_no_sample_and_no_family() -> None:
    assert text([gauge((None, {}), (math.nan, {}), (math.inf, {}))]) == ""
    assert parsed(gauge((None, {}), (0, {"gpu": "1"}))) == {"room": {("1",): 0.0}}


def test_an_empty_label_is_left_out() -> None:
    assert text([gauge((1, {"gpu": "0", "team": ""}))]).splitlines()[-1] == 'room{gpu="0"} 1'


def test_names_of_any_kind_read_back_as_they_were() -> None:
    odd = 'a "quoted"\\name\nwith a line'
    assert parsed(gauge((1, {"team": odd}))) == {"room": {(odd,): 1.0}}


def test_a_help_with_a_line_break_stays_one_line() -> None:
    family = Family("room", "gauge", "one\ntwo \\ three")
    family.add(1, {})
    assert text([family]).splitlines()[0] == "# HELP room one\\ntwo \\\\ three"


def test_large_and_small_numbers_read_back_exactly() -> None:
    values = [0.1, 1e-7, 123456789012345, 2.0**60, -3, True]
    found = parsed(gauge(*((value, {"n": str(n)}) for n, value in enumerate(values))))
    assert list(found["room"].values()) == [float(value) for value in values]


def test_a_counter_keeps_its_name() -> None:
    family = Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Retries.")
    family.add(4, {})
    assert "\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER 4\n" in text([family])
