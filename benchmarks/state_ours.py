"""Run batches of an output with a state, as a batch run does, for `benchmarks.state`.

What a batch does beside its state is not measured: its allocation, its claim and its completion.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from benchmarks.state_spark import COLUMNS
from forebay import Pipeline, State, Stream
from forebay.sources import SocketText
from orchestration.batches.output_run import run_output
from orchestration.batches.stateful.state_function import checked_pair, keys_of
from orchestration.batches.stateful.state_run import StateRun
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import OutputAttempt
from orchestration.sinks.foreach_batch import ForeachBatchSink
from orchestration.spark.session.session import spark_session
from orchestration.state.reading import read_state
from orchestration.state.state_frame import StateFrame
from tests.support.driver_log.stated_log import OUTPUT, make_stated_log
from tracker_store.batches import state_versions
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.server import Server


def _count(clicks: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    new = clicks.groupBy("user").count()
    changed = new.join(state, "user", "left").selectExpr("user", "coalesce(n, 0) + count AS n")
    return changed, changed


def _discard(frame: DataFrame, _: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Ours:
    """Run one batch after the other. The first one takes over a state: a file of keys, `first`, which have 1 each."""

    def __init__(self, server: Server, directory: Path, first: Path) -> None:
        self._engine = server.engine
        self._settings = Settings(home=directory / "home", database_url=server.url, spark_master="local[2]")
        self.session: SparkSession = spark_session(self._settings, application="benchmark")
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        pipeline = Pipeline("words", interval="10s", concurrent_batches=1)

        def initial(session: SparkSession) -> DataFrame:
            return session.read.schema(COLUMNS).parquet(str(first)).selectExpr("user", "1L AS n")

        pipeline.output(
            inputs=[lines],
            name=OUTPUT,
            state=State(key="user STRING", value="n BIGINT", initial=initial),
            sink=ForeachBatchSink(_discard),
        )(_count)
        self._output = pipeline.outputs[OUTPUT]
        self._connection = connect(self._engine)
        self._log = make_stated_log(self._connection.__enter__())
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def run(self, path: Path) -> dict[str, float]:
        """Run a batch of a file of keys; return the seconds of each of its steps, and of all as `whole`."""
        self._number += 1
        batch_time = self._log.allocate(self._number)
        self._log.claim(batch_time)
        attempt = OutputAttempt("words", self._log.pipeline_id, OUTPUT, batch_time, 1, "run1", {1: "run1"})
        clicks = self.session.read.schema(COLUMNS).parquet(str(path))
        steps: dict[str, float] = {}
        began = time.perf_counter()
        state = StateRun(self._engine, self._output, attempt, self._settings, {})

        def compute() -> DataFrame:
            found = state.read(self.session, keys_of(self._output, [clicks]))
            returned: Any = self._output.function(clicks, found)
            result, changes = checked_pair(returned, "the benchmark")
            steps["planned"] = time.perf_counter() - began
            state.write(self.session, changes)
            steps["state written"] = time.perf_counter() - began - steps["planned"]
            return result

        run_output(self._engine, self._output, attempt, compute, replaces=False, state=state)
        state.close()
        steps["whole"] = time.perf_counter() - began
        steps["result and commit"] = steps["whole"] - steps["planned"] - steps["state written"]
        self._log.complete(batch_time, 1)
        return steps

    def read_cold(self) -> float:
        """Return how long it takes to read every key of the newest version from the block store, with two processes."""
        head = state_versions.head_version(self._log.connection, self._log.pipeline_id, OUTPUT)
        assert head is not None
        rows = state_versions.chain(self._log.connection, **self._log.where, version=head)
        chain = [[StateFrame.of_row(row) for row in version] for version in rows]
        began = time.perf_counter()
        place: dict[str, Any] = {"roots": self._settings.block_store_roots, "block_keys": "", "expected": {}}
        state = self._output.state
        assert state is not None
        frame = read_state(
            self.session, state.schema, chain, None, batch_time=head.batch_time, buckets=state.buckets, **place
        )
        _discard(frame, 0)
        return time.perf_counter() - began

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.stop()
        self._connection.__exit__(kind, error, trace)
