"""Test a session that runs one batch after another, and cancelling one of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import WarmSession, spark_session
from orchestration.spark.session.session_configuration import own_settings, shared_configuration
from tests.support.machine.state_directory import state_directory
from tests.support.polling import eventually, joined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

pytestmark = pytest.mark.spark

OF_ONE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.executor.memory": "600m",
}
OF_BOTH = {"spark.sql.shuffle.partitions": "3"}


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    with state_directory() as home:
        yield Settings(home=home, spark_master="local[2]")


@pytest.fixture(scope="module")
def warm(settings: Settings, no_shared_session: None) -> Iterator[WarmSession]:
    one, other = Pipeline("one", interval="1h"), Pipeline("other", interval="1h")
    one.spark_configuration = {**OF_ONE, **OF_BOTH}
    other.spark_configuration = OF_BOTH
    made = WarmSession(
        settings,
        application="tests",
        configuration=shared_configuration([one, other]),
        own=own_settings([one, other]),
    )
    yield made
    made.stop()


def test_a_batch_gets_the_existing_session(warm: WarmSession, settings: Settings) -> None:
    assert spark_session(settings, application="another") is warm.session


def test_a_batch_gets_its_own_sql_settings_and_unavailable_ones_are_logged(
    warm: WarmSession, settings: Settings
) -> None:
    before = warm.session.conf.get("spark.sql.shuffle.partitions")
    wanted = {"spark.sql.shuffle.partitions": "9", "spark.executor.memory": "7g"}
    with capture_logs() as said:
        session = spark_session(settings, application="another", configuration=wanted)
    assert session.conf.get("spark.sql.shuffle.partitions") == "9"
    assert [entry["keys"] for entry in said if "other settings" in entry["event"]] == [["spark.executor.memory"]]
    warm.reset()
    assert session.conf.get("spark.sql.shuffle.partitions") == before


def test_a_pipeline_without_settings_does_not_get_anothers(warm: WarmSession, settings: Settings) -> None:
    conf = warm.session.conf
    usual = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
    assert {key: conf.get(key) for key in usual} == usual
    assert conf.get("spark.sql.shuffle.partitions") == "3", "both name this setting"
    spark_session(settings, application="one", configuration=OF_ONE | OF_BOTH)
    assert {key: conf.get(key) for key in OF_ONE} == OF_ONE
    warm.reset()
    assert {key: conf.get(key) for key in usual} == usual
    assert conf.get("spark.executor.memory") == "600m", "settings that can't be changed later are shared"


def test_the_next_run_sees_no_settings_of_the_previous_one(warm: WarmSession) -> None:
    session = warm.session
    before = session.conf.get("spark.sql.shuffle.partitions")
    session.conf.set("spark.sql.shuffle.partitions", "7")
    session.conf.set("spark.forebay.of_a_test", "left")
    session.range(3).createOrReplaceTempView("left_by_a_run")
    session.range(3).cache().count()
    warm.reset()
    assert session.conf.get("spark.sql.shuffle.partitions") == before
    assert session.conf.get("spark.forebay.of_a_test", "gone") == "gone"
    assert not session.catalog.tableExists("left_by_a_run")
    assert not session.range(3).storageLevel.useMemory
    assert spark_session(Settings(), application="another") is session, "it is still the warm one"


def test_only_the_job_of_the_cancelled_run_is_cancelled_from_another_thread(warm: WarmSession, tmp_path: Path) -> None:
    started, hold = str(tmp_path / "started"), str(tmp_path / "hold")
    (tmp_path / "hold").touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415  in Spark's worker, with nothing of this module
        import time  # noqa: PLC0415

        with open(started, "w"):  # noqa: PTH123
            pass
        while os.path.exists(hold):  # noqa: PTH110
            time.sleep(0.02)
        yield from batches

    said: list[bool] = []

    def cancel() -> None:
        eventually((tmp_path / "started").exists, "the job has begun", seconds=90)
        said.append(warm.cancel("another run"))
        # Spark reports a job some time after its tasks began, so the caller repeats the cancellation.
        eventually(lambda: warm.cancel("this run"), "a job that is known", seconds=90)
        said.append(True)

    assert warm.cancel("this run") is False, "there is nothing to cancel yet"
    warm.begin("this run")
    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Exception, match="cancelled"):
        warm.session.range(1).mapInArrow(wait, "id long").collect()
    joined(thread)
    assert said == [False, True]
    (tmp_path / "hold").unlink()
    warm.begin("the next run")
    assert warm.session.range(5).count() == 5, "the session is spoilt"
    assert SparkSession.getActiveSession() is not None
