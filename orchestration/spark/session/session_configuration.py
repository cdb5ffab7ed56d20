"""Configure the SparkSession of batches from our own defaults, the settings, and a pipeline's configuration.

Owns their precedence, and that of Spark's own file. Starts nothing and loads no Spark.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

log = structlog.get_logger(__name__)

# A line that ends with a backslash goes on in the next one; a comment does not.
_CONTINUED = re.compile(r"^(?![ \t\f]*[#!])(?:.*(?<!\\)(?:\\\\)*\\(?:\n|\Z))+.*$", re.MULTILINE)
_DEFAULTS = re.compile(r"^[ \t\f]*(spark\.[^\s:=]+)[ \t\f]*[:=]?[ \t\f]*(.*?)[ \t\f]*$", re.MULTILINE)

# A batch is small and short: a cold JVM gains more from a fast start than from its optimising compiler.
JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"
# The heap begins small and grows with the batches: without -Xms it begins with a 64th of the machine's memory, and the
# JVM touches all of that before it first collects garbage.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms64m -Djava.net.preferIPv4Stack=true"

SOCKETS = "spark.python.unix.domain.socket.enabled"
_CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark's own default, INT96, holds no time after 2262 or before 1677, and no zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Unix sockets between the JVM and its Python workers: TCP took a fifth of the time of reading blocks.
    SOCKETS: "true",
    JAVA_OPTIONS_KEY: JAVA_OPTIONS,
}
# If blocks are encrypted, what Spark itself writes to local disks is too: shuffles, spilled and cached data.
_ENCRYPTED_CONFIGURATION = {"spark.io.encryption.enabled": "true", "spark.io.encryption.keySizeBits": "256"}
# Only for a local master, whose workers are the driver's own threads; other workers connect from other machines.
_LOCAL_CONFIGURATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The script of `worker_python` says it too, for sessions of a user's own code; another Python has no script.
    "spark.python.daemon.module": "orchestration.spark.session.python_daemon",
}
# Any account of the machine can connect to the driver's ports on loopback: Spark then asks for a secret, which it draws
# itself for each session, and which is in no setting. (For local-cluster, which is for Spark's own tests, it does not.)
_AUTHENTICATION = {"spark.authenticate": "true"}
MASTER = "spark.master"
REMOTE = "spark.remote"
#: Where Spark keeps its own tables.
WAREHOUSE = "spark.sql.warehouse.dir"
_CONNECT = "sc://"
# Followed by the name of a variable: Spark writes its value into its pages, its event log, or the pod's description.
# Not `spark.kubernetes.executor.secretKeyRef.`, whose value is the name of a Kubernetes secret.
_SHOWN_ENVIRONMENTS = ("spark.executorEnv.", "spark.kubernetes.driverEnv.", "spark.yarn.appMasterEnv.")
# The setting for the workers' Python; the default is this process's Python.
PYTHON = "spark.pyspark.python"


def shared_configuration(pipelines: Iterable[Pipeline]) -> dict[str, str]:
    """Return the configuration of a session for several pipelines: of each setting, the first pipeline's that has it.

    Logs a warning if they differ. Each pipeline's runs set their own value of settings that can be changed at runtime.
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
    """Return the settings that differ between pipelines: a pipeline without a setting must not get another's value."""
    each = [pipeline.spark_configuration for pipeline in pipelines]
    keys = {key for configuration in each for key in configuration}
    return {key for key in keys if len({configuration.get(key) for configuration in each}) > 1}


def session_configuration(settings: Settings, configuration: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a session is given, including its master (or the address of a Connect server).

    Our own defaults give way to `spark_defaults`, except those that close the ports of a local master, or encrypt.
    Raises ValueError if it contains a key of encrypted blocks.
    """
    asked = _asked(settings, configuration)
    if REMOTE in asked:
        # The driver belongs to the server, which refuses settings of the driver from here.
        return {key: value for key, value in asked.items() if key != MASTER}
    local = _LOCAL_CONFIGURATION if is_local(asked[MASTER]) else {}
    authenticated = _AUTHENTICATION if local and not asked[MASTER].startswith("local-cluster") else {}
    encrypted = {} if settings.block_key is None else _ENCRYPTED_CONFIGURATION
    in_file = spark_defaults()
    _refuse_shown_keys(settings, in_file)
    own = {key: value for key, value in _CONFIGURATION.items() if key not in in_file}
    return {**own, **encrypted, **local, **authenticated, **asked}


def spark_defaults() -> dict[str, str]:
    """Return what the user's `spark-defaults.conf` sets, without values over several lines.

    The JVM reads the file itself, and what a session is given takes precedence there. Never give a session these
    values: they would be on the JVM's command line, and some are secrets. A Connect session has no such file.
    """
    package = find_spec("pyspark")
    installed = Path(package.origin).parent if package and package.origin else None
    home = os.environ.get("SPARK_HOME") or installed
    folder = os.environ.get("SPARK_CONF_DIR") or (home and Path(home, "conf"))
    if not folder:
        return {}
    file = Path(folder, "spark-defaults.conf")
    try:
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    except OSError as error:
        log.warning("spark-defaults.conf can't be read: Forebay's own defaults apply", path=str(file), error=str(error))
        return {}
    return dict(_DEFAULTS.findall(_CONTINUED.sub("", text)))


def is_local(master: str) -> bool:
    """Return whether a master runs its tasks on this machine, in processes of this account."""
    return master.startswith("local")


def _asked(settings: Settings, configuration: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings and the configuration, with a master or a Connect server's address."""
    asked = {**settings.spark_configuration, **(configuration or {})}
    _refuse_shown_keys(settings, asked)
    if MASTER not in asked and REMOTE not in asked:
        asked[REMOTE if settings.spark_master.startswith(_CONNECT) else MASTER] = settings.spark_master
    return asked


def _refuse_shown_keys(settings: Settings, asked: Mapping[str, str]) -> None:
    for reference in settings.block_key_references:
        name = str(reference).removeprefix("env:")
        for key in (f"{prefix}{name}" for prefix in _SHOWN_ENVIRONMENTS):
            if key in asked:
                raise ValueError(
                    f"the Spark configuration sets {key}, a key of encrypted blocks: Spark shows these values in its "
                    "pages, in its event log and on the command line of its JVM. Put the key into the environment of "
                    "the workers, or into a file there: docs/how-to/encryption.md"
                )


def spark_master(settings: Settings, configuration: Mapping[str, str] | None = None) -> str:
    """Return where a session with these settings runs: a master, or a Connect server's address."""
    asked = _asked(settings, configuration)
    return asked.get(REMOTE) or asked[MASTER]
