"""What the SparkSession of batches is configured with: our own defaults, the settings', a pipeline's.

Owns which of them stands over which. Starts nothing and loads no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestration.pipeline import Pipeline
    from orchestration.settings import Settings

log = structlog.get_logger(__name__)

# A batch is small and short: a cold JVM gains more from a fast start than from its optimising compiler.
JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.net.preferIPv4Stack=true"

_CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Between the JVM and its Python workers: a fifth of the time of reading blocks went to TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    JAVA_OPTIONS_KEY: JAVA_OPTIONS,
}
# Workers on other machines connect to the driver; those of a local master are its own threads.
_LOCAL_CONFIGURATION = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
MASTER = "spark.master"
REMOTE = "spark.remote"
_CONNECT = "sc://"
# Which Python the workers run; unless it is named, the one that we are.
PYTHON = "spark.pyspark.python"


def shared_configuration(pipelines: Iterable[Pipeline]) -> dict[str, str]:
    """What a session that runs batches of several pipelines is made with: of each setting the first that names it.

    Where they differ it is said; each pipeline's runs are given their own of what may be set in a session that runs.
    """
    shared: dict[str, str] = {}
    differ: set[str] = set()
    for pipeline in pipelines:
        differ |= {key for key, value in pipeline.spark_configuration.items() if shared.get(key, value) != value}
        shared = {**pipeline.spark_configuration, **shared}
    if differ:
        log.warning("the pipelines' Spark settings differ, and a batch driver has one session", keys=sorted(differ))
    return shared


def own_settings(pipelines: Iterable[Pipeline]) -> set[str]:
    """The settings that are not the same for each of the pipelines: one that names none must not get another's."""
    each = [pipeline.spark_configuration for pipeline in pipelines]
    keys = {key for configuration in each for key in configuration}
    return {key for key in keys if len({configuration.get(key) for configuration in each}) > 1}


def session_configuration(settings: Settings, configuration: Mapping[str, str] | None = None) -> dict[str, str]:
    """Everything that a session is configured with, its master (or Connect's address) included."""
    asked = {**settings.spark_configuration, **(configuration or {})}
    if MASTER not in asked and REMOTE not in asked:
        asked[REMOTE if settings.spark_master.startswith(_CONNECT) else MASTER] = settings.spark_master
    if REMOTE in asked:
        # The driver is the server's: what belongs to it is refused from here.
        return {key: value for key, value in asked.items() if key != MASTER}
    local = _LOCAL_CONFIGURATION if asked[MASTER].startswith("local") else {}
    return {**_CONFIGURATION, **local, **asked}


def spark_master(settings: Settings, configuration: Mapping[str, str] | None = None) -> str:
    """Where a session of these settings runs: a master, or a Connect server's address."""
    wanted = session_configuration(settings, configuration)
    return wanted.get(MASTER) or wanted[REMOTE]
