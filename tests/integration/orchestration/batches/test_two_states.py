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

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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


def broken(lines: DataFrame, state: DataFrame) -> Any:  # noqa: ANN401  it returns nothing
    del lines, state
    raise ValueError("broken")


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


class TwoStates:
    """The pipeline on a system: its batches, what readers see, and what looks after it."""

    def __init__(self, system: System, home: Path) -> None:
        self.system, self.home = system, home
        self.times: dict[int, datetime] = {}
        self.pipeline = self.declare()
        self.pipeline_id = get_pipeline(system.connection, "words").pipeline_id

    def declare(self, **functions: Callable[..., Any]) -> Pipeline:
        """Declare both outputs, with these functions in place of the sums."""
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        pipeline = Pipeline("words", interval="1h", concurrent_outputs=2, max_attempts=5)
        for name, entry in (("all", lines), ("recent", lines.window(WINDOW * HOUR, slide=SLIDE * HOUR))):
            pipeline.output(
                inputs=[entry],
                sink=ParquetSink(self.home / name, compact=True),
                name=name,
                state=State("word STRING", "n BIGINT", keys=words, buckets=2),
            )(functions.get(name, summed()))
        apply(self.system.connection, [pipeline])
        return pipeline

    def is_due(self, hour: int) -> bool:
        """Return whether the output with the window is."""
        return self.pipeline.outputs["recent"].is_due(self.times[1] + (hour - 1) * HOUR)

    def allocate(self, hour: int) -> datetime:
        if LINES[hour]:
            self.system.receive([LINES[hour]])
        self.times[hour] = self.system.allocate(hour, with_windows=True)
        return self.times[hour]

    def seen(self) -> dict[str, dict[int, list[str]]]:
        """Return what readers see of each output, by hour."""
        of_stamp = {batch_stamp(time): hour for hour, time in self.times.items()}
        found: dict[str, dict[int, list[str]]] = {"all": {}, "recent": {}}
        for name, hours in found.items():
            if not (self.home / name).exists():
                continue
            table = ds.dataset(self.home / name, partitioning="hive", format="parquet").to_table()
            for row in table.sort_by("value").to_pylist():
                hours.setdefault(of_stamp[batch_stamp(row["_batch_time"])], []).append(row["value"])
        return found

    def look_after(self) -> None:
        """Give the targets their upkeep, and clean up as if each restore window had passed."""
        connection = self.system.connection
        for table, column in (("batch_attempts", "ended_at"), ("state_versions", "created_at")):
            connection.execute(sa.text(f"UPDATE forebay.{table} SET {column} = {column} - interval '2 hours'"))
        store = open_block_store(self.system.settings.block_store_roots)
        for found in state_versions_to_delete(connection, restore_window=HOUR, keep=14 * 24 * HOUR, limit=100):
            delete_folder(store, found.folder)
            forget_state_version(connection, found)
        engine = create_engine(self.system.settings.require_database_url(), application_name="tests")
        results = upkeep(engine, self.pipeline, self.pipeline_id, most_seconds=60)
        engine.dispose()
        assert [result for result in results if result.error] == []


@pytest.fixture
def two(system: System, tmp_path: Path) -> TwoStates:
    return TwoStates(system, tmp_path)


def test_two_states_one_of_a_window_go_on_side_by_side(system: System, two: TwoStates) -> None:
    assert len(system.run(two.pipeline, two.allocate(1), 1)) == 1 + two.is_due(1)
    model = Model(two.is_due)
    for hour in (2, 3):
        system.run(two.pipeline, two.allocate(hour), 1)
        two.look_after()
    assert two.seen() == model.results(3)

    # Without records: only a window whose content changed runs.
    empty = two.allocate(4)
    assert (system.state(empty)[0] is BatchState.ALLOCATED) == model.due(4)
    if model.due(4):
        system.run(two.pipeline, empty, 1)

    # One of them fails, whichever is due, and the other is committed all the same.
    time = two.allocate(5)
    with pytest.raises((OutputsFailedError, ValueError), match="broken"):
        system.run(two.declare(**{"recent" if model.due(5) else "all": broken}), time, 1)
    two.look_after()
    system.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
    system.run(two.declare(), time, 2)
    system.run(two.pipeline, two.allocate(6), 1)
    assert two.seen() == model.results(6)

    # One runs again from its first batch after hour 2 on, with another function, and the other stays as it is.
    changed = two.declare(recent=summed(10))
    begin = 3 if model.due(3) else 4
    number = begin_state_replay(
        system.connection, pipeline_id=two.pipeline_id, output="recent", from_time=two.times[begin]
    )
    replays = replay_forward(
        changed, number, run_id="forward", settings=system.settings, session=lambda: system.session
    )
    assert next(replays).error == ""
    two.look_after()
    assert [each.error for each in replays if each.error] == []
    assert state_replay(system.connection, number).state is StateReplayState.COMPLETED
    two.look_after()
    replayed = Model(model.due, recent=lambda hour: 10 if hour >= begin else 1)
    assert two.seen() == replayed.results(6)
    system.run(changed, two.allocate(7), 1)
    two.look_after()
    assert two.seen() == replayed.results(7)
