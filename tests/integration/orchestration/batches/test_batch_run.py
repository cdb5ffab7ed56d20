"""Test attempts at a batch on real local Spark: they commit exactly the allocated blocks, once (W10, notes 11, 26)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import Batch, ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.apply import apply
from orchestration.declarations.sink import unchecked
from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.identity import make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.support.driver_log.attempts import fail_batch
from tests.support.machine.mounts import Mount
from tests.support.spark.batch_rig import System
from tracker_store.batches import batches
from tracker_store.batches.input_metadata import input_metadata
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    DriverLogUnavailableError,
    OutcomeUnknownError,
)
from tracker_store.receivers.receivers import placements, receiver_events
from tracker_store.schema.states import AttemptState, BatchState, ReceiverEventKind

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import Check

pytestmark = pytest.mark.spark


def same(lines: DataFrame) -> DataFrame:
    return lines


def test_a_run_reads_exactly_the_allocated_blocks_and_publishes_them_by_batch_time(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["a", "b"], ["c"], ["", "d\x00d", "é"])
    time = system.allocate(1)
    system.receive(["later"])
    system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["", "a", "b", "c", "d\x00d", "é"]
    [directory] = system.output.glob("date=*/hour=*/batch_time=*")
    assert directory.name == f"batch_time={time:%Y%m%dT%H%M%S}Z"
    next_time = system.allocate(2)
    system.run(pipeline, next_time, 1)
    assert system.published() == ["", "a", "b", "c", "d\x00d", "later", "é"]


def test_an_output_may_ask_for_its_batch(system: System) -> None:
    seen: list[Batch] = []

    def output(lines: DataFrame, batch: Batch) -> DataFrame:
        seen.append(batch)
        return lines

    pipeline = system.declare(output)
    system.receive(["a"], ["b", "c"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    [batch] = seen
    assert (batch.pipeline, batch.time, batch.attempt, batch.records) == ("words", time, 1, 3)
    assert [block.records for block in batch.blocks(pipeline.streams[0])] == [1, 2]


def test_o03_a_run_records_what_its_batch_read(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["a", "b"], ["c"])
    time = system.allocate(1)
    connection, pipeline_id = system.connection, get_pipeline(system.connection, "words").pipeline_id
    # As a source with positions registers them with its blocks.
    connection.execute(
        sa.text(
            "INSERT INTO forebay.block_offsets SELECT r.stream_id, 'orders', '0', 0, 10 * n, 10 * n + 10, 'block', "
            "r.id, n FROM forebay.receivers r, generate_series(2, 3) AS n"
        )
    )
    system.run(pipeline, time, 1)
    system.clean_up()
    connection.execute(sa.text("DELETE FROM forebay.block_offsets"))
    found = input_metadata(connection, pipeline_id, time)
    assert [(read.source, read.partition, read.from_offset, read.to_offset) for read in found.ranges] == [
        ("orders", "0", 20, 40)
    ]


def test_a_batch_whose_inputs_can_not_be_recorded_completes(system: System, engine: sa.Engine) -> None:
    pipeline = system.declare(same)
    system.receive(["a"])
    time = system.allocate(1)
    with engine.connect() as other, other.execution_options(isolation_level="READ COMMITTED").begin():
        other.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        other.execute(sa.text("LOCK TABLE forebay.batch_inputs"))
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["a"]


def test_a_batch_whose_inputs_violate_a_constraint_completes(system: System) -> None:
    """Check this because the same error would come in every attempt, and only metadata would be missing."""
    pipeline = system.declare(same)
    system.receive(["a"])
    time = system.allocate(1)
    system.connection.execute(sa.text("ALTER TABLE forebay.batches ADD CHECK (inputs IS NULL)"))
    system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["a"]


def test_w10_a_failing_output_fails_its_attempt_and_the_next_does_it_all(system: System) -> None:
    calls: list[int] = []

    def output(lines: DataFrame) -> DataFrame:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no luck")
        return lines

    pipeline = system.declare(output)
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(RuntimeError, match="no luck"):
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.FAILED, 1)
    assert system.published() == []
    system.run(pipeline, time, 2)
    assert system.state(time) == (BatchState.COMPLETED, 2)
    assert system.published() == ["a"]


def test_an_unavailable_driver_log_uses_up_no_attempt_and_hides_no_cause(system: System) -> None:
    """Check before and after a failure of the data itself."""
    ends = [OutcomeUnknownError("cut off"), ValueError("no number: 'x'"), DriverLogUnavailableError("no server"), None]

    def output(lines: DataFrame, batch: Batch) -> DataFrame:
        end = ends[batch.attempt - 1]
        if end is not None:
            raise end
        return lines

    pipeline = system.declare(output, max_attempts=2)
    system.receive(["a"])
    time = system.allocate(1)
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    reasons = []
    for number, said in enumerate(("cut off", "no number", "no server"), start=1):
        with pytest.raises(Exception, match=said):
            system.run(pipeline, time, number)
        row = batches.get_batch(system.connection, pipeline_id, time)
        assert row is not None
        assert row.state is BatchState.FAILED
        reasons.append(row.reason)
    assert reasons[0].startswith("the driver log was unavailable: OutcomeUnknownError: cut off")
    assert reasons[1:] == ["ValueError: no number: 'x'"] * 2
    system.run(pipeline, time, 4)
    assert system.state(time) == (BatchState.COMPLETED, 4)
    assert [row.state for row in batches.attempts_of_batch(system.connection, pipeline_id, time)] == [
        AttemptState.LOST,
        AttemptState.FAILED,
        AttemptState.LOST,
        AttemptState.SUCCEEDED,
    ]


def test_a_batch_allocated_under_another_interval_writes_its_outputs(system: System) -> None:
    """Check a batch that waited while the interval was changed; its time is no multiple of the new one."""
    system.declare(same)
    system.receive(["a"])
    time = system.allocate(1)
    changed = Pipeline("words", interval="7h")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    changed.output(inputs=[lines], sink=ParquetSink(system.output), name="counts")(same)
    apply(system.connection, [changed])
    assert [result.rows for result in system.run(changed, time, 1)] == [1]
    assert system.published() == ["a"]


class PublishFailsOnce(ParquetSink):
    """A sink that stands for a process that dies between the commit and the publishing."""

    died = False

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        if not self.died:
            self.died = True
            raise OSError("died here")
        super().publish(location, batch_time=batch_time, check=check)


def test_a_committed_output_is_published_by_the_next_attempt_and_not_computed_again(system: System) -> None:
    calls: list[int] = []

    def output(lines: DataFrame) -> DataFrame:
        calls.append(1)
        return lines

    pipeline = system.declare(output, PublishFailsOnce(system.output))
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(OSError, match="died here"):
        system.run(pipeline, time, 1)
    system.run(pipeline, time, 2)
    assert calls == [1]
    assert system.state(time) == (BatchState.COMPLETED, 2)
    assert system.published() == ["a"]
    [commit] = commits_of_batch(system.connection, get_pipeline(system.connection, "words").pipeline_id, time)
    assert commit.attempt == 1


def test_a_zombie_attempt_neither_commits_nor_publishes(system: System) -> None:
    """Check that attempt 1 changes nothing when it is declared lost while it computes, and attempt 2 completes."""

    def output(lines: DataFrame, batch: Batch) -> DataFrame:
        if batch.attempt == 1:
            fail_batch(
                system.connection,
                get_pipeline(system.connection, "words").pipeline_id,
                batch.time,
                run_id="run1",
                error="lost",
            )
            system.run(pipeline, batch.time, 2)
        return lines.selectExpr(f"concat(value, '-of-{batch.attempt}') AS value")

    pipeline = system.declare(output)
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(AttemptSupersededError):
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 2)
    assert system.published() == ["a-of-2"]


def test_a_windowed_output_reads_the_batches_of_its_window(system: System) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h")
    pipeline.output(inputs=[lines.window("2h")], sink=ParquetSink(system.output), name="counts")(same)
    apply(system.connection, [pipeline])
    published = []
    for hour, values in enumerate((["a"], ["b"], ["c"]), start=1):
        system.receive(values)
        time = system.allocate(hour)
        system.run(pipeline, time, 1)
        [directory] = system.output.glob(f"date=*/hour=*/batch_time={time:%Y%m%dT%H%M%S}Z")
        table = ds.dataset(directory, format="parquet").to_table()
        published.append(sorted(table["value"].to_pylist()))
    assert published == [["a"], ["a", "b"], ["b", "c"]]


def test_a_join_of_windows_has_each_pair_once_also_after_a_quiet_batch_and_in_a_replay(system: System) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h", retention="10h")
    four_hours = lines.window("4h", slide="2h", new_column="is_new")

    @pipeline.output(inputs=[four_hours, four_hours], sink=ParquetSink(system.output))
    def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
        joined = left.alias("l").join(right.alias("r")).where("(l.is_new OR r.is_new) AND l.value < r.value")
        return joined.selectExpr("l.value || r.value AS value")

    apply(system.connection, [pipeline])
    # The first of these hours is odd by the clock.
    before = get_pipeline(system.connection, "words").last_batch_time.hour % 2
    states = []
    for hour, values in enumerate(["a", "b", "cd", "", "e", "f"], start=1 + before):
        if values:
            system.receive(list(values))
        time = system.allocate(hour)
        states.append(system.state(time)[0])
        if states[-1] is BatchState.ALLOCATED:
            system.run(pipeline, time, 1)
    # The fourth batch had no records, and did not run: the sixth is the first that sees c and d. Its window is cdef.
    assert states[3] is BatchState.COMPLETED
    once = ["ab", "cd", "ce", "cf", "de", "df", "ef"]
    assert system.published() == once
    system.replay(pipeline, time)
    assert system.published() == once


def test_a_late_run_starts_no_spark(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)

    def no_spark() -> SparkSession:
        pytest.fail("a run that may not run asked for Spark")

    with pytest.raises(BatchHeldError, match="COMPLETED"):
        run_batch(pipeline, batch_time=time, attempt=2, run_id="late", settings=system.settings, session=no_spark)
    assert system.published() == ["a"]


def test_a_damaged_block_fails_the_batch_by_name_and_is_never_half_read(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["a" * 100])
    time = system.allocate(1)
    [segment] = Path(system.settings.block_store_roots).rglob("*.segment")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with pytest.raises(Exception, match="is corrupt"):
        system.run(pipeline, time, 1)
    state, _ = system.state(time)
    assert state is BatchState.FAILED
    assert system.published() == []


def test_the_format_names_the_missing_options(session: SparkSession) -> None:
    with pytest.raises(Exception, match=r"needs the option\(s\) batch_time, stream"):
        session.read.format("forebay").option("pipeline", "p").load().collect()


def test_h01_of_blocks_that_were_never_synced_the_lost_are_counted_and_told(system: System) -> None:
    """Check as after a crash of the machine: the file has only what had reached the disk."""
    seen: list[Batch] = []

    def output(lines: DataFrame, batch: Batch) -> DataFrame:
        seen.append(batch)
        return lines

    pipeline = system.declare(output)
    system.receive(["a"], ["b", "c"], ["d", "e", "f"], durability="ephemeral")
    [segment] = Path(system.settings.block_store_roots).rglob("*.segment")
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) // 2] + bytes(len(data) // 4))
    time = system.allocate(1)
    [result] = system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["a"]
    assert (result.lost_blocks, result.lost_records, result.rows) == (2, 5, 1)
    assert (seen[0].lost_blocks, seen[0].lost_records, seen[0].records) == (2, 5, 6)
    [placement] = placements(system.connection)
    [event] = [
        event for event in receiver_events(system.connection, placement.receiver_id) if "never synced" in event[1]
    ]
    assert event[0] is ReceiverEventKind.ERROR
    assert "2 blocks, 5 records, passed over by 'words'" in event[2]


def test_h01_what_is_lost_further_back_in_a_window_is_counted_with_the_batch(system: System) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h")
    pipeline.output(inputs=[lines.window("2h")], sink=ParquetSink(system.output), name="counts")(same)
    apply(system.connection, [pipeline])
    system.receive(["a", "b"], durability="ephemeral")
    [segment] = Path(system.settings.block_store_roots).rglob("*.segment")
    system.run(pipeline, system.allocate(1), 1)
    system.receive(["c"], durability="ephemeral")
    segment.unlink()
    [result] = system.run(pipeline, system.allocate(2), 1)
    assert (result.lost_blocks, result.lost_records, result.rows) == (1, 2, 1)


def test_h01_a_durable_block_that_is_missing_fails_the_batch(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["kept"], durability="ephemeral")
    system.receive(["lost"])
    time = system.allocate(1)
    segments = sorted(Path(system.settings.block_store_roots).rglob("*.segment"), key=lambda path: int(path.stem))
    segments[-1].unlink()
    with pytest.raises(Exception, match="is missing"):
        system.run(pipeline, time, 1)
    assert system.state(time)[0] is BatchState.FAILED
    assert system.published() == []


@pytest.mark.parametrize("durability", ["durable", "ephemeral"])
def test_an_empty_mount_point_blocks_the_batch_and_loses_nothing(system: System, durability: str) -> None:
    """Check the mount point of a store that is not mounted: the tasks, too, know which store it should be."""
    root = Path(system.settings.block_store_roots)
    identity = make_identity(LocalBlockStore(root))
    attach_block_store(system.connection, host="here", roots={identity: str(root)})
    mount = Mount(root)
    pipeline = system.declare(same, max_attempts=1)
    system.receive(["a"], durability=durability)
    time = system.allocate(1)
    mount.unmount()
    with pytest.raises(Exception, match="not mounted"):
        system.run(pipeline, time, 1)
    assert system.state(time)[0] is BatchState.BLOCKED
    [reason] = system.connection.execute(
        sa.text("SELECT error FROM forebay.batch_attempts WHERE error IS NOT NULL")
    ).scalars()
    assert f"{root} can't be reached (not mounted?" in reason
    assert mount.below == []
    mount.mount()
    [result] = system.run(pipeline, time, 2)
    assert (system.published(), result.lost_blocks, system.state(time)[0]) == (["a"], 0, BatchState.COMPLETED)


def test_a_batch_that_reads_past_a_damaged_replica_reports_it_once(
    connection: sa.Connection, database_url: str, tmp_path: Path, session: SparkSession
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    system = System(connection, database_url, tmp_path, session, block_store=f"{first},{second}")
    pipeline = system.declare(same)
    system.receive(["a"], ["b"], ["c"])
    [segment] = first.rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    data[-1] ^= 1
    segment.write_bytes(bytes(data))
    system.run(pipeline, system.allocate(1), 1)
    assert system.published() == ["a", "b", "c"]
    [placement] = placements(connection)
    told = [
        (kind, detail)
        for kind, message, detail in receiver_events(connection, placement.receiver_id)
        if message == f"the block store's replica {first} is damaged or lags"
    ]
    assert [kind for kind, _ in told] == [ReceiverEventKind.ERROR]
    assert "forebay blocks repair" in told[0][1]
    assert list(second.rglob("_notes/*")) == []


def test_h01_a_store_that_is_not_there_is_no_loss(system: System) -> None:
    pipeline = system.declare(same)
    system.receive(["a"], durability="ephemeral")
    time = system.allocate(1)
    root = Path(system.settings.block_store_roots)
    away = root.rename(root.with_name("unmounted"))
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        system.run(pipeline, time, 1)
    away.rename(root)
    [result] = system.run(pipeline, time, 2)
    assert (system.published(), result.lost_blocks) == (["a"], 0)
