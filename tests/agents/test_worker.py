"""The worker without a broker: what it is set to, and that it is always started anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
from celery import Celery

from agents import worker
from agents.worker import Line
from pool.core.wire import APPLY_TASK, Command
from tests.agents.stand_in import command, slice_

URL = "redis://node-node-1:pw@127.0.0.1:1/0"


@pytest.fixture
def app() -> Iterator[Celery]:
    taken.clear()
    one = worker.make_app(URL, "node-1", taken.append, Line())
    yield one
    one.close()


taken: list[Command] = []


class TestApp:
    def test_it_knows_one_task_beside_celerys_own(self, app: Celery) -> None:
        # In this process the portal's shared tasks may be there too; on a node its modules are not.
        own = [name for name in app.tasks if not name.startswith(("celery.", "pool."))]
        assert own == [APPLY_TASK]

    def test_the_task_hands_the_command_on(self, app: Celery) -> None:
        wanted = command("GPU-1", 3, slice_("a", 0))
        app.tasks[APPLY_TASK](msgspec.to_builtins(wanted))
        assert taken == [wanted]

    @pytest.mark.parametrize("raw", [None, "rm -rf /", {"id": "x"}, {"generation": "seven"}])
    def test_what_is_no_command_is_dropped(self, app: Celery, raw: object) -> None:
        app.tasks[APPLY_TASK](raw)
        assert taken == []

    def test_it_takes_json_only_and_keeps_no_results(self, app: Celery) -> None:
        assert app.conf.accept_content == ["json"]
        assert app.conf.task_ignore_result
        assert type(app.backend).__name__ == "DisabledBackend"

    def test_it_never_gives_up_the_broker(self, app: Celery) -> None:
        assert app.conf.broker_connection_max_retries is None
        assert app.conf.broker_connection_retry_on_startup


class TestRun:
    def test_a_worker_that_ends_is_started_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stopping, line = threading.Event(), Line()
        starts: list[bool] = []

        def end(app: Celery, node: str) -> None:
            starts.append(line.up)
            line.set(True)
            if len(starts) == 2:
                raise ConnectionError("nobody foresaw this")
            if len(starts) == 4:
                stopping.set()

        monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(worker, "run_once", end)
        worker.run(URL, "node-1", taken.append, line, stopping)
        assert starts == [False] * 4
        assert not line.up

    def test_an_address_that_is_none_does_not_end_the_agent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stopping = threading.Event()
        monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(worker, "LONGEST_PAUSE_S", 0.001)
        timer = threading.Timer(0.1, stopping.set)
        timer.start()
        worker.run("amqp://nobody", "node-1", taken.append, Line(), stopping)
        timer.join()
        assert stopping.is_set()
