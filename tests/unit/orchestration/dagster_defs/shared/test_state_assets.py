"""Test what Dagster's events say of an output's state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from forebay import ConsoleSink, Pipeline, State, Stream
from forebay.sources import SocketText
from orchestration.batches.attempt_outputs import ChangedState, OutputResult
from orchestration.dagster_defs.assets.committed_outputs import state_metadata
from orchestration.dagster_defs.shared.state_assets import state_materialization

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Output

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def output() -> Output:
    pipeline = Pipeline("words", interval="10s")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))

    @pipeline.output(inputs=[lines], state=State("value STRING", "n BIGINT"), sink=ConsoleSink())
    def counts(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        return lines, state

    return pipeline.outputs["counts"]


def test_an_output_by_event_time_says_its_watermark_and_its_late_records(output: Output) -> None:
    changed = ChangedState(0, 0, 1, 10, watermark=NOON, late=2)
    event = state_materialization(output, NOON, OutputResult("counts", 1, "", 0, state=changed))
    assert event is not None, "late records are news, also if no window changed"
    said = {name: value.value for name, value in event.metadata.items()}
    assert (said["watermark"], said["late_records"]) == (NOON.isoformat(), 2)
    result = {name: getattr(value, "value", value) for name, value in state_metadata(changed).items()}
    assert (result["state_watermark"], result["state_late_records"]) == (NOON.isoformat(), 2)


def test_a_state_without_event_time_says_neither(output: Output) -> None:
    changed = ChangedState(1, 0, 1, 10)
    event = state_materialization(output, NOON, OutputResult("counts", 1, "", 0, state=changed))
    assert event is not None
    assert not {"watermark", "late_records"} & event.metadata.keys()
    assert not {"state_watermark", "state_late_records"} & state_metadata(changed).keys()
    unchanged = ChangedState(0, 0, 1, 0, watermark=NOON, late=0)
    assert state_materialization(output, NOON, OutputResult("counts", 1, "", 0, state=unchanged)) is None
