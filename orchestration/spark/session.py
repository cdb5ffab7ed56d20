"""The SparkSession that batches run in: one per process, with the `forebay` format registered."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orchestration.settings import Settings

# A batch is small and short: a cold JVM gains more from a fast start than from its optimising compiler.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.net.preferIPv4Stack=true"

_CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
}


def spark_session(settings: Settings, *, application: str) -> SparkSession:
    """The process's session, made at the first call. Raises what `find_java_home` raises where there is no Java."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  the light parts of this package load no Spark

    from orchestration.java import find_java_home  # noqa: PLC0415
    from orchestration.spark.data_source import ForebayDataSource  # noqa: PLC0415

    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java_home(settings.home.absolute() / "java"))
        # Python workers import the format by name, also where Forebay runs from a checkout and is not installed.
        root = str(Path(__file__).resolve().parents[2])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *(path for path in paths if path and path != root)])
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(settings.spark_master).appName(application)
    for key, value in _CONFIGURATION.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(ForebayDataSource)
    return session
