"""Activity out of dcgm-exporter's page, tested against a stand-in that serves its documented text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import dcgm, simulator
from agents.dcgm import Dcgm, parse
from agents.driver import Driver
from agents.simulator_state import create_state

HEAD = "# HELP {0} Ratio of time.\n# TYPE {0} gauge\n"
ENGINES, MEMORY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"


def line(name: str, uuid: str, value: object, gi: int | None = None, **more: str) -> str:
    labels = {
        "gpu": "0",
        "UUID": uuid,
        "pci_bus_id": "00000000:04:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA A100-SXM4-40GB",
        "Hostname": "node-1",
        **more,
    }
    if gi is not None:
        labels |= {"GPU_I_PROFILE": "3g.20gb", "GPU_I_ID": str(gi)}
    return name + "{" + ",".join(f'{key}="{each}"' for key, each in labels.items()) + f"}} {value}\n"


class Exporter:
    """Serves `page` with `status`, and counts."""

    def __init__(self) -> None:
        self.page, self.status, self.asked = "", 200, 0
        outer = self

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = outer.page.encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    one = Exporter()
    yield one
    one.server.shutdown()
    one.server.server_close()


class TestParse:
    def test_gpus_and_instances_have_their_own_values(self) -> None:
        page = (
            HEAD.format(ENGINES)
            + line(ENGINES, "GPU-a", 0.5)
            + line(ENGINES, "GPU-a", "0.25", gi=2)
            + line(ENGINES, "GPU-b", 1)
            + HEAD.format(MEMORY)
            + line(MEMORY, "GPU-a", 0.125, gi=2)
            + line("DCGM_FI_DEV_GPU_TEMP", "GPU-a", 41)
        )
        assert parse(page) == {
            ("GPU-a", None): (50.0, None),
            ("GPU-a", 2): (25.0, 12.5),
            ("GPU-b", None): (100.0, None),
        }

    def test_of_several_pods_on_one_instance_the_highest_holds(self) -> None:
        page = line(ENGINES, "GPU-a", 0.3, pod="one") + line(
            ENGINES, "GPU-a", 0.2, pod='t"wo}, x'.replace('"', r"\"")
        )
        assert parse(page) == {("GPU-a", None): (30.0, None)}

    @pytest.mark.parametrize(
        "bad",
        [
            line(ENGINES, "GPU-a", "NaN"),
            line(ENGINES, "GPU-a", "1.5"),
            line(ENGINES, "GPU-a", -1),
            line(ENGINES, "GPU-a", "much"),
            line(ENGINES, "", 0.5),
            line(ENGINES, "GPU-a", 0.5).replace('Hostname="node-1"', 'GPU_I_ID="x"'),
            f"{ENGINES} 0.5\n",
            "{}\n",
        ],
    )
    def test_nonsense_is_left_out_alone(self, bad: str) -> None:
        assert parse(bad + line(ENGINES, "GPU-b", 0.5) + bad) == {("GPU-b", None): (50.0, None)}

    @given(
        st.lists(st.one_of(st.text(), st.text().map(lambda text: f'{ENGINES}{{UUID="GPU-a",{text}}} 0.5')))
    )
    def test_no_page_breaks_it(self, lines: list[str]) -> None:
        for engines, memory in parse("\n".join(lines)).values():
            assert all(percent is None or 0 <= percent <= 100 for percent in (engines, memory))


class TestReading:
    def test_it_is_read_anew_only_after_a_while(self, exporter: Exporter) -> None:
        now = [0.0]
        one = Dcgm(exporter.url, lambda: now[0])
        exporter.page = line(ENGINES, "GPU-a", 0.5)
        assert one.activity() == one.activity() == {("GPU-a", None): (50.0, None)}
        assert exporter.asked == 1
        exporter.page, now[0] = line(ENGINES, "GPU-a", 0.75), dcgm.READ_S
        assert one.activity() == {("GPU-a", None): (75.0, None)}

    def test_one_that_fails_is_left_alone_for_longer_and_its_last_values_are_not_kept(
        self, exporter: Exporter
    ) -> None:
        now = [0.0]
        one = Dcgm(exporter.url, lambda: now[0])
        exporter.page = line(ENGINES, "GPU-a", 0.5)
        assert one.activity()
        exporter.status, now[0] = 500, dcgm.READ_S
        assert one.activity() == {}
        exporter.status, now[0] = 200, now[0] + dcgm.PAUSE_S - 1
        assert (one.activity(), exporter.asked) == ({}, 2)
        now[0] += 1
        assert one.activity()

    def test_our_own_exporter_is_no_source(self, exporter: Exporter) -> None:
        exporter.page = line(ENGINES, "GPU-a", 0.5) + "gpupool_up 1\n"
        assert Dcgm(exporter.url).activity() == {}

    @pytest.mark.parametrize(
        "url", [None, "http://127.0.0.1:1/metrics", "file:///etc/passwd", "http://[::", ""]
    )
    def test_where_none_answers_nothing_is_measured(self, url: str | None) -> None:
        assert Dcgm(url).activity() == {}


class TestDriver:
    def test_a100_has_it_and_what_gpm_measures_stays(
        self, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [0.0]
        for module in ("nvml_gpm", "simulator_gpm"):
            monkeypatch.setattr(f"agents.{module}._now", lambda: clock[0])
        create_state(tmp_path, "1xA100-40GB+1xA100-40GB+1xH100-80GB", seed="a", mig=(0,))
        simulator.install(tmp_path)
        try:
            with Driver(Dcgm(exporter.url)) as one:
                carved, whole, hopper = (gpu.uuid for gpu in one.look().gpus)
                made = one.create(carved, 9, 0, 4)
                exporter.page = (
                    line(ENGINES, carved, 0.5, gi=made.gi)
                    + line(MEMORY, carved, 0.25, gi=made.gi)
                    + line(ENGINES, whole, 0.125)
                    + line(ENGINES, hopper, 0.99)
                )
                one.readings()
                clock[0] += 2
                values = one.readings()
        finally:
            simulator.uninstall()
        inner = values[carved].instances[made.gi]
        assert (inner.activity_pct, inner.memory_activity_pct, inner.source) == (50.0, 25.0, "dcgm")
        assert (values[carved].activity_pct, values[carved].source) == (None, "nvml")
        assert (values[whole].activity_pct, values[whole].source) == (12.5, "dcgm")
        assert (values[hopper].activity_pct, values[hopper].source) == (0.0, "gpm")

    def test_where_gpm_measures_all_it_is_not_even_asked(
        self, driver: Callable[..., tuple[Driver, Path]], exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [0.0]
        for module in ("nvml_gpm", "simulator_gpm"):
            monkeypatch.setattr(f"agents.{module}._now", lambda: clock[0])
        one, _ = driver("2xH100-80GB")
        one.readings()
        clock[0] += 2
        one._dcgm = Dcgm(exporter.url)
        assert {values.source for values in one.readings().values()} == {"gpm"}
        assert exporter.asked == 0
