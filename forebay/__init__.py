"""Forebay's public API: the package that users import. Only re-exports names; loads neither Dagster nor Spark."""

from __future__ import annotations

from forebay import shadowing

# Check before any of Forebay's packages is imported: Python would import a project's own folder of the same name.
shadowing.check()

from orchestration.batch import Batch  # noqa: E402
from orchestration.pipeline import DeclarationError, Output, Pipeline, Stream, Window  # noqa: E402
from orchestration.spark.sinks.console import ConsoleSink  # noqa: E402
from orchestration.spark.sinks.delta import DeltaSink  # noqa: E402
from orchestration.spark.sinks.foreach_batch import ForeachBatchSink  # noqa: E402
from orchestration.spark.sinks.iceberg import IcebergSink  # noqa: E402
from orchestration.spark.sinks.parquet import ParquetSink  # noqa: E402
from orchestration.spark.sinks.postgres import PostgresSink  # noqa: E402
from orchestration.spark.sinks.postgres_totals import Totals  # noqa: E402
from receiver_runtime.sources.secret import EnvVar, Secret  # noqa: E402

__all__ = [
    "Batch",
    "ConsoleSink",
    "DeclarationError",
    "DeltaSink",
    "EnvVar",
    "ForeachBatchSink",
    "IcebergSink",
    "Output",
    "ParquetSink",
    "Pipeline",
    "PostgresSink",
    "Secret",
    "Stream",
    "Totals",
    "Window",
]
