"""Test what readers of a ParquetSink see when a process is killed between commit and publish, or in a compaction.

Each kill is a SIGKILL of a real process; the process that repairs it knows nothing of that process.
"""

from __future__ import annotations

import signal
import threading
import time as clock
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import ParquetSink
from forebay.dagster import build_definitions
from orchestration.batches import publishing
from orchestration.batches.batch_run import run_batch
from orchestration.batches.publishing import held, publish_what_is_left, staying
from orchestration.dagster_defs.jobs.upkeep import upkeep_job
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import HOURLY, Step, Upkeep
from tests.integration.orchestration import killed_publishing
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tests.integration.orchestration.killed_publishing import COMMITTED, COMPACT, REPLAY, RUN, act, declare
from tests.support.driver_log.attempts import fail_batch
from tests.support.machine.forked_processes import run
from tests.support.polling import eventually
from tracker_store.batches.outputs import commits_of_batch, commits_to_publish, note_published
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestration.declarations.sink import Figures


class Log:
    """A driver log with batches of `words` in one hour, and the files that its readers see."""

    def __init__(self, engine: sa.Engine, url: str, home: Path) -> None:
        self.engine = engine
        self.settings = Settings(home=home, database_url=url)
        self.output = home / "output"
        self.pipeline = declare(self.output)
        with connect(engine) as connection:
            apply(connection, [self.pipeline])
            row = get_pipeline(connection, "words")
        self.pipeline_id = row.pipeline_id
        self.hour = (row.last_batch_time + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)

    def execute(self, statement: str, **values: object) -> None:
        with connect(self.engine) as connection:
            connection.execute(sa.text(statement), values)

    def end_the_turn(self) -> None:
        """End the turn as the server ends an idle transaction; return when its lock is released."""
        self.execute(
            "SELECT pg_terminate_backend(l.pid, 20000) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
            "WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"
        )

    def batch(self, number: int) -> datetime:
        """Insert a batch that has not run, the `number`th of the hour."""
        time = self.hour + number * timedelta(minutes=10)
        self.execute(
            "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
            "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)",
            p=self.pipeline_id,
            t=time,
        )
        return time

    def run(self, number: int, word: str) -> datetime:
        time = self.batch(number)
        act(self.settings, RUN, time, (word, 1))
        return time

    def close_hour(self) -> None:
        self.execute("UPDATE forebay.pipelines SET last_batch_time = :t", t=self.hour + timedelta(hours=1))

    def killed(self, what: str, time: datetime, word: str, step: str) -> None:
        """Run the action in a process that dies at a step."""
        died = run(
            killed_publishing.__name__,
            *(str(self.settings.home), self.settings.require_database_url(), what, time.isoformat(), word, step),
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        if what == REPLAY:
            assert ("counts", time) not in self.to_publish(), "the process is not yet known to be dead"
            self.bury(time)

    def bury(self, time: datetime) -> None:
        """Fail the attempt as the tracker does when the heartbeat of a process stands still."""
        with connect(self.engine) as connection:
            [(attempt, run)] = connection.execute(
                sa.text("SELECT attempt, run_id FROM forebay.batch_attempts WHERE state = 'RUNNING'")
            ).all()
            fail_batch(connection, self.pipeline_id, time, attempt, run_id=run, error="killed")

    def seen(self) -> list[str]:
        """Return what a reader sees: each row with its batch, in minutes."""
        table = ds.dataset(self.output, partitioning="hive", format="parquet").to_table()
        return sorted(f"{row['_batch_time'].minute}:{row['word']}" for row in table.to_pylist())

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("date=*/hour=*/batch_time=*"))

    def to_publish(self) -> list[tuple[str, datetime]]:
        with connect(self.engine) as connection:
            return commits_to_publish(connection, self.pipeline_id, ["counts"], limit=10)


@pytest.fixture
def log(engine: sa.Engine, database_url: str, tmp_path: Path) -> Log:
    return Log(engine, database_url, tmp_path)


@pytest.mark.parametrize("step", [COMMITTED, Step.STAGED])
def test_w10_a_replay_killed_between_commit_and_publish_is_published_by_the_next_batch(log: Log, step: str) -> None:
    time = log.run(0, "old")
    log.killed(REPLAY, time, "new", step)
    with connect(log.engine) as connection:
        [commit] = commits_of_batch(connection, log.pipeline_id, time)
    assert commit.attempt == 2, "the driver log's commit counts"
    assert log.seen() == ["0:old"]
    assert log.to_publish() == [("counts", time)]
    log.run(1, "other")
    assert log.seen() == ["0:new", "10:other"]
    assert log.to_publish() == []
    assert len(log.directories()) == 2


def test_a_replay_killed_after_it_is_published_is_only_noted(log: Log) -> None:
    time = log.run(0, "old")
    log.killed(REPLAY, time, "new", Step.COMMITTED)
    assert log.seen() == ["0:new"]
    assert publish_what_is_left(log.engine, log.pipeline, log.pipeline_id) == 1
    assert log.seen() == ["0:new"]
    assert log.to_publish() == []
    assert len(log.directories()) == 1


def test_what_a_sink_published_before_its_declaration_changed_is_published(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = log.run(0, "old")
    log.killed(REPLAY, time, "new", COMMITTED)
    monkeypatch.setattr(ParquetSink, "publishes", False)
    assert publish_what_is_left(log.engine, log.pipeline, log.pipeline_id) == 1
    assert (log.seen(), log.to_publish()) == (["0:new"], [])


def test_the_schedule_requests_a_run_only_while_something_is_unpublished(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", log.settings.require_database_url())
    schedule = build_definitions(log.pipeline).get_repository_def().get_schedule_def("words_upkeep")

    def tick(minute: int) -> object:
        context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, 1, 12, minute))  # noqa: DTZ001
        return schedule(context)

    time = log.run(0, "old")
    skipped = tick(20)
    assert isinstance(skipped, dg.SkipReason)
    assert (
        skipped.skip_message
        == "what is committed is published, and written down; small files are merged 10 minutes past the hour"
    )
    assert isinstance(tick(10), dg.RunRequest)
    log.killed(REPLAY, time, "new", COMMITTED)
    assert isinstance(tick(20), dg.RunRequest)
    result = upkeep_job(log.pipeline).execute_in_process()
    assert result.success
    assert log.seen() == ["0:new"]
    assert isinstance(tick(20), dg.SkipReason)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    away = tick(20)
    assert isinstance(away, dg.SkipReason)
    assert "the driver log can't be asked" in str(away.skip_message)


class Kept(ParquetSink):
    """A target that needs upkeep as a whole."""

    upkeep_every = HOURLY
    error: Exception | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.turns: list[Upkeep] = []

    def upkeep_hours(self) -> Any:  # noqa: ANN401
        return [None]

    def upkeep(self, turn: Upkeep) -> Figures:
        self.turns.append(turn)
        if self.error is not None:
            raise self.error
        turn.check()
        return {"files_merged": 3} if turn.has_time() else {}


def test_upkeep_that_fails_for_an_output_stops_no_other_and_both_are_shown(
    log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", log.settings.require_database_url())
    failing, kept = Kept(tmp_path / "failing"), Kept(tmp_path / "kept")
    failing.error = ZeroDivisionError("a client's own")
    for name, sink in (("failing", failing), ("kept", kept)):
        log.pipeline.output(inputs=log.pipeline.streams, sink=sink, name=name)(lambda frame: frame)
    running = log.batch(1)
    log.execute(
        "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, run_id, started_at) "
        "VALUES (:p, :t, 1, 'run1', '2026-01-02T03:04:05Z')",
        p=log.pipeline_id,
        t=running,
    )
    result = upkeep_job(log.pipeline).execute_in_process()
    assert result.success
    [event] = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    assert {name: value.value for name, value in event.step_output_data.metadata.items()} == {
        "published": 0,
        "followed": 0,
        "failed": 1,
        "files_merged": 3,
    }
    shown = {
        event.asset_observation_data.asset_observation.asset_key.path[-1]: {
            name: value.value for name, value in event.asset_observation_data.asset_observation.metadata.items()
        }
        for event in result.all_events
        if event.event_type_value == "ASSET_OBSERVATION"
    }
    assert shown == {"failing": {"error": "a client's own"}, "kept": {"files_merged": 3}}
    [turn] = kept.turns
    assert (turn.pipeline, turn.output, turn.hour) == ("words", "kept", None)
    assert turn.oldest_attempt == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "of the attempt that runs"


def test_outputs_share_the_time_for_upkeep(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two outputs that take all the time that they are given."""
    now = 0.0
    monkeypatch.setattr("orchestration.batches.publishing.time.monotonic", lambda: now)
    taken: list[float] = []

    class Slow(Kept):
        def upkeep(self, turn: Upkeep) -> Figures:
            nonlocal now
            started = now
            while turn.has_time():
                now += 1
            taken.append(now - started)
            return {}

    for name in ("one", "two"):
        log.pipeline.output(inputs=log.pipeline.streams, sink=Slow(tmp_path / name), name=name)(lambda frame: frame)
    publishing.upkeep(log.engine, log.pipeline, log.pipeline_id, most_seconds=90)
    assert taken == [45, 45], "and what the first output of the pipeline left"


def test_two_runs_do_not_look_after_one_target_at_once(log: Log, tmp_path: Path) -> None:
    sink = Kept(tmp_path / "kept")
    log.pipeline.output(inputs=log.pipeline.streams, sink=sink, name="kept")(lambda frame: frame)
    with connect(log.engine) as connection, held(connection, log.pipeline_id, "kept", None), staying(connection):
        results = publishing.upkeep(log.engine, log.pipeline, log.pipeline_id, most_seconds=60)
    assert sink.turns == []
    assert [(result.output, bool(result.error)) for result in results] == [("kept", True)]


def test_a_batch_run_killed_between_commit_and_publish_is_published_before_its_retry(log: Log) -> None:
    time = log.batch(0)
    log.killed(RUN, time, "first", COMMITTED)
    log.bury(time)
    assert publish_what_is_left(log.engine, log.pipeline, log.pipeline_id) == 1
    assert log.seen() == ["0:first"]


def test_one_attempt_in_two_processes_shows_what_was_committed_of_it_first(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a process that is taken for dead: its run is launched again and commits; then the first process goes on."""
    time = log.batch(0)
    pipeline = declare(log.output)
    zombies = 0

    def counts(_: object) -> object:
        nonlocal zombies
        zombies += 1
        log.execute("UPDATE forebay.processes SET ended_at = clock_timestamp() WHERE ended_at IS NULL")
        log.killed(RUN, time, "launched again", COMMITTED)
        return words(("zombie", 1), ("zombie", 2))

    monkeypatch.setattr(pipeline.outputs["counts"], "function", counts)
    session: Any = SessionWithoutSpark()
    run_batch(pipeline, batch_time=time, attempt=1, run_id="run1", settings=log.settings, session=lambda: session)
    assert zombies == 1
    assert log.seen() == ["0:launched again"]
    with connect(log.engine) as connection:
        [commit] = commits_of_batch(connection, log.pipeline_id, time)
    assert [str(left) for left in log.output.glob("_attempts/*/*")] == [commit.location]
    assert (commit.attempt, commit.rows) == (1, 1)


def test_a_commit_that_can_not_be_published_delays_no_other(log: Log) -> None:
    gone, other = log.run(0, "a"), log.run(1, "b")
    for time in (gone, other):
        log.killed(REPLAY, time, "new", COMMITTED)
    for directory in log.output.glob(f"_attempts/*{gone:%H%M}00Z/attempt=2-*"):
        directory.rename(directory.with_name("lost"))
    assert publish_what_is_left(log.engine, log.pipeline, log.pipeline_id) == 1
    assert log.seen() == ["0:a", "10:new"]
    assert log.to_publish() == [("counts", gone)]


def test_two_publishers_exclude_each_other_and_a_stopped_one_loses_its_turn(log: Log) -> None:
    def in_turn(minutes: int) -> None:
        with connect(log.engine) as connection:
            connection.exec_driver_sql("SET lock_timeout = '100ms'")
            connection.commit()
            with held(connection, log.pipeline_id, "counts", log.hour + timedelta(minutes=minutes)):
                pass

    def stop_and_go_on() -> None:
        with (
            connect(log.engine) as stopped,
            held(stopped, log.pipeline_id, "counts", log.hour),
            staying(stopped) as check,
        ):
            with pytest.raises(DriverLogUnavailableError):
                in_turn(50)
            in_turn(60)
            check()
            log.end_the_turn()
            in_turn(50)
            check()

    with pytest.raises(OutcomeUnknownError):
        stop_and_go_on()


@pytest.mark.parametrize("then", ["asks", "writes", "ends"])
def test_a_lost_turn_is_reported_by_name_even_if_the_keeping_thread_saw_it_first(
    log: Log, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(publishing, "_STILL_HERE_SECONDS", 0.01)

    def go_on() -> None:
        with connect(log.engine) as stopped, held(stopped, log.pipeline_id, "counts", log.hour):
            with staying(stopped) as check:
                check()
                log.end_the_turn()
                eventually(lambda: stopped.invalidated, "the thread's look")
                if then == "asks":
                    check()
            if then == "writes":
                note_published(stopped, log.pipeline_id, "counts", log.hour, attempt=1)

    with pytest.raises(OutcomeUnknownError):
        go_on()


def test_the_batches_of_a_closed_hour_become_one_and_those_of_an_open_hour_do_not(log: Log) -> None:
    for number, word in enumerate("abc"):
        log.run(number, word)
    assert act(log.settings, COMPACT, log.hour) == []
    assert len(log.directories()) == 3
    log.close_hour()
    unfinished = log.batch(4)
    assert act(log.settings, COMPACT, log.hour) == [], "a batch of it is not finished"
    log.execute("UPDATE forebay.batches SET state = 'DISCARDED' WHERE batch_time = :t", t=unfinished)
    [hour] = act(log.settings, COMPACT, log.hour)
    assert (hour.hour, hour.figures) == (log.hour, {"hours": 1, "rows": 3})
    assert log.directories() == [f"batch_time={log.hour:%Y%m%dT%H}"]
    assert log.seen() == ["0:a", "10:b", "20:c"]
    assert list(log.output.glob("_attempts/*/*")) == [], "the batches' own files are deleted"
    assert act(log.settings, COMPACT, log.hour) == []


def test_a_replay_replaces_its_own_rows_in_a_compacted_hour(log: Log) -> None:
    times = [log.run(number, word) for number, word in enumerate("abc")]
    log.close_hour()
    act(log.settings, COMPACT, log.hour)
    act(log.settings, REPLAY, times[1], ("new", 1), ("newer", 2))
    assert log.seen() == ["0:a", "10:new", "10:newer", "20:c"]
    assert len(log.directories()) == 1
    log.killed(REPLAY, times[2], "last", COMMITTED)
    assert log.seen() == ["0:a", "10:new", "10:newer", "20:c"]
    assert act(log.settings, COMPACT, log.hour) == []
    assert publish_what_is_left(log.engine, log.pipeline, log.pipeline_id) == 1
    assert log.seen() == ["0:a", "10:new", "10:newer", "20:last"]


@pytest.mark.parametrize(
    ("step", "again"),
    [(Step.STAGED, COMPACT), (Step.STAGED, REPLAY), (Step.COMMITTED, COMPACT), (Step.SWEPT, COMPACT)],
)
def test_each_row_once_whichever_step_of_a_compaction_a_kill_hits(log: Log, step: Step, again: str) -> None:
    times = [log.run(number, word) for number, word in enumerate("abc")]
    log.close_hour()
    log.killed(COMPACT, log.hour, "-", step)
    assert log.seen() == ["0:a", "10:b", "20:c"]
    assert len(log.directories()) == (3 if step is Step.STAGED else 1)
    if again == REPLAY:
        act(log.settings, REPLAY, times[0], ("new", 1))
    act(log.settings, COMPACT, log.hour)
    assert log.seen() == ["0:new" if again == REPLAY else "0:a", "10:b", "20:c"]
    assert len(log.directories()) == 1
    assert list(log.output.glob("_attempts/*/*")) == []


def test_readers_see_each_row_once_while_hours_are_compacted_and_batches_replayed(log: Log) -> None:
    """Check with a reader that lists and opens in a loop: a file may be gone, but no row is ever doubled or missing."""
    times = [log.run(number, word) for number, word in enumerate("abc")]
    log.close_hour()
    counts: set[int] = set()
    done = threading.Event()
    files = ParquetSink(log.output, compact=True)

    def read() -> Iterator[int]:
        while not done.is_set():
            try:
                yield files.dataset().count_rows()
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=lambda: counts.update(read()), daemon=True)
    thread.start()
    act(log.settings, COMPACT, log.hour)
    until = clock.monotonic() + 2
    while clock.monotonic() < until:
        act(log.settings, REPLAY, times[1], ("new", 1))
    eventually(lambda: counts, "a look that found every file")
    done.set()
    thread.join(20)
    assert counts == {3}
