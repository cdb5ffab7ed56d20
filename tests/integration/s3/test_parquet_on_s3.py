"""Test a ParquetSink on servers of S3 and Azure: what readers of `_SUCCESS` see, whatever is killed or replayed."""

from __future__ import annotations

import json
import re
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from forebay import EnvVar, ParquetSink
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.dagster_defs.jobs.upkeep import upkeep_job
from orchestration.declarations.sink import SinkError, Step
from orchestration.sinks.parquet.parquet_columns import COLUMNS
from orchestration.sinks.parquet.parquet_objects import SUCCESS
from receiver_runtime.block_store.stores.objects import open_objects
from tests.integration.orchestration.batches.test_publishing import Log
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tests.integration.orchestration.killed_publishing import declare
from tests.integration.orchestration.target_database import TIME, attempt
from tests.integration.s3.test_s3 import running, server  # noqa: F401  fixtures
from tests.support.servers.s3 import SECRET_KEY, S3Server
from tests.support.sinks.upkeep import keep_hour
from tests.support.spark.batch_rig import System, local_spark
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Pipeline
    from tests.support.servers.azurite import AzuriteServer

pytestmark = [pytest.mark.s3, pytest.mark.core]

BATCH = "date=2026-01-01/hour=12/batch_time=20260101T120010Z"


class StoppedError(Exception):
    """A process that got no further."""


class Stopping(ParquetSink):
    """A sink that stops at a step."""

    stops_at = ""

    def reached(self, step: Step) -> None:
        if step == self.stops_at:
            raise StoppedError


#: Azure copies no object in less than a second, so that it has a test of each kind.
ON_BOTH = pytest.mark.parametrize("store", ["server", pytest.param("azurite", marks=pytest.mark.azure)], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> S3Server | AzuriteServer:
    found: S3Server | AzuriteServer = request.getfixturevalue(getattr(request, "param", "server"))
    return found


@pytest.fixture
def sink(store: S3Server | AzuriteServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Stopping:
    monkeypatch.setenv("RESULTS_URL", store.url(f"out/{request.node.originalname}"))
    return Stopping(EnvVar("RESULTS_URL"))


def objects(sink: Stopping, below: str = BATCH) -> list[str]:
    assert sink._objects is not None
    return [key.rpartition("/")[2] for key, _ in open_objects(sink._objects._resolved()).sizes(below)]


def seen(sink: Stopping) -> list[tuple[str, int]]:
    return sorted((row["word"], row["n"]) for row in sink.dataset().to_table().to_pylist())


@ON_BOTH
def test_refused_rows_are_published_with_their_attempt(sink: Stopping) -> None:
    def shown() -> list[str]:
        names = objects(sink, "_refused_rows")
        return [json.loads(line)["refused_row"]["word"] for name in names for line in _lines(sink, name)]

    sink.on_bad_rows = "dead_letter"
    first = sink.write(words(("a", 1), ("Gr\udcfcn", 2)), attempt(1))
    assert (first.rows, first.refused, shown()) == (1, 1, [])
    for _ in range(2):
        sink.publish(first.location, batch_time=TIME)
        assert (seen(sink), shown()) == ([("a", 1)], ["Gr\\xfcn"])
    second = sink.write(words(("c", 3)), attempt(2))
    sink.publish(second.location, batch_time=TIME)
    assert (seen(sink), shown()) == ([("c", 3)], [])


def _lines(sink: Stopping, name: str) -> list[bytes]:
    assert sink._objects is not None
    return open_objects(sink._objects._resolved()).get(f"_refused_rows/{name}", 0, 1 << 20).splitlines()


@ON_BOTH
def test_folders_of_values_are_published_and_replaced_whole(sink: Stopping) -> None:
    sink.partition_by = ("word",)
    for number, rows in ((1, [("a/b", 1), ("c", 2)]), (2, [("c", 3)])):
        written = sink.write(words(*rows), attempt(number))
        for _ in range(2):
            sink.publish(written.location, batch_time=TIME)
            assert seen(sink) == rows
        assert len(objects(sink)) == len(rows) + 1, "the files and what names them"


@ON_BOTH
def test_an_attempt_is_seen_once_it_is_published_and_replaced_whole(sink: Stopping) -> None:
    first = sink.write(words(("a", 1), ("b", 2)), attempt(1))
    assert first.rows == 2
    assert "/out/" in first.location
    assert not [secret for secret in (SECRET_KEY, "?", "sig=") if secret in first.location]
    assert seen(sink) == []
    sink.publish(first.location, batch_time=TIME)
    assert seen(sink) == [("a", 1), ("b", 2)]
    before = objects(sink)
    sink.publish(first.location, batch_time=TIME)
    assert objects(sink) == before
    second = sink.write(words(("c", 3), parts=1), attempt(2))
    sink.publish(second.location, batch_time=TIME)
    assert seen(sink) == [("c", 3)]
    assert len(objects(sink)) == 2, "the file and what names it"
    [row] = sink.dataset(TIME.date()).to_table().to_pylist()
    assert (row["_batch_time"], row["batch_time"], row["hour"]) == (TIME, "20260101T120010Z", 12)
    assert sink.dataset(datetime(2026, 1, 2, tzinfo=UTC).date()).to_table().num_rows == 0


@pytest.mark.parametrize(("step", "sees"), [(Step.STAGED, "a"), (Step.COMMITTED, "b"), (Step.SWEPT, "b")])
def test_a_publisher_that_stops_leaves_one_whole_attempt_and_the_next_one_completes_it(
    sink: Stopping, step: Step, sees: str
) -> None:
    sink.publish(sink.write(words(("a", 1)), attempt(1)).location, batch_time=TIME)
    second = sink.write(words(("b", 2)), attempt(2))
    sink.stops_at = step
    with pytest.raises(StoppedError):
        sink.publish(second.location, batch_time=TIME)
    assert [word for word, _ in seen(sink)] == [sees]
    sink.stops_at = ""
    sink.publish(second.location, batch_time=TIME)
    assert [word for word, _ in seen(sink)] == ["b"]
    assert len(objects(sink)) == 2


def test_a_file_of_a_losing_task_is_not_published(sink: Stopping) -> None:
    written = sink.write(words(("a", 1)), attempt(1))
    assert sink._objects is not None
    store = open_objects(sink._objects._resolved())
    key = written.location[written.location.index("_attempts/") :]
    [name] = [name for name in objects(sink, key) if name.endswith(".parquet")]
    store.copy(f"{key}/{name}", f"{key}/part-lost.parquet")
    sink.publish(written.location, batch_time=TIME)
    assert seen(sink) == [("a", 1)]


def test_one_attempt_in_two_processes_shows_the_committed_one(sink: Stopping) -> None:
    older, one, other, newer = (
        sink.write(words((name, 1)), attempt(n)) for name, n in zip("abcd", (1, 2, 2, 3), strict=True)
    )
    sink.publish(one.location, batch_time=TIME)
    assert seen(sink) == [("b", 1)]
    assert len({written.location for written in (older, one, other, newer)}) == 4
    assert len(objects(sink, "_attempts")) == 4, "a file, and what names it, of this one and of the newer one"
    sink.publish(newer.location, batch_time=TIME)
    assert seen(sink) == [("d", 1)]


HOUR = TIME.replace(minute=0, second=0)


def test_attempts_written_without_tokens_are_published_replaced_and_compacted(sink: Stopping) -> None:
    """Check as after an upgrade between a commit and its publishing."""
    assert sink._objects is not None
    store = open_objects(sink._objects._resolved())
    sink.compact = True
    for minute, word in enumerate("ab"):
        time = HOUR + timedelta(minutes=minute)
        location = sink.write(words((word, minute), parts=1), attempt(1, time=time)).location
        key = location[location.index("_attempts/") :]
        before, _, _ = key.rpartition("-")
        for name in objects(sink, key):
            store.move(f"{key}/{name}", f"{before}/{name}")
        sink.publish(location.rpartition("-")[0], batch_time=time)
    assert seen(sink) == [("a", 0), ("b", 1)]
    assert keep_hour(sink, HOUR, dict.fromkeys((HOUR, time), 1)) == 2
    assert keys(sink, "_attempts") == []
    sink.publish(sink.write(words(("new", 2)), attempt(2, time=time)).location, batch_time=time)
    assert seen(sink) == [("a", 0), ("new", 2)]


def batch(sink: Stopping, minute: int, word: str, number: int = 1) -> datetime:
    """Write and publish a batch of the hour; return its batch time."""
    time = HOUR + timedelta(minutes=minute)
    sink.publish(sink.write(words((word, minute), parts=1), attempt(number, time=time)).location, batch_time=time)
    return time


def keys(sink: Stopping, below: str = "") -> list[str]:
    """Return what is there, without the columns of all batches."""
    assert sink._objects is not None
    return [key for key, _ in open_objects(sink._objects._resolved()).sizes(below) if key != COLUMNS]


def make_older(sink: Stopping, hour: datetime = HOUR) -> None:
    """Change the hour's object as if the hour had been compacted 20 minutes ago."""
    assert sink._objects is not None
    store = open_objects(sink._objects._resolved())
    key = f"{hour:date=%Y-%m-%d/hour=%H/batch_time=%Y%m%dT%H}/{SUCCESS}"
    said = json.loads(store.get(key, 0, 1 << 20))
    said["made"] = (datetime.now(UTC) - timedelta(minutes=20)).isoformat()
    store.put(key, [json.dumps(said).encode()])


@ON_BOTH
def test_the_batches_of_an_hour_become_one_and_each_row_is_seen_once_at_every_step(sink: Stopping) -> None:
    sink.compact = True
    times = [batch(sink, minute, word) for minute, word in enumerate("abc")]
    expected = [("a", 0), ("b", 1), ("c", 2)]
    assert sink.upkeep_hours() == [HOUR]
    committed = dict.fromkeys(times, 1)
    for step in (Step.STAGED, Step.COMMITTED, Step.SWEPT):
        sink.stops_at = step
        with pytest.raises(StoppedError):
            keep_hour(sink, HOUR, committed)
        assert seen(sink) == expected
    sink.stops_at = ""
    assert keys(sink, "_attempts") == []
    # The files it was made of stay for readers that have listed them.
    assert keep_hour(sink, HOUR, committed) is None
    assert len(keys(sink)) > 2
    assert seen(sink) == expected
    make_older(sink)
    assert keep_hour(sink, HOUR, committed) is None
    assert len(keys(sink)) == 2, "the file and what names it"
    assert seen(sink) == expected
    assert sink.upkeep_hours() == []
    [row] = [row for row in sink.dataset(HOUR.date()).to_table().to_pylist() if row["word"] == "b"]
    assert (row["_batch_time"], row["batch_time"]) == (times[1], f"{HOUR:%Y%m%dT%H}")


def test_a_replay_replaces_its_own_rows_in_a_compacted_hour(sink: Stopping) -> None:
    sink.compact = True
    times = [batch(sink, minute, word) for minute, word in enumerate("ab")]
    assert keep_hour(sink, HOUR, dict.fromkeys(times, 1)) == 2
    replayed = sink.write(words(("new", 1), ("newer", 2)), attempt(2, time=times[1]))
    for step, sees in ((Step.STAGED, [("a", 0), ("b", 1)]), (Step.COMMITTED, [("a", 0), ("new", 1), ("newer", 2)])):
        sink.stops_at = step
        with pytest.raises(StoppedError):
            sink.publish(replayed.location, batch_time=times[1])
        assert seen(sink) == sees
    sink.stops_at = ""
    before = keys(sink, "date=2026-01-01")
    sink.publish(replayed.location, batch_time=times[1])
    assert keys(sink, "date=2026-01-01") == before, "it was there already"
    # A batch published later has its own files until the next compaction.
    batch(sink, 5, "late")
    assert seen(sink) == [("a", 0), ("late", 5), ("new", 1), ("newer", 2)]
    assert keep_hour(sink, HOUR, {}) == 4
    make_older(sink)
    keep_hour(sink, HOUR, {})
    assert len(keys(sink, "date=2026-01-01")) == 2
    assert seen(sink) == [("a", 0), ("late", 5), ("new", 1), ("newer", 2)]


def test_a_compaction_that_lost_its_turn_changes_nothing_that_readers_see(sink: Stopping) -> None:
    sink.compact = True
    times = [batch(sink, minute, word) for minute, word in enumerate("ab")]

    def lost() -> None:
        raise OutcomeUnknownError("the turn is over")

    with pytest.raises(OutcomeUnknownError):
        keep_hour(sink, HOUR, dict.fromkeys(times, 1), check=lost)
    assert seen(sink) == [("a", 0), ("b", 1)]
    assert keep_hour(sink, HOUR, dict.fromkeys(times, 1)) == 2
    assert seen(sink) == [("a", 0), ("b", 1)]


def test_a_replay_undone_by_a_compaction_is_back_after_the_next_one(sink: Stopping) -> None:
    """Check a compaction that is stopped between its last look and its write: it writes what it knew before."""
    sink.compact = True
    times = [batch(sink, minute, word) for minute, word in enumerate("ab")]
    assert keep_hour(sink, HOUR, dict.fromkeys(times, 1)) == 2
    times.append(batch(sink, 5, "late"))
    replayed = sink.write(words(("new", 1)), attempt(2, time=times[1]))

    def stopped() -> None:
        sink.publish(replayed.location, batch_time=times[1])
        assert seen(sink) == [("a", 0), ("late", 5), ("new", 1)]

    assert keep_hour(sink, HOUR, dict.fromkeys(times, 1), check=stopped) == 3
    assert seen(sink) == [("a", 0), ("b", 1), ("late", 5)]
    assert sink.upkeep_hours() == [HOUR]
    committed = {times[0]: 1, times[1]: 2, times[2]: 1}
    keep_hour(sink, HOUR, committed)
    assert seen(sink) == [("a", 0), ("late", 5), ("new", 1)]
    make_older(sink)
    keep_hour(sink, HOUR, committed)
    assert len(keys(sink)) == 2, "the file and what names it"
    assert seen(sink) == [("a", 0), ("late", 5), ("new", 1)]


def test_the_compaction_job_compacts_an_hour_that_the_driver_log_says_is_over(
    sink: Stopping, engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    log = Log(engine, database_url, tmp_path)
    session: Any = SessionWithoutSpark()
    hour = log.hour

    def pipeline(*rows: tuple[str, int]) -> Pipeline:
        made = declare(tmp_path, *rows)
        made.outputs["counts"].sink = ParquetSink(EnvVar("RESULTS_URL"), compact=True)
        return made

    def compacted() -> dict[str, Any]:
        result = upkeep_job(pipeline()).execute_in_process()
        assert result.success
        [event] = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
        return {name: value.value for name, value in event.step_output_data.metadata.items()}

    times = [log.batch(number) for number in range(3)]
    for time, word in zip(times, "abc", strict=True):
        run_batch(
            pipeline((word, 1)),
            batch_time=time,
            attempt=1,
            run_id="run1",
            settings=log.settings,
            session=lambda: session,
        )
    assert compacted() == {"published": 0, "followed": 0, "failed": 0}, "the hour is open"
    log.close_hour()
    assert compacted() == {"published": 0, "followed": 0, "failed": 0, "hours": 1, "rows": 3}
    assert seen(sink) == [("a", 1), ("b", 1), ("c", 1)]
    replay_batch(
        pipeline(("new", 2)), batch_time=times[1], run_id="replay", settings=log.settings, session=lambda: session
    )
    assert seen(sink) == [("a", 1), ("c", 1), ("new", 2)]
    make_older(sink, hour)
    assert "hours" not in compacted()
    assert len(keys(sink)) == 2, "the file and what names it"
    assert seen(sink) == [("a", 1), ("c", 1), ("new", 2)]


def test_a_result_without_rows_is_a_success_that_names_nothing(sink: Stopping) -> None:
    written = sink.write(words(), attempt(1))
    assert written.rows == 0
    sink.publish(written.location, batch_time=TIME)
    assert objects(sink) == [SUCCESS]
    assert seen(sink) == []


@ON_BOTH
def test_a_failure_names_the_output_and_no_secret(
    store: S3Server | AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = re.sub("(?<=[@/])blocks(?=[@/])", "another", store.url("x"))
    monkeypatch.setenv("RESULTS_URL", url)
    with pytest.raises(SinkError, match=r"output 'counts' of pipeline 'words': ParquetSink env:RESULTS_URL") as failed:
        ParquetSink(EnvVar("RESULTS_URL")).write(words(("a", 1)), attempt(1))
    secret = parse_qs(urlsplit(url).query).get("sig", [SECRET_KEY])[0]
    shown = "".join(traceback.format_exception(failed.value))
    assert not [form for form in (secret, quote(secret), quote(secret, safe="")) if form in shown]


@ON_BOTH
@pytest.mark.spark
def test_spark_writes_a_batch_and_a_replay_replaces_it(
    sink: Stopping, engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    def same(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("value", "current_timestamp() AS at")

    with local_spark(tmp_path) as session, connect(engine) as connection:
        system = System(connection, database_url, tmp_path, session)
        pipeline = system.declare(same, sink)
        system.receive(["a", "b"], ["c"])
        time = system.allocate(1)
        [result] = system.run(pipeline, time, 1)
        assert result.rows == 3
        table = sink.dataset().to_table()
        assert sorted(table["value"].to_pylist()) == ["a", "b", "c"]
        before = set(table["at"].to_pylist())
        system.replay(pipeline, time)
        table = sink.dataset().to_table()
        assert sorted(table["value"].to_pylist()) == ["a", "b", "c"]
        assert before.isdisjoint(table["at"].to_pylist())
        [commit] = commits_of_batch(connection, get_pipeline(connection, "words").pipeline_id, time)
        assert commit.attempt == 2
        assert SECRET_KEY not in commit.location
