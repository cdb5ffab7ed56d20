"""Test a stream whose receiver changed its columns: one batch reads blocks of all versions by name, with nulls."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import CustomSource
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.spark.reading.batch_reader import columns_of_stream
from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames.columns import columns_of, fingerprint_of
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.reporting.driver_log import DriverLog
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source import SourceError
from tests.support.driver_log.log import claim_anew
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import add_blocks
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FIRST = pa.schema([("symbol", pa.string()), ("price", pa.int32()), ("venue", pa.string())])
# `venue` is dropped, `price` stays, the rest is new: one column of each type.
SECOND = pa.schema(
    [
        ("price", pa.int32()),
        ("symbol", pa.string()),
        ("size", pa.uint16()),
        ("at", pa.timestamp("ns", tz="Europe/Berlin")),
        ("local", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("fee", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("source", pa.struct([("host", pa.string()), ("port", pa.int64())])),
        ("more", pa.map_(pa.string(), pa.float64())),
    ]
)
SECOND_ROW: dict[str, Any] = {
    "price": 7,
    "symbol": "b",
    "size": 65_535,
    "at": datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
    "local": datetime(2026, 1, 1, 12, 0, 0, 123000),  # noqa: DTZ001  without a zone
    "day": date(2026, 1, 1),
    "fee": Decimal("1.25"),
    "tags": ["x", "y"],
    "source": {"host": "h", "port": 1},
    "more": [("k", 0.5)],
}


def receive(engine: sa.Engine, root: str, schema: pa.Schema, *rows: dict[str, Any]) -> None:
    """Register the schema as a receiver does at its start; then store and register one block."""
    with connect(engine) as connection:
        [placement] = placements(connection)
        columns = columns_of(schema)
        register_schema(
            connection, receiver_id=placement.receiver_id, fingerprint=fingerprint_of(columns), columns=columns
        )
        claimed = claim_anew(connection, placement.receiver_id)
        log = WriteAheadLog(
            open_block_store(root),
            ReceiverDriverLog(DriverLog(engine), claim=claimed),
            source_rule=SourceRule.NOT_SENT_AGAIN,
            registered_through=RegisteredThrough(claimed.sequence),
            settings=ReceiverSettings(),
        )
        handler = BlockHandler(log, schema)
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        add_blocks(connection, [handler.store_block([batch], sequence=claimed.sequence + 1)])
        handler.close()


def declare(connection: sa.Connection, output: Path, receiver: str = "not_here:Ticks") -> Pipeline:
    """Declare a pipeline whose environment does not have the receiver's package."""
    ticks = Stream("ticks", CustomSource(receiver=receiver))
    pipeline = Pipeline("prices", interval="1h")

    @pipeline.output(inputs=[ticks], sink=ParquetSink(output))
    def everything(ticks: DataFrame) -> DataFrame:
        return ticks.withColumn("schema", ticks["symbol"].isNotNull()).drop("schema")

    apply(connection, [pipeline])
    return pipeline


@pytest.mark.spark
def test_a_batch_has_the_columns_of_all_versions(
    engine: sa.Engine, database_url: str, tmp_path: Path, session: SparkSession
) -> None:
    settings = Settings(home=tmp_path, database_url=database_url)
    with connect(engine) as connection:
        pipeline = declare(connection, tmp_path / "output")
        receive(engine, settings.block_store_roots, FIRST, {"symbol": "a", "price": 6, "venue": "X"})
        receive(engine, settings.block_store_roots, SECOND, SECOND_ROW)
        row = get_pipeline(connection, "prices")
        time = row.last_batch_time + timedelta(hours=1)
        connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": time - timedelta(hours=2)}
        )
        time -= timedelta(hours=1)
        connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :t"), {"t": time - timedelta(minutes=1)})
        ReceivedBlockTracker(connection, row.pipeline_id).allocate_blocks_to_batch(time)
    [result] = run_batch(pipeline, batch_time=time, attempt=1, run_id="run", settings=settings, session=lambda: session)
    assert result.rows == 2
    found = ds.dataset(tmp_path / "output", partitioning="hive").to_table().drop(["date", "hour", "batch_time"])
    # Spark's Parquet files have instants without their zone.
    at = found.schema.get_field_index("at")
    found = found.set_column(at, "at", found["at"].cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")))
    first, second = sorted(found.to_pylist(), key=lambda row: row["price"])
    names = [*FIRST.names, *(name for name in SECOND.names if name not in FIRST.names)]
    assert found.schema.names == names
    assert first == {**dict.fromkeys(names), "symbol": "a", "price": 6, "venue": "X"}
    assert second == {**SECOND_ROW, "venue": None}


def test_columns_before_a_receiver_began_are_those_of_its_class_or_reported_as_unknown(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(engine) as connection:
        declare(connection, tmp_path)
    with pytest.raises(SourceError, match=r"stream 'ticks': no receiver of it has begun yet.*start it.*'not_here'"):
        columns_of_stream(database_url, "ticks")
    (tmp_path / "not_here.py").write_text(
        "from forebay.receiver import Receiver\nclass Ticks(Receiver):\n    columns = (('symbol', 'utf8'),)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert columns_of_stream(database_url, "ticks") == (("symbol", "string"),)
    # Once a receiver has begun, the columns that it registered count.
    receive(engine, str(tmp_path / "blocks"), FIRST, {"symbol": "a", "price": 6, "venue": "X"})
    assert columns_of_stream(database_url, "ticks") == columns_of(FIRST)
