"""Kill Dagster's daemon between and in the ticks of an event sensor: each event is one run, and one call (M08)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from tests.faults import event_listener
from tests.support.polling import eventually
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.driver_log.log import Log


KILLS = 3
EVENTS_PER_KILL = 2
# A tick, and the start of a run's process, on a machine that does other work.
SECONDS = 180.0


class Daemon:
    """Dagster's daemon, which starts a code server, which starts the runs."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment = environment
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self._directory / "daemon.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dagster._daemon", "run", "-m", event_listener.__name__],
                    env=self._environment,
                    cwd=self._directory,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def kill(self) -> None:
        """Kill the daemon alone: runs that have begun go on."""
        self._started[-1].kill()
        self._started[-1].wait(60)

    def end_all(self) -> None:
        """End every daemon with all that it has started."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_m08_a_daemon_that_is_killed_again_and_again_makes_one_run_per_event(
    log: Log, database_url: str, tmp_path: Path
) -> None:
    home, calls = tmp_path / "dagster", tmp_path / "calls"
    home.mkdir()
    calls.mkdir()
    (home / "dagster.yaml").write_text(
        "run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}\n"
        "telemetry: {enabled: false}\n",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "FOREBAY_DATABASE_URL": database_url,
        event_listener.CALLS: str(calls),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    daemon = Daemon(environment, tmp_path)
    expected: list[str] = []

    def report(count: int) -> None:
        for _ in range(count):
            expected.append(f"event-{len(expected)}")
            report_event(
                log.connection,
                receiver_id=log.receiver_ids[0],
                epoch=1,
                kind=ReceiverEventKind.ERROR,
                message=expected[-1],
            )

    with dg.DagsterInstance.from_config(str(home)) as instance:

        def runs() -> list[dg.DagsterRun]:
            return list(instance.get_runs())

        def message(run: dg.DagsterRun) -> str:
            config: Any = run.run_config
            text: str = config["ops"]["write_down__call"]["config"]["event"]["message"]
            return text

        def called(run: dg.DagsterRun) -> int:
            file = calls / message(run)
            return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

        def left() -> list[dg.DagsterRun]:
            return [run for run in runs() if not run.is_finished]

        try:
            for number in range(KILLS):
                report(EVENTS_PER_KILL)
                before = len(runs())
                daemon.start()
                # Right after the first run of a tick was made: before the others, before the cursor, or just after.
                eventually(lambda before=before: len(runs()) > before, f"a run after start {number}", seconds=SECONDS)  # type: ignore[misc]
                daemon.kill()
                report(EVENTS_PER_KILL)
            daemon.start()
            eventually(lambda: len(runs()) >= len(expected), "a run for each event", seconds=3 * SECONDS)
            # A kill may come while Dagster starts a run's process: that run waits for Dagster's monitoring.
            eventually(lambda: len(left()) <= KILLS, "the runs end", seconds=3 * SECONDS)
            made = runs()
        finally:
            daemon.end_all()
        assert sorted(map(message, made)) == sorted(expected), "one run per event"
        assert {called(run) for run in made if run.is_success} == {1}
        assert all(called(run) <= 1 for run in made)
        assert sum(run.is_success for run in made) >= len(expected) - KILLS
