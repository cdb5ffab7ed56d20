"""Run outputs' functions on empty frames in a local Spark, which analyses their plans, and check their columns.

Owns the session, and what is said of a function that fails. It computes no row, and never calls what a sink would: the
function of a `ForeachBatchSink` too.
"""

from __future__ import annotations

import inspect
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from forebay.cli.checks.findings import Finding, Health
from forebay.cli.checks.sink_checks import name_of
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.spark_output import spark_output_in, without_stack
from orchestration.batches.pipeline_testing import plan_of
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import SinkError
from orchestration.spark.session.session import spark_session
from orchestration.spark.session.session_configuration import MASTER, REMOTE, is_local, session_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from orchestration.declarations.pipeline import Output, Pipeline

#: A stream's columns as (name, Arrow type).
Columns: TypeAlias = "Sequence[tuple[str, str]]"
_LOCAL = "local[2]"


@dataclass(frozen=True, slots=True)
class Plans:
    """Hold what was found, and the columns of each result that its sink takes."""

    findings: list[Finding]
    schemas: dict[Output, StructType]


def check_plans(outputs: Sequence[Output], columns: Mapping[str, Columns]) -> Plans:
    """Run the outputs' functions. `columns`: those of each stream that are known, as (name, Arrow type)."""
    plans = Plans([], {})
    known = [output for output in outputs if columns.keys() >= {stream.name for stream in output.streams}]
    try:
        with _local_session() as session:
            for output in known:
                _check(output, {stream.name: columns[stream.name] for stream in output.streams}, session, plans)
    except Exception as error:  # noqa: BLE001  Spark, Java or their settings: what outputs raise is caught below
        found = f"the plans were not checked, because Spark can't start here: {without_stack(str(error))}"
        plans.findings.append(Finding("plans", Health.WARNING, found, "Validate where Spark and Java are installed."))
        return plans
    if plans.schemas:
        said = f"{len(plans.schemas)} of {len(outputs)} output(s) can be planned"
        found = f"{said}: their functions ran on empty frames in a local Spark"
        plans.findings.append(Finding("plans", Health.OK, found))
    return plans


def _check(output: Output, columns: Mapping[str, Columns], session: SparkSession, plans: Plans) -> None:
    try:
        with _configured(session, output.pipeline):
            schema = plan_of(output, columns, session).schema
        output.sink.check_columns(schema, "its result")
    except SinkError as error:
        plans.findings.append(Finding(name_of(output), Health.FAILED, without_stack(str(error)), _way_out(output)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's function raises
        said = without_stack(str(error)) or "no message"
        found = f"its function fails on empty frames{_line(output, error)}: {type(error).__name__}: {said}"
        if _is_elsewhere(session, output.pipeline):
            way_out = "Its batches run in another Spark than this local one: look whether it is the same there."
            plans.findings.append(Finding(name_of(output), Health.WARNING, found, way_out))
            return
        given = "; ".join(f"{name} has {', '.join(f'{c}: {kind}' for c, kind in of)}" for name, of in columns.items())
        plans.findings.append(
            Finding(name_of(output), Health.FAILED, found, f"Correct the output's function: {given}.")
        )
    else:
        plans.schemas[output] = schema


def _way_out(output: Output) -> str:
    if output.event is None:
        return "Correct the output's function."
    return "Correct the output's function, or what it says of the event time."


def _line(output: Output, error: BaseException) -> str:
    """Return the last line of the function's file that the error passed."""
    code = getattr(inspect.unwrap(output.function), "__code__", None)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    return f" in line {frames[-1].lineno}" if frames else ""


def _is_elsewhere(session: SparkSession, pipeline: Pipeline) -> bool:
    """Return whether a pipeline's batches have what this session lacks: a cluster's tables, jars, or a user's own."""
    own = pipeline.spark_configuration
    wanted = session_configuration(Settings(), own)
    is_local_one = is_local(wanted.get(MASTER, "")) and pipeline.spark_resource is None
    return not is_local_one or not all(session.conf.isModifiable(key) for key in own)


@contextmanager
def _configured(session: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    """Give the session the pipeline's own settings, as far as they can be changed."""
    own = {key: value for key, value in pipeline.spark_configuration.items() if session.conf.isModifiable(key)}
    before = {key: session.conf.get(key, None) for key in own}
    try:
        for key, value in own.items():
            session.conf.set(key, value)
        yield
    finally:
        for key, kept in before.items():
            session.conf.unset(key) if kept is None else session.conf.set(key, kept)


@contextmanager
def _local_session() -> Iterator[SparkSession]:
    """Open a session on this machine, of which nothing is left, or take the active one. It prints nothing."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  most commands load no Spark

    settings = Settings()
    with TemporaryDirectory(prefix="forebay-validate-", ignore_cleanup_errors=True) as temporary:
        own = {key: value for key, value in settings.spark_configuration.items() if key not in (MASTER, REMOTE)}
        # A home has the archive of classes with which Spark starts faster, and this command makes none.
        home = settings.home if settings.home.exists() else Path(temporary)
        local = settings.model_copy(update={"home": home, "spark_master": _LOCAL, "spark_configuration": own})
        active = SparkSession.getActiveSession()
        with spark_output_in(Path(temporary) / "spark.log", Console(stderr=True)):
            session = active or spark_session(local, application="forebay validate")
            try:
                yield session
            finally:
                if active is None:
                    session.stop()
