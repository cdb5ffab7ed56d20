"""Check that a pipeline halted by a quarantined batch makes no batches, and names the commands that resume it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forebay import Pipeline
from orchestration.batches.batch_schedule import pause_reason
from orchestration.declarations.declaration_error import DeclarationError
from tracker_store.batches.pipelines import PipelineRow
from tracker_store.schema.states import PipelineState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROW = PipelineRow(1, "words", 1, {}, (1,), timedelta(seconds=10), NOON, PipelineState.RUNNING)


def test_it_makes_no_batches_and_names_batch_and_commands() -> None:
    assert pause_reason(ROW) is None
    said = pause_reason(replace(ROW, halted_by=NOON))
    assert said is not None
    for part in (
        NOON.isoformat(),
        f"forebay batches replay words {NOON.isoformat()}",
        f"forebay batches discard words {NOON.isoformat()}",
        "forebay start --pipeline words",
    ):
        assert part in said


def test_action_after_a_quarantined_batch_is_declared() -> None:
    assert Pipeline("words", interval="10s").declaration()["settings"]["on_failure"] == "continue"
    assert Pipeline("words", interval="10s", on_failure="halt").declaration()["settings"]["on_failure"] == "halt"
    with pytest.raises(DeclarationError, match="on_failure='stop'"):
        Pipeline("words", interval="10s", on_failure="stop")
    with pytest.raises(DeclarationError, match="partitions='week'"):
        Pipeline("words", interval="10s", partitions="week")
