"""A Spark resource of Dagster's → the configuration of a pipeline's sessions: one place for all that run batches.

Reads the resource's configuration and makes no session of its own. dagster-pyspark need not be installed: whatever has
a `spark_config` will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SparkResourceError(TypeError):
    """What was given as `spark=` has no Spark configuration; the message says what has."""


def spark_configuration(resource: object | None) -> dict[str, str]:
    """The resource's `spark_config`, flattened as Spark's keys: ``{"spark": {"a": 1}}`` is ``{"spark.a": "1"}``."""
    if resource is None:
        return {}
    found = getattr(resource, "spark_config", None)
    if not isinstance(found, Mapping):
        raise SparkResourceError(
            f"build_definitions(spark={type(resource).__name__}): give a PySparkResource(spark_config={{...}}) of "
            "dagster-pyspark (pip install 'forebay[pyspark-resource]'), or leave it out"
        )
    return dict(_flat("", found))


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(f"{prefix}{key}.", value)
        else:
            # As Spark writes what is true.
            found.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return found
