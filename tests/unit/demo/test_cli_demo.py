"""Check `forebay demo` without its services: what it concludes from what it sees, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from forebay.cli.commands import demo as cli
from forebay.cli.commands.demo import DemoOptions
from forebay.cli.services.child import ChildEvent, ChildEventKind, SupervisorError
from forebay.cli.services.supervisor import StopReason, StopRequestedError, Supervisor
from forebay.cli.terminal.console import Console
from forebay.demo import flights, known_answer
from forebay.demo.progress import BatchFacts, ProgressSnapshot
from forebay.demo.replay_server import ReplayProgress, ReplayState
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROWS = known_answer.ROWS
read_flights = cache(flights.read_flights)


@pytest.fixture(autouse=True)
def _flights_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command have the rows that were read before: reading them takes half a second."""
    monkeypatch.setattr(flights, "read_flights", read_flights)


@dataclass
class FakeReplay:
    def wait_listening(self) -> tuple[str, int]:
        return "127.0.0.1", 1234

    def progress(self) -> ReplayProgress:
        return ReplayProgress(ReplayState.SERVED, ROWS, 1)


@dataclass
class FakeSystem:
    """Stands for replay server and services, on a clock that each wait moves."""

    publish: Callable[[Path], None] = lambda output: None
    reason: StopReason | None = None
    looks: list[ProgressSnapshot] = field(default_factory=list)
    now: float = 0.0
    stopped: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    database_url: str = "postgresql://nowhere/forebay"

    def ui_link(self, console: Console) -> str:
        return "http://127.0.0.1:3070"

    @contextlib.contextmanager
    def start_replay(self, rate: float) -> Iterator[Any]:
        try:
            yield FakeReplay()
        finally:
            self.stopped.append("replay")

    @contextlib.contextmanager
    def start_services(
        self,
        ui_port: int | None,
        environment: Mapping[str, str],
        on_event: Callable[[ChildEvent], None],
    ) -> Iterator[Any]:
        self.environment = dict(environment)
        on_event(ChildEvent(ChildEventKind.STARTED, "postgres", pid=1))
        self.publish(Path(environment["FOREBAY_DEMO_OUTPUT"]))
        try:
            yield self
        finally:
            self.stopped.append("services")

    def wait(self, timeout: float | None = None) -> StopReason | None:
        self.now += timeout or 0
        return self.reason

    def take_look(self, replay: object, at: float) -> ProgressSnapshot:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def run(self, home: Path, **options: Any) -> tuple[int, str]:  # noqa: ANN401  fields of DemoOptions
        output = io.StringIO()
        code = cli.run(
            DemoOptions(home=home, **options),
            start_replay=self.start_replay,
            start_services=self.start_services,
            take_look=self.take_look,
            clock=lambda: self.now,
            console=Console(file=output, width=160, force_terminal=False),
        )
        return code, output.getvalue()


def publish_flights(rows: int | None = None, running_rows: int | None = None) -> Callable[[Path], None]:
    def publish(output: Path) -> None:
        table = read_flights().slice(0, rows)
        grouped = table.group_by(["carrier", "origin"]).aggregate(
            [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum"), ("dep_delay", "mean")]
        )
        names = ["flights", "departures", "departure_delay_sum", "departure_delay_mean"]
        columns = ["count_all", "dep_delay_count", "dep_delay_sum", "dep_delay_mean"]
        made = {"carrier": grouped["carrier"], "origin": grouped["origin"]} | {
            name: grouped[column] for name, column in zip(names, columns, strict=True)
        }
        write(output / "departure_delays", pa.table(made))
        running = (
            table.slice(0, running_rows)
            .group_by("carrier")
            .aggregate([([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")])
        )
        write(output / "running_totals", running.rename_columns(["carrier", *names[:3]]))

    return publish


def write(path: Path, table: pa.Table) -> None:
    folder = path / "date=2025-01-01" / "hour=00" / "batch_time=2025-01-01T00-00-00Z"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet")


def done(state: str = "COMPLETED", records: int = ROWS) -> ProgressSnapshot:
    return ProgressSnapshot(
        at=0.0,
        expected=ROWS,
        replay_state="served",
        replayed=ROWS,
        receiver_state="ACTIVE",
        received=ROWS,
        blocks=3,
        batches=(BatchFacts(datetime(2025, 1, 1, tzinfo=UTC), state, records, attempts=3, error="no Java"),),
    )


def test_agreement_is_exit_code_0(tmp_path: Path) -> None:
    system = FakeSystem(publish=publish_flights(), looks=[done()])
    code, text = system.run(tmp_path / "demo")
    assert code == 0
    assert "OK: all totals agree exactly" in text
    assert "starting postgres" in text
    assert "http://127.0.0.1:3070" in text
    assert text.rstrip().endswith("All services are stopped.")
    assert system.stopped == ["services", "replay"]
    assert system.environment["FOREBAY_DEMO_PORT"] == "1234"
    assert system.environment["FOREBAY_MODULE"] == "forebay.demo.pipeline"
    assert system.environment["FOREBAY_HOME"] == str(tmp_path / "demo")


def test_a_wrong_count_is_exit_code_1(tmp_path: Path) -> None:
    code, text = FakeSystem(publish=publish_flights(ROWS - 1), looks=[done()]).run(tmp_path / "demo")
    assert code == 1
    assert "DIFFERENT" in text
    assert "336,775 flights published, the known answer is 336,776" in text


def test_a_wrong_running_total_is_exit_code_1(tmp_path: Path) -> None:
    publish = publish_flights(running_rows=ROWS - 1)
    code, text = FakeSystem(publish=publish, looks=[done()]).run(tmp_path / "demo")
    assert code == 1
    assert "DIFFERENT: running total" in text
    assert "flights published" not in text


def test_json_is_the_only_output_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = FakeSystem(publish=publish_flights(), looks=[done()]).run(tmp_path / "demo", as_json=True)
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["same"] is True
    assert result["flights"] == ROWS


def test_a_failure_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = FakeSystem(looks=[done(state="QUARANTINED")]).run(tmp_path / "demo", as_json=True)
    assert code == 1
    result = json.loads(capsys.readouterr().out)
    assert result["same"] is False
    assert "no Java" in result["error"]


def test_the_deadline_names_the_stuck_part(tmp_path: Path) -> None:
    system = FakeSystem(looks=[done(state="RUNNING")])
    code, text = system.run(tmp_path / "demo", deadline=20)
    assert code == 1
    assert "Not done after 20 s" in text
    assert "is RUNNING after 3 attempts" in text
    assert system.stopped == ["services", "replay"]
    assert 20 <= system.now < 22


def test_a_quarantined_batch_ends_it_with_its_reason(tmp_path: Path) -> None:
    code, text = FakeSystem(looks=[done(state="QUARANTINED")]).run(tmp_path / "demo")
    assert code == 1
    assert "A batch was given up" in text
    assert "is QUARANTINED after 3 attempts: no Java" in text
    assert "DIFFERENT" not in text


@pytest.mark.parametrize(("number", "expected"), [(2, 130), (15, 143)])
def test_a_signal_stops_everything(tmp_path: Path, number: int, expected: int) -> None:
    system = FakeSystem(looks=[done(state="RUNNING")], reason=StopReason(signal=number))
    code, text = system.run(tmp_path / "demo")
    assert code == expected
    assert system.stopped == ["services", "replay"]
    assert "all services are stopped" in text


def test_a_service_that_keeps_failing_is_named(tmp_path: Path) -> None:
    system = FakeSystem(looks=[done(state="RUNNING")], reason=StopReason(failed_child="dagster-daemon"))
    code, text = system.run(tmp_path / "demo")
    assert code == 1
    assert "dagster-daemon was given up" in text
    assert "logs/dagster-daemon.log" in text


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (SupervisorError("postgres did not become ready"), 1, "postgres did not become ready"),
        (StopRequestedError(), 130, "Stopped"),
        (KeyboardInterrupt(), 130, "Stopped"),
    ],
)
def test_an_end_during_the_start(tmp_path: Path, error: BaseException, expected: int, words: str) -> None:
    def fail(output: Path) -> None:
        raise error

    system = FakeSystem(publish=fail, looks=[done()])
    code, text = system.run(tmp_path / "demo")
    assert code == expected
    assert words in text
    assert "OK" not in text


def test_keep_running_waits_for_the_stop_and_keeps_the_result(tmp_path: Path) -> None:
    system = FakeSystem(publish=publish_flights(), looks=[done()])
    code, text = system.run(tmp_path / "demo", keep_running=True)
    assert code == 0
    assert "until Ctrl-C" in text


def test_a_driver_log_that_does_not_answer_for_a_while_does_not_end_the_demo(tmp_path: Path) -> None:
    system = FakeSystem(publish=publish_flights(), looks=[done()])
    answers = iter([DriverLogError("gone"), sa.exc.OperationalError("SELECT", {}, Exception()), None])

    def take_look(replay: object, at: float) -> ProgressSnapshot:
        error = next(answers, None)
        if error is not None:
            raise error
        return done()

    system.take_look = take_look  # type: ignore[method-assign]
    assert system.run(tmp_path / "demo")[0] == 0


def test_the_home_is_emptied_at_each_start(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    assert FakeSystem(publish=publish_flights(), looks=[done()]).run(home)[0] == 0
    (home / "blocks").mkdir()
    (home / "blocks" / "old").touch()
    (home / "link").symlink_to(tmp_path)
    assert FakeSystem(publish=publish_flights(), looks=[done()]).run(home)[0] == 0
    assert not (home / "blocks").exists()
    assert not (home / "link").exists()
    assert tmp_path.exists()


def test_a_folder_that_does_not_belong_to_the_demo_is_left_unchanged(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    system = FakeSystem(looks=[done()])
    code, text = system.run(precious)
    assert code == 1
    assert "--home" in text
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_a_running_demo_keeps_its_home(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    cli.empty_home(home)
    with Supervisor(home):
        (home / "blocks").mkdir()
        code, text = FakeSystem(looks=[done()]).run(home)
    assert code == 1
    assert "another Forebay" in text
    assert (home / "blocks").is_dir()


def test_a_users_own_services_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://production/forebay")
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", "/srv/blocks")
    with cli.process_environment({"FOREBAY_HOME": "/somewhere"}):
        assert "FOREBAY_DATABASE_URL" not in os.environ
        assert "FOREBAY_BLOCK_STORE" not in os.environ
        assert os.environ["FOREBAY_HOME"] == "/somewhere"
    assert os.environ["FOREBAY_DATABASE_URL"] == "postgresql://production/forebay"
    assert os.environ.get("FOREBAY_HOME") != "/somewhere"
