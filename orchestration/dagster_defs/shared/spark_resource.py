"""Give batches their Spark session through a Dagster resource: a class of dagster-pyspark, under a key of our own.

Owns the key, the resource that stands under it, and its configuration. How a session is made, and which one a batch
driver keeps, is decided by ``orchestration.spark.session.session``; importing this module starts no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dagster_pyspark import LazyPySparkResource, PySparkResource

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import session_made_by, spark_session
from orchestration.spark.session.session_configuration import MASTER, REMOTE, own_settings, session_configuration
from orchestration.spark.wanted_executors import wanted_executors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import InitResourceContext
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from orchestration.declarations.pipeline import Pipeline

#: The key of the resource; assets and ops ask for it by a parameter of this name.
SPARK_RESOURCE = "forebay_spark"

SparkResource = PySparkResource | LazyPySparkResource

# Dagster shows a resource's configuration. A setting whose name or value looks like a secret is used, but not shown.
_SECRET = re.compile(r"secret|passw|token|credential|key|://[^/]*@", re.IGNORECASE)


class ForebaySparkResource(LazyPySparkResource, PySparkResource):
    """Provide the session of Forebay's batches: in a batch driver, the driver's; else one made when it is first used.

    Values in `spark_config` override FOREBAY_SPARK_MASTER and FOREBAY_SPARK_CONFIGURATION.
    """

    # It extends both classes, so that an asset may declare its parameter `forebay_spark` as either.

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Start nothing, unlike PySparkResource: a run that may not claim its batch must start no Spark."""

    @property
    def spark_session(self) -> SparkSession:
        """Return the process's session, made at the first call. Raises what ``spark_session`` raises."""
        if self._spark_session is None:
            self._spark_session = spark_session(
                Settings(), application="forebay", configuration=flat_configuration(self.spark_config)
            )
        return self._spark_session

    @property
    def spark_context(self) -> SparkContext:
        """Return the session's context. Raises what PySpark raises for a Spark Connect session."""
        return self.spark_session.sparkContext


def spark_resource(given: SparkResource | None, pipelines: Sequence[Pipeline]) -> SparkResource:
    """Return the resource of a code location with `pipelines`, made from `given`, or from the settings if it is None.

    A PySparkResource or LazyPySparkResource becomes a ForebaySparkResource of the same configuration, because its
    session needs Forebay's own settings, code and Java. An object of a class derived from them is returned itself.
    Equal configurations give the same object. Records `given` in the pipelines, because a later call without it, as
    in the code location of `forebay up`, must return the same. Raises TypeError.
    """
    if given is not None:
        configuration = spark_configuration(given)
        for pipeline in pipelines:
            pipeline.spark_configuration = configuration
            pipeline.spark_resource = given if _is_of_own_class(given) else None
        return given if _is_of_own_class(given) else _resource(tuple(sorted(configuration.items())))
    earlier = {id(found): found for pipeline in pipelines if (found := pipeline.spark_resource) is not None}
    if len(earlier) > 1:
        raise TypeError(
            f"pipelines {', '.join(pipeline.name for pipeline in pipelines)} were given different Spark resources, and "
            "a code location has one: give all of them to one build_definitions(..., spark=...)"
        )
    if earlier:
        return earlier.popitem()[1]  # type: ignore[return-value]
    return _resource(tuple(sorted(_shown_configuration(pipelines).items())))


def spark_configuration(given: object) -> dict[str, str]:
    """Return the configuration of a resource of dagster-pyspark with flat keys. Raises TypeError."""
    if not isinstance(given, SparkResource):
        raise TypeError(
            f"build_definitions(spark={type(given).__name__}): give a PySparkResource(spark_config={{...}}) or a "
            "LazyPySparkResource of dagster-pyspark, or leave it out"
        )
    return flat_configuration(given.spark_config)


def flat_configuration(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a `spark_config` as Spark names settings: ``{"spark": {"a": True}}`` becomes ``{"spark.a": "true"}``."""
    return dict(_flat("", values))


def batch_session(resource: SparkResource, settings: Settings, pipeline: Pipeline) -> SparkSession:
    """Return the resource's session for a batch: it can read blocks, and has the pipeline's number of executors.

    Raises what ``spark_session`` raises, or what the resource raises.
    """
    # A test may put any object with a session under the key.
    configuration = flat_configuration(getattr(resource, "spark_config", {}))
    executors = wanted_executors(settings, pipeline)
    if not isinstance(resource, ForebaySparkResource):
        return session_made_by(
            lambda: resource.spark_session, settings, configuration=configuration, executors=executors
        )
    return spark_session(
        settings,
        application=f"forebay {pipeline.name}",
        configuration={**pipeline.spark_configuration, **configuration, **executors},
    )


def _is_of_own_class(resource: object) -> bool:
    """Return whether a user's class makes the session, and not one of dagster-pyspark's classes or ours."""
    return type(resource) not in (PySparkResource, LazyPySparkResource, ForebaySparkResource)


@lru_cache
def _resource(configuration: tuple[tuple[str, str], ...]) -> ForebaySparkResource:
    """Return one object for equal configurations: `Definitions.merge` refuses two objects under one key."""
    return ForebaySparkResource(spark_config=dict(configuration))


def _shown_configuration(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Return the settings that the pipelines have in common, without secrets; sessions have the others as well."""
    settings = Settings()
    own = own_settings(pipelines)
    common = {
        key: value for pipeline in pipelines for key, value in pipeline.spark_configuration.items() if key not in own
    }
    named = {*settings.spark_configuration, *common, MASTER, REMOTE} - own
    return {
        key: value
        for key, value in session_configuration(settings, common).items()
        if key in named and not _SECRET.search(f"{key}={value}")
    }


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(f"{prefix}{key}.", value)
        else:
            # Spark writes booleans in lower case.
            found.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return found
