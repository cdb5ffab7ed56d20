"""Test a typed stream from its senders to a batch: parsed once in the receiver, read as columns."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet

from forebay import DeclarationError, ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.records import Json
from forebay.sources import Http
from forebay.testing.receiver_processes import eventually
from orchestration.batches.batch_run import run_batch
from orchestration.dagster_defs.shared.stream_assets import stream_asset
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.spark.reading.batch_reader import columns_of_stream
from receiver_runtime.block_store.frames.columns import fingerprint_of
from receiver_runtime.sources.records.registry import parse_records
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements
from tracker_store.schema.declarations import StreamDeclaration

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from receiver_runtime.sources.records.declared import Records

LINES = b"""{"item": "tea", "pieces": 2, "at": "2026-01-02T03:04:05.5+01:00", "more": [1]}
{"item": "cup", "pieces": "two"}
{"item": "pot"}
"""


def test_dagster_shows_the_columns_of_a_typed_stream(tmp_path: Path) -> None:
    orders = Stream("orders", Http(listen="127.0.0.1:0"), records=Json("item STRING, at ARRAY<TIMESTAMP>"))
    pipeline = Pipeline("sales", interval="1h")
    pipeline.output(inputs=[orders], sink=ParquetSink(tmp_path), name="all")(lambda orders: orders)
    definitions = build_definitions(pipeline)
    dg.Definitions.validate_loadable(definitions)
    metadata = definitions.get_repository_def().asset_graph.get(stream_asset(orders).key).metadata
    schema = TableMetadataSet.extract(metadata).column_schema
    assert schema is not None
    shown = {column.name: column.type for column in schema.columns}
    assert (shown["item"], shown["at"], shown["_id"]) == ("STRING", "ARRAY<TIMESTAMP>", "STRING")


def begin(connection: sa.Connection, database_url: str) -> None:
    """Register the columns of the stream as its receiver does when it begins."""
    [placement] = placements(connection)
    columns = columns_of_stream(database_url, "orders")
    register_schema(connection, receiver_id=placement.receiver_id, fingerprint=fingerprint_of(columns), columns=columns)


def test_a_column_may_be_added_and_neither_become_another_nor_go(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    def pipeline(records: Records | None) -> Pipeline:
        made = Pipeline("sales", interval="1h")
        orders = Stream("orders", Http(listen="127.0.0.1:0"), records=records)
        made.output(inputs=[orders], sink=ParquetSink(tmp_path), name="all")(lambda orders: orders)
        return made

    def names() -> list[str]:
        return [name for name, _ in columns_of_stream(database_url, "orders")]

    with connect(engine) as connection:
        apply(connection, [pipeline(None)])
        begin(connection, database_url)
        untyped = names()
        # Before a receiver has begun with them, a mistake can be corrected.
        apply(connection, [pipeline(Json("item STRING, peices INT"))])
        apply(connection, [pipeline(Json("item STRING, pieces BIGINT, place STRUCT<city: STRING>"))])
        assert names()[: len(untyped) + 3] == [*untyped, "item", "pieces", "place"]
        begin(connection, database_url)
        for ddl, said in {
            "pieces DOUBLE": "pieces DOUBLE is pieces BIGINT in the stream; item STRING is left out; place STRUCT",
            "item STRING, Pieces BIGINT, place STRUCT<city: STRING>": "Pieces BIGINT is pieces BIGINT in the stream",
            "item STRING, pieces BIGINT": "place STRUCT<city: STRING> is left out. ",
            "item STRING, pieces BIGINT, place STRUCT<city: STRING, zip: STRING>": "is place STRUCT<city: STRING> in",
            # A column of the source, from before its records were parsed.
            "item STRING, pieces BIGINT, place STRUCT<city: STRING>, body STRING": "body STRING is body BINARY in",
        }.items():
            with pytest.raises(DeclarationError, match=r"stream 'orders': .*declare a new stream") as refused:
                apply(connection, [pipeline(Json(ddl))])
            assert said in str(refused.value)
        # In another order, one more, and those that no record may lack.
        kept = "price DOUBLE, place STRUCT<city: STRING> NOT NULL, pieces BIGINT NOT NULL, item STRING"
        apply(connection, [pipeline(Json(kept))])
        begin(connection, database_url)
        apply(connection, [pipeline(Json(kept.replace(" NOT NULL", ""), raw=True))])
        begin(connection, database_url)
        apply(connection, [pipeline(Json(kept))])
        apply(connection, [pipeline(None)])
        with pytest.raises(DeclarationError, match="price INT is price DOUBLE in the stream"):
            apply(connection, [pipeline(Json("price INT"))])
        assert names().count("_raw") == 1


def test_a_version_without_typed_streams_refuses_one_and_does_not_store_it_as_it_came() -> None:
    stream = Stream("orders", Http(listen="127.0.0.1:0"), records=Json("item STRING"))
    stored = stream.declaration()
    # Such a version gives all of a source's fields to its kind.
    with pytest.raises(SourceError, match=r"stream\.records: http has no such field"):
        parse_source(stored["source"])
    declared = StreamDeclaration.of(stored)
    assert parse_source(declared.source) == stream.source
    assert declared.records is not None
    assert parse_records(declared.records) == stream.records


@pytest.mark.spark
def test_records_are_columns_of_a_batch_and_bad_ones_are_dead_letters(
    engine: sa.Engine, database_url: str, tmp_path: Path, session: SparkSession
) -> None:
    schemas = []
    orders = Stream(
        "orders", Http(listen="127.0.0.1:0"), records=Json("item STRING, pieces BIGINT, at TIMESTAMP"), retention="1h"
    )
    pipeline = Pipeline("sales", interval="1h")

    @pipeline.output(inputs=[orders], sink=ParquetSink(tmp_path / "output"))
    def sold(orders: DataFrame) -> DataFrame:
        schemas.append(orders.schema.simpleString())
        return orders.select("item", "pieces", "at")

    with connect(engine) as connection:
        apply(connection, [pipeline])
        [placement] = placements(connection)
    rig = ReceiverRig(database_url, tmp_path / "receiver", engine, placement.receiver_id)
    rig.assign(1)
    try:
        rig.start()
        eventually(lambda: "listening on" in rig.state()[1], "listening")
        address = rig.state()[1].partition("listening on ")[2].split()[0]
        asked = urllib.request.Request(f"http://{address}/v1/orders", LINES, {"Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            said = json.loads(answer.read())
        assert (said["records"], said["dead_letters"]) == (2, 1)
        assert "$.pieces" in said["first_dead_letter"]
        assert rig.dead_letters() == [("does_not_fit", b'{"item": "cup", "pieces": "two"}')]
    finally:
        rig.close()
    settings = Settings(home=tmp_path, database_url=database_url, block_store=rig.block_store)
    with connect(engine) as connection:
        row = get_pipeline(connection, "sales")
        time = row.last_batch_time
        connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :t"), {"t": time - timedelta(minutes=1)})
        connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": time - timedelta(hours=1)}
        )
        ReceivedBlockTracker(connection, row.pipeline_id).allocate_blocks_to_batch(time)
    [result] = run_batch(pipeline, batch_time=time, attempt=1, run_id="run", settings=settings, session=lambda: session)
    assert result.rows == 2
    assert schemas == [
        (
            "struct<item:string,pieces:bigint,at:timestamp,_content_type:string,_path:string,_received_at:timestamp,"
            "_id:string,_attributes:map<string,string>>"
        )
    ]
    table = ds.dataset(tmp_path / "output", partitioning="hive").to_table(columns=["item", "pieces", "at"])
    found = sorted(table.to_pylist(), key=lambda one: one["item"])
    assert found[0] == {"item": "pot", "pieces": None, "at": None}
    assert (found[1]["item"], found[1]["pieces"]) == ("tea", 2)
    assert found[1]["at"].replace(tzinfo=UTC) == datetime(2026, 1, 2, 2, 4, 5, 500000, tzinfo=UTC)
