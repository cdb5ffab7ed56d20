"""Test what the observation sensor reports of a driver log: streams, minutes, checks that changed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.checks import quarantined_batches
from orchestration.dagster_defs.checks.checks import DESCRIPTIONS
from orchestration.dagster_defs.sensors import observation_sensor
from orchestration.dagster_defs.sensors.observation_sensor import ObservationCursor, observe
from orchestration.dagster_defs.shared.batch_plots import batch_metadata
from tests.support.driver_log.attempts import commit_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.postgres.counted_statements import buffers, counted
from tracker_store.batches.batches import claim_attempt, complete_batch
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.reports.batch_statistics import batch_figures, completed_minutes, pipeline_queue

if TYPE_CHECKING:
    from datetime import datetime

STREAM = dg.AssetKey(["forebay", "lines"])
MINUTES = dg.AssetKey(["words", "batches_1m"])
PROOFS = tuple(DESCRIPTIONS)


@pytest.fixture
def pipeline() -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    made = Pipeline("words", interval="10s")
    made.output(inputs=[lines], sink=ParquetSink("out"), name="counts")(lambda frame: frame)
    return made


@pytest.fixture
def log(connection: sa.Connection, pipeline: Pipeline) -> Log:
    """Return a log with the pipeline applied, no batch yet, and no batch due."""
    log = make_log(connection)
    apply_pipeline(
        connection, name="words", declaration=pipeline.declaration(), stream_ids=[log.stream_id], interval=INTERVAL
    )
    return log


def complete(log: Log, batch_time: datetime, *, records: int, started: float, seconds: float) -> None:
    """Complete a batch of one block that started and completed this number of seconds after its time."""
    log.add_at(log.receiver_ids[0], batch_time - INTERVAL / 2, records=records)
    log.tracker.allocate_blocks_to_batch(batch_time)
    this = log.pipeline_id
    claim_attempt(log.connection, pipeline_id=this, batch_time=batch_time, attempt=1, run_id="run", process_id=1)
    commit_batch(log.connection, this, batch_time, "counts", rows=records)
    complete_batch(log.connection, pipeline_id=this, batch_time=batch_time, attempt=1, outputs=["counts"])
    for statement, after in (
        ("UPDATE forebay.batches SET completed_at = batch_time + make_interval(secs => :after)", seconds),
        ("UPDATE forebay.batch_attempts SET started_at = batch_time + make_interval(secs => :after)", started),
    ):
        log.connection.execute(sa.text(f"{statement} WHERE batch_time = :time"), {"after": after, "time": batch_time})


def events_of(
    connection: sa.Connection, pipeline: Pipeline, cursor: ObservationCursor
) -> tuple[
    dict[str, list[dg.AssetObservation | dg.AssetMaterialization]], list[dg.AssetCheckEvaluation], ObservationCursor
]:
    """Return the events by asset, the checks, and the next cursor as it comes back from Dagster."""
    events, after = observe(connection, pipeline, pipeline.streams, cursor)
    of_assets: dict[str, list[dg.AssetObservation | dg.AssetMaterialization]] = {}
    for event in events:
        if not isinstance(event, dg.AssetCheckEvaluation):
            of_assets.setdefault(event.asset_key.to_user_string(), []).append(event)
    checks = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
    return of_assets, checks, ObservationCursor.parse(after.model_dump_json())


def test_o01_a_batchs_figures_are_numbers_that_the_ui_plots(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    complete(log, NOON + INTERVAL, records=50, started=0.5, seconds=2.0)
    figures = batch_figures(connection, log.pipeline_id, NOON + INTERVAL)
    assert figures is not None
    metadata = batch_metadata(pipeline, figures)
    numbers = {name: value.value for name, value in metadata.items() if isinstance(value.value, int | float)}
    assert numbers == {
        "attempt": 1,
        "records": 50,
        "input_rate": 5.0,
        "bytes": 500,
        "blocks": 2,
        "scheduling_delay_ms": 500.0,
        "processing_time_ms": 1500.0,
        "total_delay_ms": 2000.0,
    }


def test_the_input_rate_of_a_merged_batch_is_that_of_all_its_intervals(connection: sa.Connection, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1), records=90)
    log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL, oldest_time=NOON + INTERVAL)
    figures = batch_figures(connection, log.pipeline_id, NOON + 3 * INTERVAL)
    assert figures is not None
    assert figures.input_rate == 3.0


def test_the_statement_beside_a_batch_shows_its_blocks(connection: sa.Connection, pipeline: Pipeline, log: Log) -> None:
    complete(log, NOON + INTERVAL, records=50, started=0.5, seconds=2.0)
    complete(log, NOON + 2 * INTERVAL, records=7, started=0.5, seconds=2.0)
    figures = batch_figures(connection, log.pipeline_id, NOON + 2 * INTERVAL)
    assert figures is not None
    shown = str(batch_metadata(pipeline, figures)["its_blocks"].value)
    statement = shown.removeprefix("```sql\n").removesuffix("```")
    [row] = connection.exec_driver_sql(statement).all()
    assert (row.stream, row.records) == ("lines", 7)


def test_completed_minutes_are_reported_once(
    connection: sa.Connection, pipeline: Pipeline, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation_sensor, "database_time", lambda _: NOON + timedelta(minutes=10, seconds=5))
    for number, seconds in enumerate((1.0, 2.0, 6.0, 3.0), start=1):
        complete(log, NOON + number * INTERVAL, records=10 * number, started=0.5, seconds=seconds)
    complete(log, NOON + 7 * INTERVAL, records=100, started=0.5, seconds=1.0)
    cursor = ObservationCursor(minute=NOON - timedelta(minutes=1))

    events, _, cursor = events_of(connection, pipeline, cursor)
    first, second, quiet = events[MINUTES.to_user_string()]
    assert first.metadata["minute"].value == NOON.isoformat()
    assert first.metadata["batches"].value == 4
    assert first.metadata["records"].value == 100
    assert first.metadata["total_delay_median_ms"].value == 2500.0
    # Between the third and the fourth of four values, at 0.95 of the way from first to last.
    assert first.metadata["total_delay_p95_ms"].value == pytest.approx(5550.0)
    assert second.metadata["batches"].value == 1
    # A plot joins its points: zeros show that nothing came.
    shown = {name: value.value for name, value in quiet.metadata.items()}
    assert shown.pop("minute") == (NOON + timedelta(minutes=9)).isoformat()
    assert set(shown.values()) == {0}

    events, _, cursor = events_of(connection, pipeline, cursor)
    assert MINUTES.to_user_string() not in events
    complete(log, NOON + 61 * INTERVAL, records=1, started=0.5, seconds=1.0)
    monkeypatch.setattr(observation_sensor, "database_time", lambda _: NOON + timedelta(minutes=11, seconds=5))
    events, _, _ = events_of(connection, pipeline, cursor)
    assert [event.metadata["records"].value for event in events[MINUTES.to_user_string()]] == [1]


def test_a_pipeline_that_is_due_less_than_once_a_minute_has_no_quiet_minutes(
    connection: sa.Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation_sensor, "database_time", lambda _: NOON + timedelta(minutes=10))
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    slow = Pipeline("words", interval="5m")
    slow.output(inputs=[lines], sink=ParquetSink("out"), name="counts")(lambda frame: frame)
    events, _, _ = events_of(connection, slow, ObservationCursor(minute=NOON))
    assert MINUTES.to_user_string() not in events


def test_the_newest_batch_is_reported_once_if_it_was_empty(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    def empty(cursor: ObservationCursor) -> tuple[list[tuple[object, set[object]]], ObservationCursor]:
        events, _, after = events_of(connection, pipeline, cursor)
        figures = ("records", "input_rate", "scheduling_delay_ms", "processing_time_ms", "total_delay_ms")
        found = events.get("words/batches", [])
        return [
            (event.metadata["batch_time"].value, {event.metadata[name].value for name in figures}) for event in found
        ], after

    complete(log, NOON + INTERVAL, records=50, started=0.5, seconds=2.0)
    found, cursor = empty(ObservationCursor())
    assert found == [], "its run has reported it"
    for number in (2, 3):
        log.tracker.allocate_blocks_to_batch(NOON + number * INTERVAL)
    found, cursor = empty(cursor)
    assert found == [((NOON + 3 * INTERVAL).isoformat(), {0})]
    assert empty(cursor)[0] == []
    complete(log, NOON + 4 * INTERVAL, records=50, started=0.5, seconds=2.0)
    assert empty(cursor)[0] == []


def test_the_proofs_of_each_output_are_reported_once_while_the_log_is_short(
    connection: sa.Connection, pipeline: Pipeline, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that no output is shown with checks that never ran, and that a long log is not read for that."""
    complete(log, NOON + INTERVAL, records=50, started=0.5, seconds=2.0)

    def proved(cursor: ObservationCursor) -> tuple[list[tuple[str, str]], ObservationCursor]:
        _, checks, after = events_of(connection, pipeline, cursor)
        return [(check.asset_key.path[-1], check.check_name) for check in checks if check.check_name in PROOFS], after

    found, cursor = proved(ObservationCursor())
    assert found == [("counts", name) for name in PROOFS]
    assert proved(cursor)[0] == []
    pipeline.output(inputs=pipeline.streams, sink=ParquetSink("other"), name="others")(lambda frame: frame)
    found, cursor = proved(cursor)
    assert {output for output, _ in found} == {"counts", "others"}
    monkeypatch.setattr(observation_sensor, "MOST_PROVED", 1)
    found, cursor = proved(ObservationCursor())
    assert found == []


def test_after_a_long_outage_only_the_minutes_that_a_plot_shows_are_reported(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    """Check after Dagster was down for days: the newest minutes come first; earlier ones are never looked up."""
    complete(log, NOON + INTERVAL, records=10, started=0.5, seconds=2.0)
    complete(log, NOON + 2 * INTERVAL, records=10, started=0.5, seconds=2.0)
    connection.execute(
        sa.text(
            "UPDATE forebay.batches SET completed_at = clock_timestamp() - interval '3 days' WHERE batch_time = :t"
        ),
        {"t": NOON + INTERVAL},
    )
    recent = connection.execute(
        sa.text(
            "UPDATE forebay.batches SET completed_at = clock_timestamp() - interval '3 minutes' WHERE batch_time = :t "
            "RETURNING date_trunc('minute', completed_at)"
        ),
        {"t": NOON + 2 * INTERVAL},
    ).scalar_one()
    assets, _, _ = events_of(connection, pipeline, ObservationCursor(minute=recent - timedelta(days=4)))
    only, quiet = assets[MINUTES.to_user_string()]
    assert only.metadata["minute"].value == recent.isoformat()
    assert quiet.metadata["batches"].value == 0, "of the minutes without batches only the newest: a plot shows it now"


def test_a_batch_that_waits_for_its_store_counts_as_waiting(connection: sa.Connection, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    before = pipeline_queue(connection, log.pipeline_id)
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'BLOCKED'"))
    assert pipeline_queue(connection, log.pipeline_id).waiting == before.waiting == 1


def test_an_unfinished_minute_is_not_reported(connection: sa.Connection, log: Log) -> None:
    complete(log, NOON + INTERVAL, records=1, started=0.5, seconds=1.0)
    connection.execute(sa.text("UPDATE forebay.batches SET completed_at = clock_timestamp()"))
    assert completed_minutes(connection, log.pipeline_id, after=NOON, limit=10) == []


def test_a_stream_is_observed_with_its_rate_its_lag_and_its_receivers(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', reason = 'all is well'"))
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1), records=500)
    events, _, cursor = events_of(connection, pipeline, ObservationCursor())
    [seen] = events[STREAM.to_user_string()]
    assert seen.metadata["records"].value == 500
    assert seen.metadata["lag_records"].value == 500
    assert (seen.metadata["receivers"].value, seen.metadata["receivers_active"].value) == (1, 1)
    assert "ACTIVE: all is well" in str(seen.metadata["receiver 1"].value)
    # A single look has no rate; and the source has not said what it has.
    assert not {"rate", "source_unread", "source_lag_seconds"} & set(seen.metadata)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.source_lag (stream_id, source, partition, receiver_id, unread, unit, oldest_at) "
            "VALUES (:stream, 'orders', '0', :receiver, 70, 'records', clock_timestamp() - interval '100 s')"
        ),
        {"stream": log.stream_id, "receiver": log.receiver_ids[0]},
    )

    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=2), records=300)
    before = cursor.streams["lines"]
    cursor.streams["lines"] = before.model_copy(update={"at": before.at - timedelta(seconds=100)})
    events, _, _ = events_of(connection, pipeline, cursor)
    [seen] = events[STREAM.to_user_string()]
    assert seen.metadata["rate"].value == pytest.approx(3.0, rel=0.1)
    assert seen.metadata["source_unread"].value == 70
    assert seen.metadata["source_lag_seconds"].value == pytest.approx(100, abs=60)


def test_a_check_is_reported_when_it_changes_and_every_few_minutes(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))
    _, checks, cursor = events_of(connection, pipeline, ObservationCursor())
    names = {check.check_name for check in checks if check.check_name not in PROOFS}
    assert names == {"total_delay", "queue_depth", "none_quarantined", "receivers_active"}
    _, checks, cursor = events_of(connection, pipeline, cursor)
    assert checks == []

    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'FAILED', reason = 'no such host'"))
    _, [check], cursor = events_of(connection, pipeline, cursor)
    assert (check.check_name, check.passed, check.asset_key) == ("receivers_active", False, STREAM)

    for seen in cursor.checks.values():
        seen.at -= timedelta(minutes=11)
    _, checks, _ = events_of(connection, pipeline, cursor)
    assert {check.check_name for check in checks} == names


def test_each_quarantined_batch_is_observed_once_however_many_there_are(
    connection: sa.Connection, pipeline: Pipeline, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check more than one tick reports, an older batch that is quarantined later, and one that comes out."""
    monkeypatch.setattr(quarantined_batches, "MOST_BATCHES", 2)
    times = [NOON + number * INTERVAL for number in range(1, 7)]

    def quarantine(*chosen: datetime) -> None:
        connection.execute(
            sa.text(
                "UPDATE forebay.batches SET state = 'QUARANTINED', completed_at = NULL WHERE batch_time = ANY (:times)"
            ),
            {"times": list(chosen)},
        )

    def observed(cursor: ObservationCursor) -> tuple[list[object], ObservationCursor]:
        events, _, after = events_of(connection, pipeline, cursor)
        found = events.get("words/batches", [])
        return [event.metadata["batch_time"].value for event in found], after

    for time in times:
        log.tracker.allocate_blocks_to_batch(time)
    quarantine(*times[1:])
    seen, cursor = [], ObservationCursor()
    for _ in range(3):
        reported, cursor = observed(cursor)
        assert len(reported) <= 2
        seen += reported
    assert seen == [time.isoformat() for time in times[1:]]
    assert observed(cursor)[0] == []
    quarantine(times[0])
    reported, cursor = observed(cursor)
    assert reported == [times[0].isoformat()]
    assert cursor.quarantined == times
    connection.execute(
        sa.text("UPDATE forebay.batches SET state = 'DISCARDED' WHERE batch_time = :time"), {"time": times[3]}
    )
    reported, cursor = observed(cursor)
    assert (reported, cursor.quarantined) == ([], [*times[:3], *times[4:]])


def test_the_sensor_reports_without_a_run_and_survives_a_cursor_of_another_release(
    pipeline: Pipeline, log: Log, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    repository = build_definitions(pipeline).get_repository_def()
    [sensor] = [sensor for sensor in repository.sensor_defs if sensor.name == "words_observations"]
    with dg.DagsterInstance.ephemeral() as instance:
        for cursor in (None, "from another release"):
            context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
            data = sensor.evaluate_tick(context)
            assert data.run_requests == []
            assert STREAM in {event.asset_key for event in data.asset_events}
            assert data.cursor is not None
            assert ObservationCursor.parse(data.cursor).streams["lines"].records == 0


def test_the_sensor_says_what_it_waits_for(
    pipeline: Pipeline, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    repository = build_definitions(pipeline).get_repository_def()
    [sensor] = [sensor for sensor in repository.sensor_defs if sensor.name == "words_observations"]
    with dg.DagsterInstance.ephemeral() as instance:
        data = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, repository_def=repository))
    assert data.skip_message is not None
    assert "forebay apply" in data.skip_message


def test_a_look_costs_what_its_own_streams_have_whatever_others_there_are(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    def look(others: int) -> tuple[int, int, int]:
        connection.execute(
            sa.text("""
                INSERT INTO forebay.streams (name, declaration)
                SELECT 'other-' || n, '{"source": {}, "settings": {}}'
                FROM generate_series(1, :others) AS n
                ON CONFLICT DO NOTHING
            """),
            {"others": others},
        )
        connection.execute(
            sa.text("""
                INSERT INTO forebay.receivers (stream_id, ordinal)
                SELECT id, n
                FROM forebay.streams, generate_series(1, 10) AS n
                WHERE name <> 'lines'
                ON CONFLICT DO NOTHING
            """)
        )
        connection.exec_driver_sql("ANALYZE forebay.streams, forebay.receivers")
        with counted(connection) as sent:
            observe(connection, pipeline, pipeline.streams, ObservationCursor())
        looks = [query for query in sent.queries if "receiver_status" in query or "stream_lag" in query]
        return *sent.sizes, sum(buffers(connection, query) for query in looks)

    *few, pages = look(10)
    *many, pages_of_many = look(300)
    assert many == few
    # Streams are found by name in a short table, which has grown; of the others' receivers nothing is read.
    assert pages_of_many - pages <= 20
