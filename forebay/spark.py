"""For your own Spark programs: the data source format `forebay`. Loads pyspark."""

from __future__ import annotations

from orchestration.spark.block_reader import ReadOptionError
from orchestration.spark.data_source import ForebayDataSource

__all__ = ["ForebayDataSource", "ReadOptionError"]
