"""Test the scaling schedule on a real driver log: what it decides by, what it writes, and what applies it (O04)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.jobs.scaling_schedule import decide_scaling, scaling_job
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.spark.wanted_executors import wanted_executors
from tests.support.driver_log.log import INTERVAL, NOON
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.run_queue import register_batch_driver
from tracker_store.batches.scaling import record_scaling, scaling_decision, scaling_decisions, wanted_batch_drivers
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

CLUSTER = "spark://master:7077"
LOCAL = "local[2]"


def declare(name: str = "words", **settings: Any) -> Pipeline:  # noqa: ANN401  as Pipeline takes them
    pipeline = Pipeline(name, interval=INTERVAL, **settings)
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=ParquetSink(f"/out/{name}"), name="counts")(lambda frame: frame)
    return pipeline


class Batches:
    """Completed batches of chosen length, one after another, all of them recent."""

    def __init__(self, connection: sa.Connection, pipeline: Pipeline) -> None:
        self.connection = connection
        self.pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        self.time = NOON

    def complete(self, *parts: float, kind: str = "run") -> None:
        """Complete batches that took these parts of their interval."""
        for part in parts:
            self.time += INTERVAL
            now: datetime = self.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
            values = {"p": self.pipeline_id, "t": self.time, "end": now, "start": now - part * INTERVAL, "kind": kind}
            self.connection.execute(
                sa.text(
                    "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, attempt, records, "
                    "bytes, blocks, completed_at) VALUES (:p, :t, :t, 'COMPLETED', 1, 10, 100, 1, :end)"
                ),
                values,
            )
            self.connection.execute(
                sa.text(
                    "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, state, run_id, started_at, "
                    "ended_at, kind) VALUES (:p, :t, 1, 'SUCCEEDED', 'run', :start, :end, :kind)"
                ),
                values,
            )


def driver_on(connection: sa.Connection, host: str, *, location: str = "forebay") -> int:
    process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host=host, pid=1)
    register_batch_driver(connection, process_id=process_id, location=location)
    return process_id


def applied(connection: sa.Connection, pipeline: Pipeline) -> Batches:
    apply(connection, [pipeline])
    return Batches(connection, pipeline)


def executors(connection: sa.Connection, name: str = "words") -> int:
    decision = scaling_decision(connection, name)
    assert decision is not None
    return decision.executors


def test_o04_a_tick_of_the_schedule_decides_and_writes_it_down(
    connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", CLUSTER)
    pipeline = declare(dynamic_allocation_enabled=True)
    batches = applied(connection, pipeline)
    schedule = build_definitions(pipeline).get_repository_def().get_schedule_def("words_scaling")
    assert (schedule.cron_schedule, schedule.default_status) == ("* * * * *", dg.DefaultScheduleStatus.RUNNING)
    assert schedule(dg.build_schedule_context()) == dg.SkipReason("no batch was completed since it was looked at last")
    assert scaling_decisions(connection) == []
    batches.complete(0.9, 2.3)
    said = "batches take 160% of their interval (mean of 2): 3 executors instead of 1; the next Spark session has them"
    assert schedule(dg.build_schedule_context()) == dg.SkipReason(said)
    [decision] = scaling_decisions(connection)
    assert (decision.pipeline, decision.ratio, decision.batches) == ("words", 1.6, 2)
    assert (decision.executors, decision.applied, decision.reason) == (3, True, said)


def test_o04_each_batch_counts_in_one_round_and_what_stays_keeps_its_since(connection: sa.Connection) -> None:
    pipeline = declare()
    batches = applied(connection, pipeline)
    batches.complete(1.0)
    decide_scaling(connection, pipeline, master=CLUSTER)
    assert executors(connection) == 2
    # The same batch, counted again, would ask for one more executor.
    assert "no batch was completed" in decide_scaling(connection, pipeline, master=CLUSTER)
    assert executors(connection) == 2
    before = scaling_decision(connection, "words")
    batches.complete(0.5)
    decide_scaling(connection, pipeline, master=CLUSTER)
    after = scaling_decision(connection, "words")
    assert before is not None
    assert after is not None
    assert (after.executors, after.since) == (2, before.since)
    assert after.decided_at > before.decided_at
    batches.complete(0.1)
    decide_scaling(connection, pipeline, master=CLUSTER)
    assert executors(connection) == 1
    # Never below the minimum.
    batches.complete(0.1)
    decide_scaling(connection, pipeline, master=CLUSTER)
    assert executors(connection) == 1


def test_o04_the_scaling_interval_passes_between_two_decisions(
    connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", CLUSTER)
    pipeline = declare(dynamic_allocation_scaling_interval="5m")
    schedule = build_definitions(pipeline).get_repository_def().get_schedule_def("words_scaling")

    def tick() -> str:
        skipped = schedule(dg.build_schedule_context())
        assert isinstance(skipped, dg.SkipReason)
        return skipped.skip_message or ""

    def moved_back(seconds: int) -> None:
        """Make what has happened so far this much older."""
        for statement in (
            "UPDATE forebay.scaling_decisions SET decided_at = decided_at - make_interval(secs => :s)",
            "UPDATE forebay.batches SET completed_at = completed_at - make_interval(secs => :s)",
            "UPDATE forebay.batch_attempts SET started_at = started_at - make_interval(secs => :s)",
        ):
            connection.execute(sa.text(statement), {"s": seconds})

    batches = applied(connection, pipeline)
    batches.complete(1.0)
    moved_back(240)
    assert "2 executors instead of 1" in tick(), "the first decision counts the batches of one scaling interval"
    batches.complete(3.0)
    moved_back(240)
    assert tick().endswith("s ago, and decides every 300 s (dynamic_allocation_scaling_interval)")
    assert executors(connection) == 2
    batches.complete(5.0)
    # A tick that is a little early decides too; it counts both batches.
    moved_back(50)
    assert "400% of their interval (mean of 2): 6 executors instead of 2" in tick()


@pytest.mark.parametrize("interval", ["59s", "0s", "90s"])
def test_o04_a_scaling_interval_of_a_part_of_a_minute_is_refused(interval: str) -> None:
    with pytest.raises(ValueError, match=r"dynamic_allocation_scaling_interval.*give whole minutes"):
        declare(dynamic_allocation_scaling_interval=interval)


def test_o04_a_replay_says_nothing_about_the_interval(connection: sa.Connection) -> None:
    pipeline = declare()
    applied(connection, pipeline).complete(5.0, kind="replay")
    assert "no batch was completed" in decide_scaling(connection, pipeline, master=CLUSTER)


@pytest.mark.parametrize(
    ("settings", "parts", "wanted"),
    [
        ({"dynamic_allocation_max_executors": 2}, [4.0], 2),
        ({"dynamic_allocation_min_executors": 3}, [0.1], 3),
        ({"dynamic_allocation_scaling_up_ratio": 1.5}, [1.4], 1),
        ({"dynamic_allocation_scaling_up_ratio": 0.5}, [0.6], 2),
    ],
)
def test_o04_the_settings_of_the_pipeline_apply(
    connection: sa.Connection, settings: dict[str, Any], parts: Sequence[float], wanted: int
) -> None:
    pipeline = declare(**settings)
    applied(connection, pipeline).complete(*parts)
    decide_scaling(connection, pipeline, master=CLUSTER)
    assert executors(connection) == wanted


def test_o04_on_a_cluster_the_next_session_has_the_executors(connection: sa.Connection, database_url: str) -> None:
    pipeline = declare(dynamic_allocation_enabled=True)
    cluster = Settings(database_url=database_url, spark_master=CLUSTER)
    batches = applied(connection, pipeline)
    bounds = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "1",
    }
    assert wanted_executors(cluster, pipeline) == bounds
    batches.complete(2.0)
    decide_scaling(connection, pipeline, master=CLUSTER)
    three = {f"spark.dynamicAllocation.{bound}Executors": "3" for bound in ("initial", "max")}
    assert wanted_executors(cluster, pipeline) == bounds | three
    assert wanted_executors(Settings(database_url=database_url, spark_master=LOCAL), pipeline) == {}
    assert wanted_executors(cluster, declare()) == {}
    away = Settings(database_url="postgresql://nobody@127.0.0.1:1/none", spark_master=CLUSTER)
    assert wanted_executors(away, pipeline) == {}


def test_o04_on_a_local_master_batch_drivers_are_wanted_as_many_as_batches_may_run(connection: sa.Connection) -> None:
    driver_on(connection, "here")
    assert wanted_batch_drivers(connection, "here") == 1
    wide, narrow = (
        declare("wide", dynamic_allocation_enabled=True, concurrent_batches=2),
        declare("narrow", dynamic_allocation_enabled=True),
    )
    advice = declare("advice", concurrent_batches=4)
    for pipeline in (wide, narrow, advice):
        applied(connection, pipeline).complete(3.0)
    assert "2 batch drivers instead of 1; agents start them" in decide_scaling(connection, wide, master=LOCAL)
    assert "lengthen the interval" in decide_scaling(connection, narrow, master=LOCAL)
    assert "4 batch drivers instead of 1; advice" in decide_scaling(connection, advice, master=LOCAL)
    wanted = {row.pipeline: (row.executors, row.batch_drivers) for row in scaling_decisions(connection)}
    assert wanted == {"wide": (1, 2), "narrow": (1, 1), "advice": (1, 4)}
    # The driver that pipelines share, plus what is applied beyond it.
    assert wanted_batch_drivers(connection, "here") == 2


def test_o04_hosts_share_the_batch_drivers_that_are_wanted(connection: sa.Connection) -> None:
    """Check this because three hosts must not each start what is wanted once."""
    wide = declare("wide", dynamic_allocation_enabled=True, concurrent_batches=4)
    batches = applied(connection, wide)
    record_scaling(
        connection,
        pipeline_id=batches.pipeline_id,
        ratio=1.0,
        batches=1,
        executors=1,
        batch_drivers=4,
        applied=True,
        reason="a test",
    )

    def shares() -> list[int]:
        return [wanted_batch_drivers(connection, host) for host in ("a", "b", "c")]

    assert shares() == [1, 1, 1], "none has one yet, and none must begin with all"
    driver_on(connection, "b")
    assert shares() == [1, 4, 1]
    # The driver of another code location does not count: it takes other runs.
    driver_on(connection, "c", location="others")
    assert shares() == [1, 4, 4]
    first = driver_on(connection, "a")
    driver_on(connection, "a")
    driver_on(connection, "c")
    assert shares() == [2, 1, 1]
    deregister_process(connection, first)
    assert shares() == [2, 1, 1], "host a has another driver"
    assert connection.execute(sa.text("SELECT forebay.wanted_batch_drivers(NULL)")).scalar_one() == 1


def test_o04_the_job_decides_on_request(
    connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", CLUSTER)
    pipeline = declare()
    applied(connection, pipeline).complete(1.0)
    connection.commit()
    assert scaling_job(pipeline).execute_in_process().success
    assert executors(connection) == 2


def test_without_a_driver_log_it_decides_nothing_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = build_definitions(declare()).get_repository_def().get_schedule_def("words_scaling")
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    skipped = schedule(dg.build_schedule_context())
    assert isinstance(skipped, dg.SkipReason)
    assert "FOREBAY_DATABASE_URL" in (skipped.skip_message or "")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    skipped = schedule(dg.build_schedule_context())
    assert isinstance(skipped, dg.SkipReason)
    assert "nothing is decided" in (skipped.skip_message or "")


def test_ratios_and_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scaling_up_ratio=0\.3 must be more than"):
        declare(dynamic_allocation_scaling_up_ratio=0.3)
    with pytest.raises(ValueError, match="max_executors=1 must not be less than"):
        declare(dynamic_allocation_min_executors=2, dynamic_allocation_max_executors=1)
