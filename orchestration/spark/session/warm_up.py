"""Warm up a driver, so that its first batch is as fast as the next, by processing a batch without blocks."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from orchestration.spark.reading.batch_reader import columns_of_stream
from orchestration.spark.reading.data_source import FORMAT
from orchestration.spark.reading.spark_types import spark_schema
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

# A batch time at which no pipeline has a batch: the planner finds no blocks, and a worker reads none.
_NO_BATCH = datetime.fromtimestamp(0, UTC)

log = structlog.get_logger(__name__)


def warm_up(session: SparkSession, settings: Settings, pipelines: Sequence[Pipeline]) -> None:
    """Read no blocks of one stream, aggregate, and write Parquet, to load planner, worker and Java classes.

    A failure is logged and only costs time: if it is a real problem, the first batch reports it.
    """
    pipeline, stream = next(((pipeline, stream) for pipeline in pipelines for stream in pipeline.streams), (None, None))
    if pipeline is None or stream is None:
        return
    try:
        columns = columns_of_stream(settings.require_database_url(), stream.name)
        nothing = (
            session.read.format(FORMAT)
            .option("database_url", settings.require_database_url())
            .schema(spark_schema(columns))
            .option("pipeline", pipeline.name)
            .option("batch_time", _NO_BATCH.isoformat())
            .option("stream", stream.name)
            .option("block_store", settings.block_store_roots)
            .load()
        )
        with tempfile.TemporaryDirectory(prefix="forebay-warm-") as directory:
            nothing.groupBy(nothing.columns[0]).count().write.parquet(f"{directory}/nothing")
    except Exception as error:  # noqa: BLE001  any failure is only logged: see above
        log.warning("the warm-up failed; the first batch will be slower", error=shortened(str(error), 500))
