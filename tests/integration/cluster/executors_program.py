"""Print how many executors a Spark session has whose number is decided at its start, or while it is warm."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from orchestration.declarations.settings import Settings
from orchestration.policies.executor_allocation import executor_configuration
from orchestration.spark.session.session import hold_executors, spark_session
from orchestration.spark.session.session_configuration import spark_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def executors(session: SparkSession, wanted: int) -> int:
    """Return how many executors there are, 2 s after their number is `wanted` (or after a minute)."""
    context = session.sparkContext._jsc.sc()
    deadline = time.monotonic() + 60
    while context.getExecutorIds().size() != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2)
    return int(context.getExecutorIds().size())


if __name__ == "__main__":
    settings = Settings()
    found = []
    if sys.argv[1] == "start":
        bound = executor_configuration(spark_master(settings), executors=1, least=1)
        session = spark_session(settings, application="executors", configuration=bound)
        found.append(executors(session, 1))
    else:
        session = spark_session(settings, application="executors")
        found.append(executors(session, 2))
        for wanted in (1, 2):
            hold_executors(session, wanted)
            found.append(executors(session, wanted))
    session.stop()
    sys.stdout.write(",".join(str(number) for number in found) + "\n")
