"""For Spark programs of your own: the format `forebay`. Loads pyspark."""

from __future__ import annotations

from orchestration.spark.data_source import ForebayDataSource, ReadOptionError

__all__ = ["ForebayDataSource", "ReadOptionError"]
