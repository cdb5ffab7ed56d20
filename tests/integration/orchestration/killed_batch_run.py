"""Run one attempt at a batch, and kill this process with SIGKILL at a step; its test forks it.

No Spark: what the output function returns is made here, and the sink's tasks run in this process.
"""

from __future__ import annotations

import os
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forebay import EnvVar, Pipeline, PostgresSink, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.declarations.settings import Settings
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Step
    from orchestration.sinks.table_columns import Mode

#: The step after the driver log's row, before the batch is COMPLETED.
PUBLISHING = "publishing"
WRITTEN = [("a", 1), ("b", 2), ("c", 3)]
REPLAYED = [("z", 26)]


class Killed(PostgresSink):
    """A sink that ends its process at a step."""

    dies_at = ""

    def reached(self, step: Step) -> None:
        self._die(step)

    def publish(self, location: str, *, batch_time: datetime, check: object = None) -> None:
        self._die(PUBLISHING)

    def _die(self, step: str) -> None:
        if step == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def counts(_: DataFrame) -> DataFrame:
    return words(*WRITTEN)


def declare(mode: Mode = "append") -> Pipeline:
    """Declare the pipeline `words`, whose only output goes to the table `counts` at TARGET_URL."""
    pipeline = Pipeline("words", interval="1h", max_attempts=2)
    sink = Killed(EnvVar("TARGET_URL"), "counts", mode=mode, key="word" if mode == "merge" else None)
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=sink, name="counts")(counts)
    return pipeline


def run(settings: Settings, time: datetime, number: int, *, mode: Mode = "append", dies_at: str = "") -> None:
    """Run one attempt at the batch of `time`."""
    pipeline = declare(mode)
    sink = pipeline.outputs["counts"].sink
    assert isinstance(sink, Killed)
    sink.dies_at = dies_at
    session: Any = SessionWithoutSpark()
    run_batch(
        pipeline, batch_time=time, attempt=number, run_id=f"run{number}", settings=settings, session=lambda: session
    )


def replay(settings: Settings, time: datetime, *, dies_at: str = "") -> None:
    """Replay the batch, with other rows."""
    pipeline = declare()
    sink = pipeline.outputs["counts"].sink
    assert isinstance(sink, Killed)
    sink.dies_at = dies_at
    pipeline.outputs["counts"].function = lambda _: words(*REPLAYED)
    session: Any = SessionWithoutSpark()
    replay_batch(pipeline, batch_time=time, run_id="replay", settings=settings, session=lambda: session)


def load() -> None:
    """Import nothing more: this module imports all that it needs."""


def main(arguments: Sequence[str]) -> int:
    """Run the attempt that the arguments name."""
    home, url, time, number, mode, step = arguments
    settings, batch_time = Settings(home=Path(home), database_url=url), datetime.fromisoformat(time)
    if number == "replay":
        replay(settings, batch_time, dies_at=step)
    else:
        run(settings, batch_time, int(number), mode=cast("Mode", mode), dies_at=step)
    return 0
