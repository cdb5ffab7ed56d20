"""Check which Dagster resource the batches take their Spark session from, and what Dagster's pages show of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_pyspark import LazyPySparkResource, PySparkResource

from forebay import ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.shared.spark_resource import SPARK_RESOURCE, flat_configuration

if TYPE_CHECKING:
    from dagster._core.remote_representation.external_data import ResourceSnap

    from orchestration.dagster_defs.shared.spark_resource import SparkResource

# Dagster warns of its own property while it makes what its pages show.
pytestmark = pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning")

GIVEN = {"spark.master": "local[1]", "spark": {"executor": {"memory": "2g"}, "ui.enabled": False, "x": 1}}
FLAT = {"spark.master": "local[1]", "spark.executor.memory": "2g", "spark.ui.enabled": "false", "spark.x": "1"}


class Databricks(LazyPySparkResource):
    """A project's own resource, with its own way to a session."""


def declare(name: str = "words") -> Pipeline:
    pipeline = Pipeline(name, interval="10s")
    lines = Stream(f"lines_{name}", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=ParquetSink("out"), name="counts")(lambda frame: frame)
    return pipeline


def resource_of(definitions: dg.Definitions) -> SparkResource:
    found: SparkResource = (definitions.resources or {})[SPARK_RESOURCE]
    return found


def snapshot(definitions: dg.Definitions) -> ResourceSnap:
    """Return what the page of a code location shows of the resource."""
    [found] = [
        resource
        for resource in RepositorySnap.from_def(definitions.get_repository_def()).resources or []
        if resource.name == "forebay_spark"
    ]
    return found


def shown(definitions: dg.Definitions) -> dict[str, Any]:
    """Return the configuration on that page."""
    value = snapshot(definitions).configured_values["spark_config"]
    assert isinstance(value, str)
    loaded: dict[str, Any] = json.loads(value)
    return loaded


def test_a_configuration_is_flattened_as_spark_names_things() -> None:
    assert flat_configuration(GIVEN) == FLAT


@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_a_resource_of_dagster_pyspark_is_the_definitions_resource_and_configures_the_pipelines(
    kind: type[PySparkResource | LazyPySparkResource],
) -> None:
    pipeline = declare()
    resource = resource_of(build_definitions(pipeline, spark=kind(spark_config=GIVEN)))
    assert isinstance(resource, kind), "an asset declares its parameter as the class that it gave"
    assert resource.spark_config == FLAT
    assert pipeline.spark_configuration == FLAT


def test_a_pyspark_resource_starts_no_spark_when_a_run_begins() -> None:
    """Check this because dagster-pyspark's own does, before it is known whether the run may claim its batch."""
    resource: Any = resource_of(build_definitions(declare(), spark=PySparkResource(spark_config=GIVEN)))
    assert resource.process_config_and_initialize()._spark_session is None


def test_the_default_is_made_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_SPARK_MASTER", "spark://m:7077")
    monkeypatch.setenv("FOREBAY_SPARK_CONFIGURATION", '{"spark.executor.memory": "3g"}')
    pipeline = declare()
    resource = resource_of(build_definitions(pipeline))
    assert isinstance(resource, LazyPySparkResource)
    assert resource.spark_config == {"spark.master": "spark://m:7077", "spark.executor.memory": "3g"}
    assert pipeline.spark_configuration == {}, "it is the settings', which each process reads itself"


def test_the_page_of_the_code_location_shows_the_resource_and_who_asks_for_it() -> None:
    pipeline = declare()
    found = snapshot(build_definitions(pipeline, spark=LazyPySparkResource(spark_config=GIVEN)))
    assert found.is_top_level
    assert found.resource_type.endswith("ForebaySparkResource")
    assert "Forebay's batches" in (found.resource_snapshot.description or "")
    assert found.asset_keys_using == [pipeline.outputs["counts"].asset_key]
    uses = {use.job_name: [handle.name for handle in use.node_handles] for use in found.job_ops_using}
    assert {job: uses.get(job) for job in ("words_batch", "words_replay")} == {
        "words_batch": ["words__outputs"],
        "words_replay": ["words__replay"],
    }


def test_dagster_shows_no_secret_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
        "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net": "hunter2",
        "spark.jdbc": "jdbc:postgresql://me:hunter2@db/x",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=hunter2",
        "spark.remote": "sc://host:15002/;token=hunter2",
    }
    monkeypatch.setenv("FOREBAY_SPARK_CONFIGURATION", json.dumps({**secrets, "spark.sql.shuffle.partitions": "8"}))
    assert shown(build_definitions(declare())) == {"spark.sql.shuffle.partitions": "8"}


def test_a_resource_of_a_projects_own_class_stands_as_it_is_also_for_a_later_call() -> None:
    pipeline = declare()
    theirs = Databricks(spark_config=GIVEN)
    assert resource_of(build_definitions(pipeline, spark=theirs)) is theirs
    assert resource_of(build_definitions(pipeline)) is theirs, "as the code location of `forebay up` builds them again"
    assert pipeline.spark_configuration == FLAT
    resource = resource_of(build_definitions(pipeline, spark=LazyPySparkResource(spark_config={})))
    assert resource_of(build_definitions(pipeline)) is not theirs
    assert resource.spark_config == {}


def test_a_later_call_has_the_configuration_that_its_pipelines_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_SPARK_CONFIGURATION", '{"spark.x": "of the settings", "spark.y": "of the settings"}')
    one, other = declare("one"), declare("other")
    build_definitions(one, spark=PySparkResource(spark_config={"spark.master": "local[3]", "spark.x": "one's"}))
    build_definitions(other, spark=PySparkResource(spark_config={"spark.master": "local[3]"}))
    again = resource_of(build_definitions(one, other))
    assert again.spark_config == {"spark.master": "local[3]", "spark.y": "of the settings"}
    assert one.spark_configuration["spark.x"] == "one's"


def test_two_calls_with_equal_configurations_merge() -> None:
    """Check this because Dagster refuses two objects under one key, and each component of a project is one call."""
    merged = dg.Definitions.merge(build_definitions(declare("one")), build_definitions(declare("other")))
    assert {"one_batch", "other_batch"} <= {job.name for job in merged.get_repository_def().get_all_jobs()}
    given = [LazyPySparkResource(spark_config=GIVEN) for _ in range(2)]
    dg.Definitions.merge(
        build_definitions(declare("one"), spark=given[0]), build_definitions(declare("other"), spark=given[1])
    )


@pytest.mark.parametrize("given", ["spark://m:7077", dg.FilesystemIOManager()])
def test_anything_else_is_refused(given: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="PySparkResource"):
        build_definitions(declare(), spark=given)


def test_one_code_location_can_not_have_two_resources() -> None:
    one, other = declare("one"), declare("other")
    build_definitions(one, spark=Databricks(spark_config={}))
    build_definitions(other, spark=Databricks(spark_config={}))
    with pytest.raises(TypeError, match="one, other were given different Spark resources"):
        build_definitions(one, other)
