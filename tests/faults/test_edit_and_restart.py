"""Test what the tutorial says of a change: Ctrl-C, edit the file, `forebay up` again, also in the middle of a batch."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import RunningSystem, running_system
from tracker_store.batches.batches import attempts_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect
from tracker_store.schema.states import AttemptState, BatchState

pytestmark = [pytest.mark.systems, pytest.mark.spark, pytest.mark.timeout(1200)]

# The pipeline of README.md and of docs/how-to/first-pipeline.md: tests/unit/demo/test_documents.py compares.
TUTORIAL = (Path(__file__).parents[2] / "examples" / "word_count.py").read_text(encoding="utf-8")
# What a person tries out: a function that takes long.
SLOW = """\
    import time

    while True:
        time.sleep(0.05)
"""
FIRST_LINE = "    words = lines.selectExpr("


def write_pipeline(home: Path, source: NumberedSource, *, interval: str, slow: bool) -> str:
    """Write the tutorial's pipeline with `max_attempts=2`; return its path."""
    text = TUTORIAL
    for before, after in (
        ("port=9999", f"port={source.port}"),
        ('interval="10s"', f'interval="{interval}", max_attempts=2'),
        ("data/word_counts", str(home / "output")),
        (FIRST_LINE, (SLOW if slow else "") + FIRST_LINE),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = home / "my_pipeline.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def wait_until_a_batch_runs(system: RunningSystem) -> None:
    system.until("a batch runs", lambda: any(row.state == BatchState.RUNNING for row in system.batches()))


def wait_until_ended(system: RunningSystem, seconds: float) -> None:
    asked = time.monotonic()
    while not system.has_ended():
        assert time.monotonic() < asked + seconds, "forebay up has not ended"
        time.sleep(0.05)


def attempts_of_first_batch(system: RunningSystem) -> list[AttemptState]:
    with connect(system.engine) as connection:
        pipeline_id = get_pipeline(connection, "word_count").pipeline_id
        first = min(row.batch_time for row in system.batches() if row.records)
        return [attempt.state for attempt in attempts_of_batch(connection, pipeline_id, first)]


def counted(home: Path) -> Counter[str]:
    table = ds.dataset(home / "output", partitioning="hive", format="parquet").to_table(["word", "count"])
    words: Counter[str] = Counter()
    for row in table.to_pylist():
        words[row["word"]] += row["count"]
    return words


def test_ctrl_c_during_a_batch_uses_up_no_attempt_and_the_next_start_goes_on() -> None:
    with state_directory() as home, NumberedSource() as source:
        module = write_pipeline(home, source, interval="2s", slow=True)
        with running_system(home, source, module) as system:
            source.send()
            wait_until_a_batch_runs(system)
            last = source.pause()
            system.until("the last number is registered", lambda: system.registered() == last)
            system.press_ctrl_c()
            wait_until_ended(system, 120)
        with running_system(home, source, module) as system:
            wait_until_a_batch_runs(system)
            system.press_ctrl_c()
            system.until("it is heard", lambda: b"Stopping all services" in (home / "up.log").read_bytes(), 30)
            system.press_ctrl_c()
            wait_until_ended(system, 30)
        write_pipeline(home, source, interval="3s", slow=False)
        with running_system(home, source, module) as system:
            said = (home / "up.log").read_text(encoding="utf-8")
            assert "interval" in said, "the change of the declaration is shown"
            system.settle(300.0)
            assert attempts_of_first_batch(system) == [AttemptState.LOST, AttemptState.LOST, AttemptState.SUCCEEDED]
            assert {row.state for row in system.batches()} == {BatchState.COMPLETED}
            assert counted(home) == Counter({str(number): 1 for number in range(1, last + 1)})
