"""Test what `forebay stop`, and `forebay up` that drains, print while pipelines stop, and of what is left behind."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forebay.cli.commands import drain, stop
from forebay.cli.commands.stop import left_behind
from forebay.cli.terminal.console import Console
from tracker_store.batches.pipeline_states import StopProgress
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    import pytest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG = 1_000_000.0
STOPPING = StopProgress(
    pipeline="words",
    state=PipelineState.STOPPING,
    state_since=NOON,
    receivers=(),
    waiting_blocks=0,
    waiting_records=0,
    unfinished_batches=1,
    batch_time=NOON,
    batch_state="ALLOCATED",
    batch_attempt=0,
    batch_reason=None,
    quarantined_batches=0,
)


def of_attempts() -> list[StopProgress]:
    """Return what is seen of a batch that is tried again and again, for one cause and then for another."""
    found = [STOPPING]
    for attempt in range(1, 15):
        found.append(replace(STOPPING, batch_state="RUNNING", batch_attempt=attempt, batch_reason=""))
        reason = f"port {5000 + attempt} refused it\n" + "in a stack\n" * 500
        found.append(replace(STOPPING, batch_state="BLOCKED", batch_attempt=attempt, batch_reason=reason))
    return [*found, replace(found[-1], batch_attempt=15, batch_reason="no such table")]


def test_a_cause_is_said_once_in_one_line_until_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "NUMBERS_SECONDS", LONG)
    out = io.StringIO()
    tell = stop._progress_printer(Console(file=out, width=1_000))
    for progress in of_attempts():
        tell(progress)
    batch = "words: stopping; batch 2026-01-01 12:00:00Z"
    assert out.getvalue().splitlines() == [
        f"{batch} ALLOCATED, attempt 0",
        f"{batch} RUNNING, attempt 1",
        f"{batch} BLOCKED, attempt 1 (port 5001 refused it)",
        f"{batch} BLOCKED, attempt 15 (no such table)",
    ]


def test_a_drain_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "REPORT_SECONDS", LONG)
    told: list[str] = []
    printer = drain._Printer(told.append)
    for progress in of_attempts():
        printer.waits(progress, 7.0)
    assert [line.partition("Z ")[2] for line in told] == [
        "ALLOCATED, attempt 0; at most 7 s more",
        "RUNNING, attempt 1; at most 7 s more",
        "BLOCKED, attempt 1 (port 5001 refused it); at most 7 s more",
        "BLOCKED, attempt 15 (no such table); at most 7 s more",
    ]


def test_quarantined_batches_are_left_behind_with_the_command_that_shows_them() -> None:
    [line] = left_behind(replace(STOPPING, state=PipelineState.STOPPED, quarantined_batches=2))
    assert "some or all of their outputs did not come out" in line, "one may be partially committed"
    assert line.endswith(": forebay batches list --pipeline words --state QUARANTINED")
