"""For your own Spark programs: the data source format `forebay`. Loads pyspark."""

from __future__ import annotations

from orchestration.spark.reading.data_source import ForebayDataSource

__all__ = ["ForebayDataSource"]
