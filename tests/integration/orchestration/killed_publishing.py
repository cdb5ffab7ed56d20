"""Run a batch, replay it or compact an hour, and kill this process with SIGKILL at a step; its test forks it.

No Spark: what the output function returns is made here, and the sink's tasks run in this process.
"""

from __future__ import annotations

import os
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.batches.publishing import UpkeepResult, upkeep
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import Step, unchecked
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Check

#: The step after the driver log's row, before readers see any change.
COMMITTED = "committed, not published"
RUN, REPLAY, COMPACT = "run", "replay", "compact"


class Killed(ParquetSink):
    """A sink that ends its process at a step of publishing or compacting."""

    dies_at = ""

    def reached(self, step: Step) -> None:
        self._die(step)

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        self._die(COMMITTED)
        super().publish(location, batch_time=batch_time, check=check)

    def _die(self, step: str) -> None:
        if step == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def declare(path: Path, *rows: tuple[str, int], dies_at: str = "") -> Pipeline:
    """Declare the pipeline `words`, whose only output is these rows, in files below `path`."""
    pipeline = Pipeline("words", interval="10m")
    sink = Killed(path, compact=True)
    sink.dies_at = dies_at

    def counts(_: DataFrame) -> DataFrame:
        return words(*rows)

    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=sink, name="counts")(counts)
    return pipeline


def act(settings: Settings, what: str, time: datetime, *rows: tuple[str, int], dies_at: str = "") -> list[UpkeepResult]:
    """Run the first attempt at the batch of `time`, replay it, or compact every hour that has ended."""
    assert settings.home is not None
    pipeline = declare(settings.home / "output", *rows, dies_at=dies_at)
    session: Any = SessionWithoutSpark()
    if what == RUN:
        run_batch(pipeline, batch_time=time, attempt=1, run_id="run1", settings=settings, session=lambda: session)
    elif what == REPLAY:
        replay_batch(pipeline, batch_time=time, run_id=f"replay {rows}", settings=settings, session=lambda: session)
    else:
        engine = create_engine(settings.require_database_url(), application_name="tests")
        try:
            with connect(engine) as connection:
                pipeline_id = get_pipeline(connection, "words").pipeline_id
            return upkeep(engine, pipeline, pipeline_id, most_seconds=60)
        finally:
            engine.dispose()
    return []


def load() -> None:
    """Import nothing more: this module imports all that it needs."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments name."""
    home, url, what, time, word, step = arguments
    act(Settings(home=Path(home), database_url=url), what, datetime.fromisoformat(time), (word, 1), dies_at=step)
    return 0
