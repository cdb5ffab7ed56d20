"""Test docs/how-to/from-dstreams.md: each example is run, and its results are those that Spark Streaming had."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import sqlalchemy as sa
from pyspark.streaming import DStream, StreamingContext

from forebay.testing import run_batch
from orchestration.batches.batch_run import replay_batch
from orchestration.declarations.apply import apply
from orchestration.declarations.sink import OutputAttempt
from orchestration.declarations.state.per_key import KeyState
from tests.integration.docs.streaming_program import StreamingProgram
from tests.integration.orchestration.target_database import TIME, Target
from tests.support.driver_log.log import make_log
from tests.support.spark.batch_rig import System
from tracker_store.connection.engine import connect
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from forebay import Pipeline, Stream
    from tests.support.driver_log.stored_lines import LineReceiver

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "from-dstreams.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python file=(\w+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SQL = dict(re.findall(r"^```sql file=(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
STATEMENTS = re.findall(r"^```sql runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = dict(re.findall(r"^```python program=(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
OUTPUT = dg.AssetKey(["words", "word_counts"])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a file of the page; the working directory is the test's own."""
    for name, code in FILES.items():
        # Spark's working directory is that of the process that started it.
        (tmp_path / f"{name}.py").write_text(code.replace('f"data/', f'f"{tmp_path}/data/'), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return importlib.import_module


def outputs(
    pipeline: Pipeline,
    lines: Sequence[str],
    session: SparkSession,
    *,
    archive: Sequence[str] = (),
    **more: Any,  # noqa: ANN401  of run_batch
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each output for these lines."""
    given: dict[Stream | str, Any] = {"lines": list(lines)}
    if archive:
        given["archive"] = [{"value": line} for line in archive]
    return {name: table.to_pylist() for name, table in run_batch(pipeline, given, session=session, **more).items()}


def counts(rows: Sequence[Mapping[str, Any]], key: str = "word") -> dict[str, int]:
    return {row[key]: row["count"] for row in rows}


def test_every_example_is_run_by_a_test_below() -> None:
    assert sorted(FILES) == ["combined", "listener", "running", "test_words", "totals", "windows", "words", "written"]
    assert sorted(SQL) == ["last_hour", "running_counts", "totals"]
    assert (sorted(PROGRAMS), len(STATEMENTS)) == (["totals"], 3)
    assert PAGE.count("\n```") == 2 * (len(FILES) + len(SQL) + len(PROGRAMS) + len(STATEMENTS))


@pytest.mark.parametrize(("kind", "least"), [(DStream, 35), (StreamingContext, 15)])
def test_the_page_names_each_method_of_pyspark(kind: type, least: int) -> None:
    methods = {name for name in vars(kind) if not name.startswith("_")}
    assert len(methods) >= least
    assert methods - set(re.findall(r"\w+", PAGE)) == set()


@pytest.mark.spark
def test_the_word_count(modules: Callable[[str], Any], session: SparkSession) -> None:
    found = outputs(modules("words").pipeline, ["to be", "or not to be"], session, outputs=["word_counts"])
    assert counts(found["word_counts"]) == {"to": 2, "be": 2, "or": 1, "not": 1}


@pytest.mark.spark
def test_union_join_and_transform(modules: Callable[[str], Any], session: SparkSession) -> None:
    found = outputs(modules("combined").pipeline, ["to be", "or not"], session, archive=["to be", "that"])
    assert sorted(row["value"] for row in found["both"]) == ["or not", "that", "to be", "to be"]
    assert found["in_both"] == [{"value": "to be"}]
    assert sorted(row["word"] for row in found["without_stop_words"]) == ["be", "to"]


@pytest.mark.spark
def test_windows(modules: Callable[[str], Any], session: SparkSession) -> None:
    names = ["count_by_window", "count_by_value_and_window", "reduce_by_key_and_window"]
    earlier = [{"lines": ["too long ago"]}, {"lines": ["a b", "a"]}, {"lines": []}]
    found = outputs(modules("windows").pipeline, ["a b"], session, earlier=earlier, outputs=names)
    assert found["count_by_window"] == [{"n": 3}]
    assert counts(found["count_by_value_and_window"], "value") == {"a b": 2, "a": 1}
    assert counts(found["reduce_by_key_and_window"]) == {"a": 3, "b": 2}


def test_a_running_count_of_an_output_with_a_state(modules: Callable[[str], Any]) -> None:
    function = modules("totals").pipeline.outputs["running_counts"].function
    state = KeyState({"n": 3}, is_timing_out=False)
    assert list(function.one_key({"word": "be"}, [{"word": "be"}] * 2, state)) == [{"word": "be", "n": 5}]
    assert state.get() == {"n": 5}


@pytest.mark.spark
@pytest.mark.usefixtures("session")
def test_the_test_that_replaces_a_queue_stream(modules: Callable[[str], Any]) -> None:
    modules("test_words").test_words_of_the_last_half_minute()


def frame(session: SparkSession, *lines: str) -> DataFrame:
    return session.createDataFrame([(line,) for line in lines], "value STRING")


@pytest.mark.spark
def test_a_batch_that_runs_again_replaces_the_files_that_foreach_rdd_wrote(
    modules: Callable[[str], Any], session: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written = modules("written")
    sinks = {name: output.sink for name, output in written.pipeline.outputs.items()}

    def write(output: str, attempt: int, *lines: str, time: datetime = TIME) -> None:
        sinks[output].write(frame(session, *lines), OutputAttempt("words", 1, output, time, attempt, f"run{attempt}"))

    write("saved", 1, "to be", "or not")
    write("saved", 2, "to be")
    write("saved", 1, "that", time=TIME + timedelta(seconds=10))
    saved = {
        path.name: sorted(row.value for row in session.read.text(str(path)).collect())
        for path in (tmp_path / "data").iterdir()
    }
    first = int(TIME.timestamp() * 1000)
    assert saved == {f"lines-{first}": ["to be"], f"lines-{first + 10_000}": ["that"]}
    found = outputs(written.pipeline, ["to be"], session, batch_time=TIME, outputs=["printed"])
    assert found["printed"] == [{"time": f"{TIME:%H:%M:%S}", "value": "to be"}]
    write("printed", 1, "that is the question")
    assert "that is the question" in capfd.readouterr().out


@pytest.mark.spark
def test_a_running_count_is_exact_through_a_failed_batch_and_replays(
    modules: Callable[[str], Any],
    engine: sa.Engine,
    database_url: str,
    tmp_path: Path,
    session: SparkSession,
    target: Target,
) -> None:
    pipeline = modules("running").pipeline
    pipeline.max_attempts = 1
    fails = False
    function: Callable[[DataFrame], DataFrame] = pipeline.outputs["word_counts"].function

    def failing(lines: DataFrame) -> DataFrame:
        if fails:
            raise RuntimeError("no luck")
        return function(lines)

    pipeline.outputs["word_counts"].function = failing
    with connect(engine) as connection:
        system = System(connection, database_url, tmp_path, session)
        apply(connection, [pipeline])

        def batch(hour: int, *lines: str) -> datetime:
            system.receive(lines)
            return system.allocate(hour)

        def running() -> dict[str, int]:
            return {word: int(n) for word, n in target.rows("SELECT word, n FROM running_counts")}

        first = batch(1, "to be")
        system.run(pipeline, first, 1)
        target.rows(SQL["running_counts"])
        second = batch(2, "or not to be")
        fails = True
        with pytest.raises(RuntimeError, match="no luck"):
            system.run(pipeline, second, 1)
        fails = False
        assert system.state(second)[0] is BatchState.QUARANTINED
        third = batch(3, "that is")
        system.run(pipeline, third, 1)
        assert running() == {"to": 1, "be": 1, "that": 1, "is": 1}

        def replay(time: datetime, run_id: str) -> None:
            replay_batch(pipeline, batch_time=time, run_id=run_id, settings=system.settings, session=lambda: session)

        exact = {"to": 2, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1}
        replay(second, "fixed")
        assert running() == exact
        for number, time in enumerate((third, first, second, first)):
            replay(time, f"again{number}")
        assert running() == exact
        assert {word: int(n) for word, n in target.rows(SQL["last_hour"])} == {"that": 1, "is": 1}


def total(target: Target) -> dict[str, int]:
    return dict(target.rows("SELECT word, n FROM totals"))


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.timeout(1250)
def test_a_streaming_querys_totals_are_exact_even_if_it_is_killed(
    environment: dict[str, str], lines: LineReceiver, tmp_path: Path, target: Target
) -> None:
    target.rows(SQL["totals"])
    environment = {**environment, "TARGET_URL": target.url}
    wanted: dict[str, int] = {}

    def receive() -> bool:
        block = [f"word{n % 3} again" for n in range(20)]
        lines.receive(block)
        for word in " ".join(block).split():
            wanted[word] = wanted.get(word, 0) + 1
        return True

    receive()
    for _ in range(2):
        query = StreamingProgram("totals", PROGRAMS["totals"], environment, tmp_path)
        try:
            least = sum(total(target).values())
            query.until(lambda: receive() and sum(total(target).values()) >= least + 120, "progress")  # noqa: B023
        finally:
            query.kill()
    query = StreamingProgram("totals", PROGRAMS["totals"], environment, tmp_path)
    try:
        query.until(lambda: total(target) == wanted, "the rest")
    finally:
        query.kill()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement(connection: sa.Connection, statement: str) -> None:
    make_log(connection)
    connection.execute(sa.text(statement))


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_the_listener_is_called_with_each_completed_batch(modules: Callable[[str], Any]) -> None:
    module = modules("listener")
    job = module.defs.resolve_job_def("words_batch")
    assert OUTPUT in module.defs.resolve_asset_graph().get_all_asset_keys()
    tags = {"forebay/batch_time": datetime(2026, 1, 1, 12, tzinfo=UTC).isoformat()}
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, tags=tags)
        event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, job.name)
        context = dg.build_run_status_sensor_context(
            "on_batch_completed", dagster_instance=instance, dagster_run=run, dagster_event=event
        )
        module.on_batch_completed(context)
