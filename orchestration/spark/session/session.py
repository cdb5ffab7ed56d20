"""Make the SparkSession that batches run in: one per process, with the `forebay` format registered.

A process that runs one batch calls ``spark_session``. A process that runs many creates a ``WarmSession`` first: later
calls of ``spark_session`` return that session, which is reset between runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.policies.executor_allocation import MAX_EXECUTORS, has_executors
from orchestration.spark.session.local_directory import (
    LOCAL_DIRECTORY,
    PROCESS_DIRECTORY,
    SOCKET_DIRECTORY,
    local_directory_configuration,
)
from orchestration.spark.session.session_configuration import (
    JAVA_OPTIONS,
    JAVA_OPTIONS_KEY,
    MASTER,
    PYTHON,
    REMOTE,
    SOCKETS,
    WAREHOUSE,
    is_local,
    session_configuration,
    spark_defaults,
)
from tracker_store.host.code_in_force import CODE_VARIABLE, loaded_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from orchestration.declarations.settings import Settings

log = structlog.get_logger(__name__)

_MODULES = (
    "pyspark.sql",
    "orchestration.spark.session.java",
    "orchestration.spark.reading.batch_reader",
    "orchestration.spark.session.class_archive_file",
    "orchestration.spark.reading.data_source",
    "orchestration.spark.session.shipping",
    "orchestration.spark.session.worker_python",
)
# Set to "true" in a warm session, which ``spark_session`` returns instead of making one.
_WARM_KEY = "spark.forebay.warm"


def spark_session(
    settings: Settings, *, application: str, configuration: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the process's session, made at the first call. Raises what `find_java_home` raises if there is no Java.

    Its configuration is, in increasing precedence: our own defaults, the user's `spark-defaults.conf`, the settings
    (master and configuration), and `configuration`. A warm session only gets the number of executors and the settings
    that can be changed at runtime, until it is reset. Our own code is shipped to the workers of a cluster, and to a
    Connect server.
    """
    from pyspark import SparkConf  # noqa: PLC0415  the light parts of this package load no Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    if active is not None and _is_warm(active):
        if configuration and MAX_EXECUTORS in configuration:
            hold_executors(active, int(configuration[MAX_EXECUTORS]))
        _apply_modifiable(active, configuration or {})
        return active
    wanted = session_configuration(settings, configuration)
    if active is None and REMOTE not in wanted:
        java_home = _prepare_process(settings, wanted)
        _use_class_archive(settings, wanted, java_home)
        if is_local(wanted[MASTER]):
            # Has what the running JVM was started with, and nothing if none runs.
            kept = SparkConf().get(PROCESS_DIRECTORY)
            wanted |= _directories(settings.home.absolute() / "spark", wanted, kept)
    builder = SparkSession.builder.appName(application)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return _equipped(builder.getOrCreate(), settings)


def session_made_by(
    make: Callable[[], SparkSession],
    settings: Settings,
    *,
    configuration: Mapping[str, str],
    executors: Mapping[str, str],
) -> SparkSession:
    """Return the session that a user's own code makes, so that a batch can run in it. Raises what `make` raises.

    `make` finds Java and this process's Python as our own session does. Its session keeps its configuration: it gets
    the `forebay` format and our code, and the number of executors in `executors`. `configuration` is what `make` is
    known to use.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  as above

    wanted = session_configuration(settings, configuration)
    if SparkSession.getActiveSession() is None and REMOTE not in wanted:
        _prepare_process(settings, wanted)
    session = make()
    if not _is_warm(session):
        _equipped(session, settings)
    if MAX_EXECUTORS in executors and not _is_connect(session):
        hold_executors(session, int(executors[MAX_EXECUTORS]))
    return session


def _is_warm(session: SparkSession) -> bool:
    return bool(session.conf.get(_WARM_KEY, "") == "true")


def _is_connect(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def _prepare_process(settings: Settings, wanted: Mapping[str, str]) -> Path:
    """Set the environment that Spark starts its JVM and its Python workers with; return where Java is."""
    from orchestration.spark.session.java import find_java_home  # noqa: PLC0415
    from orchestration.spark.session.worker_python import worker_python  # noqa: PLC0415

    java_home = find_java_home(settings.home.absolute() / "java")
    os.environ["JAVA_HOME"] = str(java_home)
    if (copy := loaded_copy()) is not None:
        # The workers load the version that this process has, whichever is in force when they start.
        os.environ[CODE_VARIABLE] = str(copy.file)
    # Python workers import the format by name, even if Forebay runs from a checkout and is not installed.
    root = str(Path(__file__).resolve().parents[3])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *(path for path in paths if path and path != root)])
    # On a cluster the command must exist on the workers' machines.
    python = worker_python(settings.home.absolute() / "spark") if is_local(wanted[MASTER]) else sys.executable
    # The driver's Python is the one that Spark runs to find data sources.
    os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ["PYSPARK_PYTHON"] = {**spark_defaults(), **wanted}.get(PYTHON, python)
    if is_local(wanted[MASTER]):
        # Spark's UI, if the configuration turns it on, listens there; every host could reach it otherwise.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java_home


def _directories(home: Path, wanted: Mapping[str, str], kept: str | None = None) -> dict[str, str]:
    """Return the settings for Spark's directories in `home` that are not set; kept: PROCESS_DIRECTORY of its JVM."""
    in_file = spark_defaults()
    # Spark makes it with its catalogue's first use: by default as `spark-warehouse` in the working directory.
    own = {WAREHOUSE: str(home / "warehouse")}
    if not {LOCAL_DIRECTORY, SOCKET_DIRECTORY} <= wanted.keys():
        own |= local_directory_configuration(home / "local", kept)
    # The file does not decide where the sockets are: only this account can enter our directory.
    named = wanted.keys() | (in_file.keys() - {SOCKET_DIRECTORY})
    made = {key: value for key, value in own.items() if key not in named}
    if SOCKET_DIRECTORY in in_file.keys() - made.keys() - wanted.keys():
        # Our directory's path is too long for sockets; over TCP, Spark asks for a secret.
        made[SOCKETS] = "false"
    return made


def _use_class_archive(settings: Settings, wanted: dict[str, str], java_home: Path) -> None:
    from orchestration.spark.session.class_archive_file import archive_file, options_to_use  # noqa: PLC0415

    if settings.class_archive and wanted.get(JAVA_OPTIONS_KEY) == JAVA_OPTIONS:
        archive = archive_file(settings.home.absolute() / "spark", java_home)
        wanted[JAVA_OPTIONS_KEY] = f"{JAVA_OPTIONS} {options_to_use(archive)}".rstrip()


def _equipped(session: SparkSession, settings: Settings) -> SparkSession:
    """Return the session with the `forebay` format, after shipping our code to where its tasks run."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415  as above

    from orchestration.spark.reading.data_source import ForebayDataSource  # noqa: PLC0415
    from orchestration.spark.session.shipping import code_archive  # noqa: PLC0415

    if _is_connect(session):
        session.addArtifacts(str(code_archive(settings.home.absolute() / "spark")), pyfile=True)
    elif not str(session.sparkContext.master).startswith("local"):
        session.sparkContext.addPyFile(str(code_archive(settings.home.absolute() / "spark")))
    try:
        session.dataSource.register(ForebayDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark 4.3 registers a format for one session of a JVM, and finds it in no other.
        raise RuntimeError(
            "another session of this Spark has the forebay format, and Spark takes it for one session alone: let the "
            "resource return SparkSession.builder.getOrCreate(), and not newSession()"
        ) from error
    return session


def load_spark() -> None:
    """Import what a session needs, without Dagster; takes half a second."""
    for module in _MODULES:
        importlib.import_module(module)


def _apply_modifiable(session: SparkSession, configuration: Mapping[str, str]) -> None:
    """Set the settings that can be changed at runtime, for the run; log the others if they differ."""
    other = []
    for key, value in configuration.items():
        # The default must be None: Spark checks any other default against the setting's type, and refuses it.
        if key.partition(".")[2].partition(".")[0] == "dynamicAllocation" or key == REMOTE:
            continue
        if session.conf.get(key, None) == value:
            continue
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
        else:
            other.append(key)
    if other:
        log.warning(
            "the batch driver's session was made with other settings: let its FOREBAY_MODULE be the module that calls "
            "build_definitions(spark=...), or name them in its FOREBAY_SPARK_CONFIGURATION",
            keys=sorted(other),
        )


def hold_executors(session: SparkSession, executors: int) -> None:
    """Set the number of executors of a session on a cluster, as the original does; do nothing on a local master.

    Executors above that number are killed, because between two batches none of them has work.
    """
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  PySpark has no other way to Spark's developer API
    context: Any = session.sparkContext._jsc.sc()  # noqa: SLF001
    if not has_executors(str(session.sparkContext.master)):
        return
    running = context.getExecutorIds()
    surplus = [running.apply(number) for number in range(executors, running.size())]
    if surplus:
        context.killExecutors(jvm.PythonUtils.toSeq(surplus))
    context.requestTotalExecutors(executors, 0, jvm.PythonUtils.toScalaMap({}))


def how_ended(session: SparkSession) -> str | None:
    """Return how a session has ended (its JVM or its Spark context), or None if it lives. Not for Spark Connect.

    Call it in the main thread, while no job runs. Raises what PySpark raises if the JVM ends during the call.
    """
    context: Any = session.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001
    code = None if process is None else process.poll()
    if code is not None:
        return f"its JVM has ended, with code {code}"
    # Stopped by a run's own code, or by Spark itself when it is out of memory.
    is_stopped = context._jsc is None or context._jsc.sc().isStopped()  # noqa: SLF001
    return "its Spark session was stopped" if is_stopped else None


class WarmSession:
    """Keep the session of a process that runs one batch after another; settings of one run do not affect the next.

    SQL configuration, temporary views and cached tables are reset between two runs. Functions that a run has registered
    stay: a later run that registers a function of the same name replaces it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        application: str,
        configuration: Mapping[str, str] | None = None,
        own: Iterable[str] = (),
    ) -> None:
        """Start the session with the settings, overridden by `configuration`. Raises as ``spark_session`` does.

        `own` names the settings that differ between pipelines: if they can be changed at runtime, they are reset to the
        installation's value here, and each run sets its own.
        """
        self.session = spark_session(settings, application=application, configuration=configuration)
        # On a Connect server, jobs have tags instead of groups.
        self._remote = REMOTE in session_configuration(settings, configuration)
        unshared = {**({} if self._remote else spark_defaults()), **session_configuration(settings)}
        for key in own:
            if not self.session.conf.isModifiable(key):
                continue
            if key in unshared:
                self.session.conf.set(key, unshared[key])
            else:
                self.session.conf.unset(key)
        self.session.conf.set(_WARM_KEY, "true")
        self._conf = dict(self.session.conf.getAll)

    def begin(self, run_id: str) -> None:
        """Assign the main thread's jobs to this run from now on. Call it in the main thread."""
        if self._remote:
            self.session.clearTags()
            self.session.addTag(run_id)
        else:
            self.session.sparkContext.setJobGroup(run_id, f"Dagster run {run_id}", interruptOnCancel=True)

    def cancel(self, run_id: str) -> bool:
        """Cancel the run's active jobs; return at once, with whether there were any. Safe from any thread."""
        if self._remote:
            return bool(self.session.interruptTag(run_id))
        context = self.session.sparkContext
        jobs = context.statusTracker()
        if not set(jobs.getJobIdsForGroup(run_id)) & set(jobs.getActiveJobsIds()):
            return False
        context.cancelJobGroup(run_id)
        return True

    def ended(self) -> str | None:
        """Return how the session has ended (its JVM or its Spark context); None if it lives, or is a Connect session.

        Call it in the main thread, between two runs.
        """
        return None if self._remote else how_ended(self.session)

    def reset(self) -> None:
        """Reset what a run has changed. Call it in the main thread, after the run; raises if the session is broken."""
        catalog = self.session.catalog
        for table in catalog.listTables():
            if table.isTemporary:
                catalog.dropTempView(table.name)
        catalog.clearCache()
        conf = self.session.conf
        now = dict(conf.getAll)
        for key in now.keys() - self._conf.keys():
            conf.unset(key)
        for key, value in self._conf.items():
            if now.get(key) != value:
                conf.set(key, value)

    def stop(self) -> None:
        """Stop Spark, and ignore errors: a broken session ends with the process."""
        with contextlib.suppress(Exception):
            self.session.stop()
