"""Forebay's public API: the package that users import. Only re-exports names; loads neither Dagster nor Spark."""

from __future__ import annotations

from forebay import shadowing

# Check before any of Forebay's packages is imported: Python would import a project's own folder of the same name.
shadowing.check()

from forebay_contrib.delta.sink import DeltaSink  # noqa: E402
from forebay_contrib.iceberg.sink import IcebergSink  # noqa: E402
from orchestration.declarations.batch import Batch  # noqa: E402
from orchestration.declarations.pipeline import DeclarationError, Output, Pipeline, Stream, Window  # noqa: E402
from orchestration.sinks.console import ConsoleSink  # noqa: E402
from orchestration.sinks.foreach_batch import ForeachBatchSink  # noqa: E402
from orchestration.sinks.parquet.parquet import ParquetSink  # noqa: E402
from orchestration.sinks.postgres.postgres import PostgresSink  # noqa: E402
from orchestration.sinks.postgres.postgres_totals import Totals  # noqa: E402
from receiver_runtime.sources.fields.secret import EnvVar, Secret  # noqa: E402

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
