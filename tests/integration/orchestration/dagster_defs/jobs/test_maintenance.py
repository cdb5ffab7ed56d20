"""Test maintenance on a Dagster instance: which runs go, with all their data, and what the driver log says after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.dagster_defs.jobs.maintenance import maintenance_job, maintenance_schedule, old_runs, prune
from tests.support.driver_log.attempts import claim_batch
from tests.support.driver_log.log import NOON, Log
from tracker_store.batches import batches
from tracker_store.connection.errors import BatchHeldError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE
STARTED, CANCELED = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELED


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


@pytest.fixture
def instance(made: dg.DagsterInstance) -> dg.DagsterInstance:
    made.wipe()
    return made


def declare(**settings: object) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="10s", **settings)  # type: ignore[arg-type]
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def add_run(
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus = SUCCESS,
    *,
    job: str = "words_batch",
    pipeline: str = "words",
) -> str:
    run = dg.DagsterRun(job_name=job, status=status, tags={"forebay/pipeline": pipeline})
    return instance.add_run(run).run_id


def ids(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs()}


def test_runs_go_by_age_and_failed_ones_later(instance: dg.DagsterInstance) -> None:
    pipeline = declare(run_retention="24h", failed_run_retention="14d")
    ended = {add_run(instance, SUCCESS), add_run(instance, CANCELED), add_run(instance, job="words_replay")}
    failed, running = add_run(instance, FAILURE), add_run(instance, STARTED)
    others = {add_run(instance, pipeline="other")}
    now = datetime.now(UTC)
    assert prune(instance, [pipeline], now=now).runs == 0
    assert prune(instance, [pipeline], now=now + timedelta(hours=25)).runs == len(ended)
    assert ids(instance) == {failed, running, *others}
    assert prune(instance, [pipeline], now=now + timedelta(days=15)).runs == 1
    assert ids(instance) == {running, *others}, "a run that has not finished stays, whatever its age"


def test_only_the_newest_batch_runs_are_kept_up_to_the_limit(instance: dg.DagsterInstance) -> None:
    pipeline = declare(ui_retained_batches=3)
    made = [add_run(instance) for _ in range(5)]
    failed, replay = add_run(instance, FAILURE), add_run(instance, job="words_replay")
    assert prune(instance, [pipeline]).runs == 2
    assert ids(instance) == {*made[2:], failed, replay}


def test_all_data_of_a_run_is_deleted_with_it(instance: dg.DagsterInstance) -> None:
    pipeline = declare(ui_retained_batches=1)

    @dg.asset
    def anything() -> int:
        print("said")  # noqa: T201
        return 1

    for _ in range(2):
        result = dg.materialize([anything], instance=instance, tags={"forebay/pipeline": "words"})
        assert result.success
    old = instance.get_runs()[-1].run_id
    # With the tag of a batch's run, because only those are counted.
    storage = Path(instance.storage_directory())
    assert list((storage / old).rglob("*")), "it has logs, at least"
    assert prune(instance, [pipeline], now=datetime.now(UTC) + timedelta(hours=25)).runs == 2
    assert not (storage / old).exists()
    assert instance.all_logs(old) == []


def test_events_without_a_run_are_kept_up_to_the_limit(instance: dg.DagsterInstance) -> None:
    """Check that those of Dagster's tables that are used, and are no public interface, are as expected."""
    pipeline = declare(ui_retained_batches=2)
    key = dg.AssetKey(["words", "batches"])
    for number in range(5):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(key, metadata={"number": number}, tags={"some": "tag"})
        )
        instance.report_runless_asset_event(dg.AssetObservation(key, metadata={"number": number}))
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(asset_key=key, check_name="fine", passed=True, metadata={})
        )
    other = dg.AssetKey(["other", "batches"])
    for _ in range(3):
        instance.report_runless_asset_event(dg.AssetMaterialization(other))
    prune(instance, [pipeline])
    found = instance.fetch_materializations(key, limit=10).records
    assert [
        record.asset_materialization and record.asset_materialization.metadata["number"].value for record in found
    ] == [
        4,
        3,
    ]
    assert len(instance.fetch_observations(key, limit=10).records) == 2
    checks = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(key, "fine"), limit=10)
    assert len(checks) == 2
    assert len(instance.fetch_materializations(other, limit=10).records) == 3
    newest = instance.get_latest_materialization_event(key)
    assert newest is not None


def test_one_call_is_bounded_and_the_next_one_continues(instance: dg.DagsterInstance) -> None:
    pipeline = declare(ui_retained_batches=1)
    for _ in range(4):
        add_run(instance)
    assert prune(instance, [pipeline], most_seconds=-1).more
    assert len(ids(instance)) == 4
    assert [record.dagster_run.run_id for record in old_runs(instance, pipeline, datetime.now(UTC), limit=2)]
    assert not prune(instance, [pipeline]).more
    assert len(ids(instance)) == 1


def test_the_job_prunes_and_reports_it(instance: dg.DagsterInstance) -> None:
    pipeline = declare(ui_retained_batches=1)
    add_run(instance)
    kept = add_run(instance)
    result = maintenance_job([pipeline]).execute_in_process(instance=instance)
    assert result.success
    assert ids(instance) == {kept, result.run_id}
    assert any("words: 1 runs pruned" in entry.user_message for entry in instance.all_logs(result.run_id))


def test_the_schedule_requests_a_run_only_if_there_is_something_to_prune(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    pipeline = declare(ui_retained_batches=1)
    schedule = maintenance_schedule([pipeline], maintenance_job([pipeline]))
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED, "a foreign instance is never changed unasked"

    def requests(at: datetime) -> int:
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as context:
            return len(schedule.evaluate_tick(context).run_requests or ())

    noon = datetime.now(UTC).replace(hour=12, minute=10)
    assert requests(noon) == 0
    assert requests(noon.replace(hour=0, minute=0)) == 1
    add_run(instance)
    add_run(instance)
    assert requests(noon) == 1
    monkeypatch.setenv("FOREBAY_DAGSTER_URL", "http://127.0.0.1:3000")
    own = maintenance_schedule([pipeline], maintenance_job([pipeline]))
    assert own.default_status is dg.DefaultScheduleStatus.RUNNING


def test_a_pruned_run_frees_its_key_in_dagster_and_the_driver_log_refuses_a_second_run(
    connection: sa.Connection,
    log: Log,
) -> None:
    time = NOON + timedelta(seconds=10)
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(time)

    def claim(attempt: int, run_id: str) -> None:
        claim_batch(connection, log.pipeline_id, time, attempt, run_id=run_id)

    claim(1, "pruned")
    batches.complete_batch(connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=1, outputs=[])
    for attempt in (1, 2):
        with pytest.raises(BatchHeldError, match="COMPLETED"):
            claim(attempt, "another run under the freed key")
