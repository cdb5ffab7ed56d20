"""Forebay: the one name that users import. Re-exports, no logic; loads neither Dagster nor Spark."""

from __future__ import annotations

from orchestration.batch import Batch
from orchestration.pipeline import DeclarationError, Output, Pipeline, Stream
from orchestration.spark.sinks.parquet import ParquetSink

__all__ = ["Batch", "DeclarationError", "Output", "ParquetSink", "Pipeline", "Stream"]
