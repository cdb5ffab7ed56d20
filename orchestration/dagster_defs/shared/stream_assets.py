"""Define one external asset per stream: receivers fill it, not Dagster, which only gets observations of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.spark.reading.spark_types import spark_type
from receiver_runtime.block_store.frames.columns import arrow_schema

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Stream

STREAM_GROUP = "forebay_streams"


def stream_key(stream: Stream) -> dg.AssetKey:
    """Return the key of a stream's external asset."""
    return dg.AssetKey(["forebay", stream.name])


def stream_asset(stream: Stream) -> dg.AssetSpec:
    """Return the asset of a stream, which receivers fill, not Dagster; that of a typed stream has its columns."""
    metadata: dict[str, object] = {
        "source": stream.source.kind,
        "address": stream.source.address,
        "receivers": stream.receivers,
    }
    if stream.records is not None:
        columns = stream.records.block_columns(stream.source.columns, stream.source.record_column)
        metadata["dagster/column_schema"] = dg.TableSchema(
            columns=[dg.TableColumn(field.name, spark_type(field.type)) for field in arrow_schema(columns)]
        )
    return dg.AssetSpec(
        stream_key(stream),
        group_name=STREAM_GROUP,
        description=f"Records from {stream.source.address}, stored as blocks by {stream.receivers} receiver(s).",
        kinds={stream.source.kind},
        metadata=metadata,
    )
