"""Read the configuration of a pipeline's Spark sessions from a Dagster resource, for every process that runs batches.

It only reads the resource's configuration, and makes no session. dagster-pyspark need not be installed: any object with
a `spark_config` works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SparkResourceError(TypeError):
    """What was given as `spark=` has no Spark configuration; the message says what has."""


def spark_configuration(resource: object | None) -> dict[str, str]:
    """Return the resource's `spark_config` with flat keys: ``{"spark": {"a": 1}}`` becomes ``{"spark.a": "1"}``."""
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
            # Spark writes booleans in lower case.
            found.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return found
