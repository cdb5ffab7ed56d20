"""Test the asset checks of a pipeline: what they report of an intact log, and of a broken one."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.checks.batch_checks import DESCRIPTIONS as BATCH_CHECKS
from orchestration.dagster_defs.checks.batch_checks import check_batches
from orchestration.dagster_defs.checks.checks import DESCRIPTIONS, RECEIVERS_ACTIVE, check_pipeline, check_receivers
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches.batches import complete_batch
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.connection.errors import NotAppliedError
from tracker_store.reports.status import receiver_status


@pytest.fixture
def pipeline() -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    made = Pipeline("words", interval="10s")
    made.output(inputs=[lines], sink=ParquetSink("out"), name="counts")(lambda frame: frame)
    made.output(inputs=[lines], sink=ParquetSink("raw"), name="raw")(lambda frame: frame)
    return made


@pytest.fixture
def log(connection: sa.Connection, pipeline: Pipeline) -> Log:
    """Return a log with one completed batch of the pipeline."""
    log = make_log(connection)
    apply_pipeline(
        connection,
        name="words",
        declaration=pipeline.declaration(),
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    log.add_at(log.receiver_ids[0], NOON + timedelta(seconds=1), NOON + timedelta(seconds=2))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    claim_batch(connection, log.pipeline_id, NOON + INTERVAL, run_id="run-1", process_id=1)
    for output in ("counts", "raw"):
        commit_batch(connection, log.pipeline_id, NOON + INTERVAL, output, location=output)
    complete_batch(
        connection, pipeline_id=log.pipeline_id, batch_time=NOON + INTERVAL, attempt=1, outputs=["counts", "raw"]
    )
    return log


def keep_up(connection: sa.Connection, *, seconds: float = 3.0, due: int = 0) -> None:
    """Set the newest batch's completion to `seconds` after its time, and leave this number of boundaries due."""
    connection.execute(
        sa.text(
            "UPDATE forebay.batch_attempts SET started_at = batch_time + make_interval(secs => 1), "
            "  ended_at = batch_time + make_interval(secs => :seconds)"
        ),
        {"seconds": seconds},
    )
    connection.execute(
        sa.text(
            "UPDATE forebay.batches SET completed_at = batch_time + make_interval(secs => :seconds) "
            "WHERE state = 'COMPLETED'"
        ),
        {"seconds": seconds},
    )
    connection.execute(
        # Half an interval of margin, so that no boundary falls between this statement and the check.
        sa.text("UPDATE forebay.pipelines SET last_batch_time = clock_timestamp() - (:due + 0.5) * batch_interval"),
        {"due": due},
    )


def passed(connection: sa.Connection, pipeline: Pipeline) -> dict[str, bool]:
    results = list(check_pipeline(connection, pipeline))
    return {f"{result.asset_key.path[-1]}:{result.check_name}": result.passed for result in results if result.asset_key}


def test_an_intact_log_passes_every_check(connection: sa.Connection, pipeline: Pipeline, log: Log) -> None:
    assert passed(connection, pipeline) == {
        f"{output}:{name}": True for output in ("counts", "raw") for name in DESCRIPTIONS
    }


@pytest.mark.parametrize(
    ("statement", "failing"),
    [
        ("DELETE FROM forebay.blocks WHERE sequence = 2", {"counts:blocks_intact", "raw:blocks_intact"}),
        ("UPDATE forebay.batches SET records = 1", {"counts:batches_intact", "raw:batches_intact"}),
        ("DELETE FROM forebay.output_commits WHERE output = 'raw'", {"raw:committed_once"}),
    ],
)
def test_each_kind_of_damage_fails_its_own_check(
    connection: sa.Connection, pipeline: Pipeline, log: Log, statement: str, failing: set[str]
) -> None:
    connection.execute(sa.text(statement))
    found = passed(connection, pipeline)
    # A missing block may leave its range's count unchanged: the count comes from the range's first and last row.
    assert {name for name, good in found.items() if not good} == failing


def test_a_failed_check_names_what_it_found(connection: sa.Connection, pipeline: Pipeline, log: Log) -> None:
    connection.execute(sa.text("DELETE FROM forebay.blocks WHERE sequence = 2"))
    first = next(iter(check_pipeline(connection, pipeline)))
    assert first.metadata is not None
    assert "receiver 1: 2..2 is missing" in str(first.metadata["chains_are_gapless"])
    assert first.description is not None
    assert "without a gap" in first.description


def test_a_pipeline_that_is_not_applied_has_nothing_to_check(connection: sa.Connection, pipeline: Pipeline) -> None:
    with pytest.raises(NotAppliedError):
        list(check_pipeline(connection, pipeline))


@pytest.mark.parametrize(
    ("seconds", "due", "failing"),
    [
        (3.0, 0, {}),
        (11.0, 0, {"total_delay": dg.AssetCheckSeverity.WARN}),
        (101.0, 0, {"total_delay": dg.AssetCheckSeverity.ERROR}),
        (3.0, 1, {}),
        (3.0, 2, {"queue_depth": dg.AssetCheckSeverity.WARN}),
        (3.0, 11, {"queue_depth": dg.AssetCheckSeverity.ERROR}),
    ],
)
def test_a_pipeline_that_falls_behind_fails_a_check_of_its_batches(
    connection: sa.Connection,
    pipeline: Pipeline,
    log: Log,
    seconds: float,
    due: int,
    failing: dict[str, dg.AssetCheckSeverity],
) -> None:
    keep_up(connection, seconds=seconds, due=due)
    results = list(check_batches(connection, pipeline))
    assert {result.asset_key for result in results} == {dg.AssetKey(["words", "batches"])}
    assert {result.check_name: result.severity for result in results if not result.passed} == failing


def test_a_batch_that_was_given_up_fails_a_check_until_it_is_handled(
    connection: sa.Connection, pipeline: Pipeline, log: Log
) -> None:
    log.add_at(log.receiver_ids[0], NOON + INTERVAL + timedelta(seconds=1))
    log.tracker.allocate_blocks_to_batch(NOON + 2 * INTERVAL)
    fail_batch(
        connection, log.pipeline_id, NOON + 2 * INTERVAL, run_id="run-2", error="a division by zero", max_attempts=1
    )
    keep_up(connection)
    [failed] = [result for result in check_batches(connection, pipeline) if not result.passed]
    assert (failed.check_name, failed.severity) == ("none_quarantined", dg.AssetCheckSeverity.ERROR)
    assert failed.description is not None
    assert "forebay batches --pipeline words" in failed.description
    assert failed.description.endswith("a division by zero")


@pytest.mark.parametrize(
    ("state", "desired", "good"),
    [
        ("ACTIVE", "running", True),
        ("FAILED", "running", False),
        ("INACTIVE", "running", False),
        ("PAUSED", "paused", True),
        ("INACTIVE", "stopped", True),
        ("ACTIVE", "stopped", False),
    ],
)
def test_a_receiver_not_in_its_desired_state_fails_the_check_of_its_stream(
    connection: sa.Connection, pipeline: Pipeline, log: Log, state: str, desired: str, good: bool
) -> None:
    connection.execute(
        sa.text("UPDATE forebay.receivers SET state = :state, desired_state = :desired, reason = 'so it is'"),
        {"state": state, "desired": desired},
    )
    [result] = check_receivers(pipeline.streams, receiver_status(connection))
    assert result.asset_key == dg.AssetKey(["forebay", "lines"])
    severity = dg.AssetCheckSeverity.ERROR if state == "FAILED" else dg.AssetCheckSeverity.WARN
    assert (result.passed, result.severity) == (good, severity)
    assert "so it is" in str(result.metadata)


def test_a_degraded_receiver_is_an_error_on_its_stream(connection: sa.Connection, pipeline: Pipeline, log: Log) -> None:
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', reason = 'degraded: the disk is full'"))
    [result] = check_receivers(pipeline.streams, receiver_status(connection))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "the disk is full" in str(result.metadata)


def test_the_job_of_checks_runs_them_and_the_batch_job_does_not(
    pipeline: Pipeline, log: Log, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))
    keep_up(log.connection)
    repository = build_definitions(pipeline).get_repository_def()
    assert [node.name for node in repository.get_job("words_batch").nodes] == ["words__outputs"]
    with dg.DagsterInstance.ephemeral() as instance:
        finished = repository.get_job("words_checks").execute_in_process(instance=instance)
    evaluations = finished.get_asset_check_evaluations()
    assert len(evaluations) == 2 * len(DESCRIPTIONS) + len(BATCH_CHECKS) + 1
    assert {evaluation.check_name for evaluation in evaluations} == {*DESCRIPTIONS, *BATCH_CHECKS, RECEIVERS_ACTIVE}
    assert all(evaluation.passed for evaluation in evaluations)
