"""Test two outputs with a state in one pipeline that run at the same time, one of them with a window, on real Spark."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, State, Stream
from forebay.sources import SocketText
from orchestration.batches.attempt_outputs import OutputsFailedError
from orchestration.batches.publishing import upkeep
from orchestration.declarations.apply import apply
from orchestration.replays.state_forward import replay_forward
from orchestration.sinks.parquet_names import batch_stamp
from orchestration.state.state_folder import delete_folder
from receiver_runtime.block_store.stores.stores import open_block_store
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import begin_state_replay, state_replay
from tracker_store.connection.engine import create_engine
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.states import BatchState, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark

HOUR = timedelta(hours=1)
#: What comes in each hour; of hour 4 nothing does.
LINES = {1: "a b", 2: "a", 3: "c", 4: "", 5: "b b", 6: "a", 7: "c"}
WINDOW, SLIDE = 3, 2


def words(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("explode(split(value, ' ')) AS word")


def summed(factor: int = 1) -> Callable[..., Any]:
    """Add what the input has of each word, counted `factor` times."""

    def function(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        new = words(lines).groupBy("word").count()
        changed = new.join(state, "word", "left").selectExpr("word", f"coalesce(n, 0) + {factor} * count AS n")
        return changed.selectExpr("concat(word, ' ', n) AS value"), changed

    return function


def declare(system: System, home: Path, *, recent: int = 1, broken: str = "") -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h", concurrent_outputs=2, max_attempts=5)
    inputs = {"all": lines, "recent": lines.window(WINDOW * HOUR, slide=SLIDE * HOUR)}
    for name, entry in inputs.items():
        function = summed(recent if name == "recent" else 1)

        def fails(lines: DataFrame, state: DataFrame, _: Any = function) -> Any:  # noqa: ANN401
            raise ValueError("broken")

        def runs(lines: DataFrame, state: DataFrame, run: Any = function) -> Any:  # noqa: ANN401
            return run(lines, state)

        pipeline.output(
            inputs=[entry],
            sink=ParquetSink(home / name, compact=True),
            name=name,
            state=State("word STRING", "n BIGINT", keys=words, buckets=2),
        )(_two_arguments(fails if broken == name else runs))
    apply(system.connection, [pipeline])
    return pipeline


def _two_arguments(function: Any) -> Any:  # noqa: ANN401
    return lambda lines, state: function(lines, state)


class Model:
    """Both outputs' results, batch by batch, over any number of hours."""

    def __init__(self, due: Callable[[int], bool], *, recent: Callable[[int], int] = lambda _: 1) -> None:
        self.due, self.factor = due, recent

    def results(self, hours: int) -> dict[str, dict[int, list[str]]]:
        totals: dict[str, Counter[str]] = {"all": Counter(), "recent": Counter()}
        found: dict[str, dict[int, list[str]]] = {"all": {}, "recent": {}}
        for hour in range(1, hours + 1):
            inside = " ".join(LINES[each] for each in range(max(1, hour - WINDOW + 1), hour + 1))
            counts = {"all": Counter(LINES[hour].split())}
            if self.due(hour):
                counts["recent"] = Counter({word: self.factor(hour) * n for word, n in Counter(inside.split()).items()})
            for name, counted in counts.items():
                totals[name] += counted
                found[name][hour] = sorted(f"{word} {totals[name][word]}" for word in counted)
        return {name: {hour: rows for hour, rows in of.items() if rows} for name, of in found.items()}


def test_two_states_one_of_a_window_go_on_side_by_side(system: System, tmp_path: Path) -> None:
    pipeline = declare(system, tmp_path)
    times: dict[int, datetime] = {}

    def seen() -> dict[str, dict[int, list[str]]]:
        of_stamp = {batch_stamp(time): hour for hour, time in times.items()}
        found: dict[str, dict[int, list[str]]] = {"all": {}, "recent": {}}
        for name, hours in found.items():
            if not (tmp_path / name).exists():
                continue
            for row in ds.dataset(tmp_path / name, partitioning="hive", format="parquet").to_table().to_pylist():
                hours.setdefault(of_stamp[batch_stamp(row["_batch_time"])], []).append(row["value"])
        return {name: {hour: sorted(rows) for hour, rows in hours.items()} for name, hours in found.items()}

    def allocate(hour: int) -> datetime:
        if LINES[hour]:
            system.receive([LINES[hour]])
        times[hour] = system.allocate(hour)
        return times[hour]

    def look_after() -> None:
        """Give the targets their upkeep, and clean up as if each restore window had passed."""
        system.connection.execute(sa.text("UPDATE forebay.batch_attempts SET ended_at = ended_at - interval '2 hours'"))
        system.connection.execute(sa.text("UPDATE forebay.state_versions SET created_at = created_at - interval '2h'"))
        store = open_block_store(system.settings.block_store_roots)
        for found in state_versions_to_delete(
            system.connection, restore_window=HOUR, keep=timedelta(days=14), limit=100
        ):
            delete_folder(store, found.folder)
            forget_state_version(system.connection, found)
        engine = create_engine(system.settings.require_database_url(), application_name="tests")
        failed = [result for result in upkeep(engine, pipeline, pipeline_id, most_seconds=60) if result.error]
        engine.dispose()
        assert failed == []

    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    first = allocate(1)
    model = Model(lambda hour: pipeline.outputs["recent"].is_due(first + (hour - 1) * HOUR))
    assert len(system.run(pipeline, first, 1)) == 1 + model.due(1)
    for hour in (2, 3):
        system.run(pipeline, allocate(hour), 1)
        look_after()
    assert seen() == model.results(3)

    # Without records: only a window whose content changed runs.
    if system.state(allocate(4))[0] is BatchState.ALLOCATED:
        system.run(pipeline, times[4], 1)

    # One of them fails, whichever is due, and the other is committed all the same.
    time = allocate(5)
    broken = "recent" if model.due(5) else "all"
    with pytest.raises((OutputsFailedError, ValueError), match="broken"):
        system.run(declare(system, tmp_path, broken=broken), time, 1)
    look_after()
    system.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
    system.run(declare(system, tmp_path), time, 2)
    system.run(pipeline, allocate(6), 1)
    assert seen() == model.results(6)

    # One runs again from its first batch after hour 2 on, and the other goes on meanwhile.
    changed = declare(system, tmp_path, recent=10)
    begin = 3 if model.due(3) else 4
    number = begin_state_replay(system.connection, pipeline_id=pipeline_id, output="recent", from_time=times[begin])
    replays = replay_forward(
        changed, number, run_id="forward", settings=system.settings, session=lambda: system.session
    )
    assert next(replays).error == ""
    look_after()
    assert [each.error for each in replays if each.error] == []
    assert state_replay(system.connection, number).state is StateReplayState.COMPLETED
    look_after()
    replayed = Model(model.due, recent=lambda hour: 10 if hour >= begin else 1)
    assert seen() == replayed.results(6)
    system.run(changed, allocate(7), 1)
    look_after()
    assert seen() == replayed.results(7)
