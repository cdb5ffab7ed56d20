"""Test outputs by event time on real local Spark, a driver log, stored blocks and real sinks, batch after batch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import EnvVar, EventWindow, ParquetSink, Pipeline, PostgresSink
from orchestration.batches.attempt_outputs import OutputsFailedError
from orchestration.replays.state_forward import replay_forward
from tests.support.spark.event_rig import EventRig, stream
from tracker_store.batches.state_replays import begin_state_replay

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.integration.orchestration.target_database import Target

pytestmark = pytest.mark.spark

CLICKS = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("pages", pa.int64())])


@pytest.fixture
def rig(engine: sa.Engine, connection: sa.Connection, database_url: str, tmp_path: Path) -> EventRig:
    return EventRig(engine, connection, database_url, tmp_path)


def sums(clicks: DataFrame, factor: int = 1) -> DataFrame:
    by_window = clicks.groupBy("window_start", "window_end", "user").sum("pages")
    return by_window.selectExpr("window_start", "window_end", "user", f"{factor} * `sum(pages)` AS pages")


def parquet(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return list(ds.dataset(path, partitioning="hive", format="parquet").to_table().to_pylist())


# Fifteen runs of outputs, each of several Spark jobs.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_windows_are_replaced_in_a_table_and_final_in_files(
    rig: EventRig, target: Target, tmp_path: Path, session: SparkSession
) -> None:
    factor = 1
    clicks = stream("clicks", receivers=2)
    pipeline = Pipeline("visits", interval="1h")
    merged = PostgresSink(EnvVar("TARGET_URL"), "sums", mode="merge", key=["window_start", "user"])
    timed = clicks.by_event_time("at", lateness="10m", idle="3h")
    pipeline.output(
        inputs=[timed], window=EventWindow("10m"), sink=merged, late=ParquetSink(tmp_path / "late"), name="sums"
    )(lambda clicks: sums(clicks, factor))
    pipeline.output(inputs=[timed], window=EventWindow("10m"), sink=ParquetSink(tmp_path / "final"), name="final")(sums)
    rig.apply(pipeline)
    noon = rig.begin

    def receive(*rows: tuple[str, int, int], receiver: int = 0) -> None:
        made = [{"user": user, "at": noon + timedelta(minutes=minute), "pages": n} for user, minute, n in rows]
        rig.receive("clicks", made, CLICKS, receiver=receiver)

    def table() -> list[tuple[Any, ...]]:
        found = target.rows('SELECT extract(epoch FROM window_start - %s) / 60, "user", pages FROM sums', noon)
        return sorted((int(minute), user, n) for minute, user, n in found)

    def final() -> list[tuple[Any, ...]]:
        return sorted(
            ((row["window_start"] - noon) // timedelta(minutes=1), row["user"], row["pages"])
            for row in parquet(tmp_path / "final")
        )

    receive(("ann", 1, 1), ("ann", 2, 2), ("bob", 11, 4))
    receive(("ann", 3, 8), receiver=1)
    rig.run(rig.allocate(1), session=lambda: session)
    assert table() == [(0, "ann", 11), (10, "bob", 4)]
    assert final() == []
    # A late record changes a window; the other receiver holds the watermark back.
    receive(("ann", 4, 16), ("bob", 50, 1))
    second = rig.allocate(2)
    rig.run(second, session=lambda: session)
    assert table() == [(0, "ann", 27), (10, "bob", 4), (50, "bob", 1)]
    assert final() == []
    receive(("ann", 35, 1), receiver=1)
    rig.run(rig.allocate(3), session=lambda: session)
    assert table() == [(0, "ann", 27), (10, "bob", 4), (30, "ann", 1), (50, "bob", 1)]
    assert final() == [(0, "ann", 27), (10, "bob", 4)]
    receive(("ann", 5, 100), ("ann", 36, 2))
    rig.run(rig.allocate(4), session=lambda: session)
    assert table() == [(0, "ann", 27), (10, "bob", 4), (30, "ann", 3), (50, "bob", 1)]
    assert final() == [(0, "ann", 27), (10, "bob", 4)]
    late = parquet(tmp_path / "late")
    assert [(row["pages"], row["watermark"]) for row in late] == [(100, noon + timedelta(minutes=25))]
    # With other code, the windows that have got a record since then, or were not final, are computed again.
    factor = 10
    replay = begin_state_replay(rig.connection, pipeline_id=rig.id, output="sums", from_time=second)
    replayed = list(replay_forward(pipeline, replay, run_id="again", settings=rig.settings, session=lambda: session))
    assert [batch.error for batch in replayed] == [""] * 3
    assert table() == [(0, "ann", 270), (10, "bob", 40), (30, "ann", 30), (50, "bob", 10)]


def test_an_idle_receiver_is_not_waited_for(rig: EventRig, tmp_path: Path, session: SparkSession) -> None:
    clicks = stream("clicks", receivers=2)
    pipeline = Pipeline("visits", interval="1h")
    timed = clicks.by_event_time("at", lateness="1m", idle="3h")
    pipeline.output(inputs=[timed], window=EventWindow("10m"), sink=ParquetSink(tmp_path / "final"), name="final")(sums)
    rig.apply(pipeline)
    begin = rig.begin

    def batch(hour: int, *blocks: list[tuple[str, int]], grown: bool = False) -> None:
        schema = CLICKS.append(pa.field("site", pa.string())) if grown else CLICKS
        for receiver, rows in enumerate(blocks):
            if rows:
                made = [{"user": user, "at": begin + timedelta(minutes=at), "pages": 1} for user, at in rows]
                rig.receive("clicks", made, schema, receiver=receiver)
        time = rig.allocate(hour)
        if rig.batches()[-1][1] == "ALLOCATED":
            rig.run(time, session=lambda: session)

    def versions() -> list[tuple[int, int, int]]:
        rows = rig.connection.execute(
            sa.text("SELECT batch_time, watermark, late FROM forebay.state_versions ORDER BY batch_time")
        )
        return [
            ((row.batch_time - begin) // timedelta(hours=1), (row.watermark - begin) // timedelta(minutes=1), row.late)
            for row in rows
        ]

    batch(1, [("ann", 1), ("bob", 12)], [("ann", 3)])
    batch(2, [("ann", 100)], grown=True)
    batch(3)
    assert versions() == [(1, 2, 0), (2, 2, 0)]
    assert parquet(tmp_path / "final") == []
    # From here on the second receiver is idle: the interval has no record, and runs.
    batch(4)
    batch(5)
    assert versions() == [(1, 2, 0), (2, 2, 0), (4, 99, 0)]
    found = [(row["user"], row["pages"]) for row in parquet(tmp_path / "final")]
    assert sorted(found) == [("ann", 2), ("bob", 1)]
    # It comes back, with a record that is too late, and holds the others up again.
    batch(6, [("cid", 150)], [("ann", 4)], grown=True)
    assert versions()[-1] == (6, 99, 1)
    batch(7, [], [("bob", 155)], grown=True)
    assert versions()[-1] == (7, 149, 0)
    found = [(row["user"], row["pages"]) for row in parquet(tmp_path / "final")]
    assert sorted(found) == [("ann", 1), ("ann", 2), ("bob", 1)]


def test_the_watermark_stays_when_late_records_are_kept_and_the_state_is_rebuilt(
    rig: EventRig, tmp_path: Path, session: SparkSession
) -> None:
    clicks = stream("clicks")

    def declare(*, window: str = "10m", late: ParquetSink | None = None) -> None:
        pipeline = Pipeline("visits", interval="1h")
        timed = clicks.by_event_time("at", lateness="1m")
        sink = ParquetSink(tmp_path / "final")
        if window:
            pipeline.output(inputs=[timed], window=EventWindow(window), sink=sink, name="final", late=late)(sums)
        pipeline.output(inputs=[clicks], sink=ParquetSink(tmp_path / "all"), name="all")(lambda clicks: clicks)
        rig.apply(pipeline)

    def batch(hour: int, *rows: tuple[str, int]) -> datetime:
        made = [{"user": user, "at": rig.begin + timedelta(minutes=at), "pages": 1} for user, at in rows]
        rig.receive("clicks", made, CLICKS)
        time = rig.allocate(hour)
        rig.run(time, session=lambda: session)
        return time

    declare()
    batch(1, ("ann", 1), ("bob", 30))
    declare(late=ParquetSink(tmp_path / "late"))
    second = batch(2, ("cid", 5))
    late = parquet(tmp_path / "late")
    assert [(row["user"], row["watermark"] - rig.begin) for row in late] == [("cid", timedelta(minutes=29))]
    replay = begin_state_replay(rig.connection, pipeline_id=rig.id, output="final", from_time=second, from_nothing=True)
    replayed = replay_forward(rig.pipeline, replay, run_id="again", settings=rig.settings, session=lambda: session)
    assert [batch.error for batch in replayed] == [""]
    found = rig.connection.execute(sa.text("SELECT late FROM forebay.state_status WHERE output = 'final'")).scalar_one()
    assert found == 1, "it was too late, whatever the state has"
    # Between the two declarations nothing compares one with the other.
    declare(window="")
    declare(window="1h")
    with pytest.raises(OutputsFailedError, match=r"written for \{'times': .*'length_ms': 600000"):
        batch(3, ("dan", 31))
