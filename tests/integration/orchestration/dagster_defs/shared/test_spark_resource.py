"""Test which session a batch runs in, in Dagster, on a real driver log: that of the resource, and the driver's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

from forebay.dagster import build_definitions
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import WarmSession
from tests.support.machine.state_directory import state_directory
from tests.support.spark.batch_rig import System
from tracker_store.connection.engine import connect
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.pipeline import Pipeline

pytestmark = pytest.mark.spark

SHUFFLES = "spark.sql.shuffle.partitions"


@pytest.fixture(scope="module")
def warm(no_shared_session: None) -> Iterator[WarmSession]:
    """Yield the session of a batch driver: this process is one."""
    with state_directory() as home:
        made = WarmSession(Settings(home=home, spark_master="local[2]"), application="tests")
        yield made
        made.stop()


@pytest.fixture
def system(
    engine: sa.Engine, database_url: str, tmp_path: Path, warm: WarmSession, settings_in_environment: None
) -> Iterator[System]:
    with connect(engine) as connection:
        yield System(connection, database_url, tmp_path, warm.session)
    warm.reset()


class Words:
    """A pipeline with one batch to run; its output records the session and the shuffle partitions that it runs with."""

    def __init__(self, system: System) -> None:
        self.sessions: list[SparkSession] = []
        self.shuffles: list[str | None] = []
        self.pipeline: Pipeline = system.declare(self._output)
        system.receive(["a", "b"])
        self.time: datetime = system.allocate(1)

    def _output(self, lines: DataFrame) -> DataFrame:
        self.sessions.append(lines.sparkSession)
        self.shuffles.append(lines.sparkSession.conf.get(SHUFFLES))
        return lines

    def config(self, **resources: object) -> dict[str, object]:
        """Return the run configuration of the batch, with one of resources."""
        batch = {"batch_time": self.time.isoformat(), "attempt": 1}
        return {"ops": {"words__outputs": {"config": batch}}, "resources": resources}


def test_a_batch_and_an_asset_below_it_have_the_drivers_session(system: System, warm: WarmSession) -> None:
    words = Words(system)
    below: list[SparkSession] = []

    @dg.asset(deps=[words.pipeline.outputs["counts"].asset_key])
    def report(forebay_spark: PySparkResource) -> None:
        below.append(forebay_spark.spark_session)
        assert forebay_spark.spark_context is warm.session.sparkContext

    assets = dg.AssetSelection.assets("report", words.pipeline.outputs["counts"].asset_key).without_checks()
    defs = dg.Definitions.merge(
        build_definitions(words.pipeline),
        dg.Definitions(assets=[report], jobs=[dg.define_asset_job("both", assets)]),
    )
    result = defs.resolve_job_def("both").execute_in_process(run_config=words.config())
    assert result.success
    assert system.state(words.time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["a", "b"]
    assert [session is warm.session for session in words.sessions + below] == [True, True]


@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_the_given_resource_configures_the_batch_and_a_run_may_change_it(
    system: System, warm: WarmSession, kind: type[PySparkResource | LazyPySparkResource]
) -> None:
    words = Words(system)
    defs = build_definitions(words.pipeline, spark=kind(spark_config={SHUFFLES: 7}))
    job = defs.resolve_job_def("words_batch")
    job.execute_in_process(run_config=words.config())
    warm.reset()
    replay = defs.resolve_job_def("words_replay")
    replay.execute_in_process()
    warm.reset()
    replay.execute_in_process(
        run_config={"resources": {"forebay_spark": {"config": {"spark_config": {SHUFFLES: "9"}}}}}
    )
    assert words.shuffles == ["7", "7", "9"]
    assert all(session is warm.session for session in words.sessions)


class OwnSession(LazyPySparkResource):
    """A project's own resource, which makes its session without Forebay."""

    @property
    def spark_session(self) -> SparkSession:
        """Return the session that Spark makes, or has."""
        from pyspark.sql import SparkSession  # noqa: PLC0415  as the rest of Spark

        SESSIONS.append(SparkSession.builder.getOrCreate())
        SESSIONS[-1].conf.set(SHUFFLES, "13")
        return SESSIONS[-1]


class SeparateSession(OwnSession):
    """A project's own resource whose sessions share a Spark with others, and nothing else."""

    @property
    def spark_session(self) -> SparkSession:
        """Return a new session of that Spark."""
        return super().spark_session.newSession()


# A resource is made anew for each run, so it can't hold what a test looks at.
SESSIONS: list[SparkSession] = []


@pytest.fixture
def no_sessions() -> None:
    """Forget the sessions that resources made in other tests."""
    SESSIONS.clear()


@pytest.mark.usefixtures("no_sessions")
def test_a_projects_own_class_makes_the_session_and_the_batch_can_read_in_it(system: System) -> None:
    words = Words(system)
    job = build_definitions(words.pipeline, spark=OwnSession(spark_config={})).resolve_job_def("words_batch")
    job.execute_in_process(run_config=words.config())
    assert system.published() == ["a", "b"]
    assert words.sessions == SESSIONS
    assert words.shuffles == ["13"], "its configuration stays as it is"


@pytest.mark.usefixtures("no_sessions")
def test_a_new_session_of_a_spark_with_the_format_is_refused_with_the_way_out(system: System) -> None:
    words = Words(system)
    job = build_definitions(words.pipeline, spark=SeparateSession(spark_config={})).resolve_job_def("words_batch")
    with pytest.raises(RuntimeError, match=r"getOrCreate\(\)"):
        job.execute_in_process(run_config=words.config())


@pytest.mark.usefixtures("no_sessions")
def test_a_run_that_can_not_claim_its_batch_asks_for_no_session(system: System) -> None:
    """Check this because a session may have to be started, which takes seconds of a processor."""
    words = Words(system)
    job = build_definitions(words.pipeline, spark=OwnSession(spark_config={})).resolve_job_def("words_batch")
    config = words.config()
    assert job.execute_in_process(run_config=config).success
    SESSIONS.clear()
    assert not job.execute_in_process(run_config=config, raise_on_error=False).success
    assert SESSIONS == []
