"""Drain before `forebay up` ends: stop its pipelines gracefully, and wait a bounded time until nothing is left.

The stop is the same row in the driver log as that of `forebay stop`, and the leading tracker completes it. It is not a
person's wish: the next `forebay up` lets the pipelines run again. This module never ends a process.
"""

from __future__ import annotations

import contextlib
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.cli.commands.stop import OpenWork, lasting, quarantined, what_is_open
from tracker_store.batches.pipeline_states import stop_pipelines, stop_progress
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import NotAppliedError
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from tracker_store.batches.pipeline_states import StopProgress

POLL_SECONDS = 0.25
# How often the remaining time is printed although nothing else has changed.
REPORT_SECONDS = 10.0


class DrainResult(StrEnum):
    """Name how a drain ended."""

    DRAINED = "drained"
    """Everything that was received is processed, except what only a person can let go on."""
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    """A second signal came, or a service that it needs was given up."""


class _Printer:
    """Print what each pipeline waits for, when more than a number changes, and every `REPORT_SECONDS`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._said: dict[str, tuple[str, float]] = {}
        self._work = OpenWork()

    def waits(self, row: StopProgress, seconds_left: float) -> None:
        for_what, why = self._work.of(row)
        said, at = self._said.get(row.pipeline, ("", 0.0))
        now = time.monotonic()
        if why or lasting(said) != lasting(for_what) or now - at >= REPORT_SECONDS:
            self._said[row.pipeline] = (for_what, now)
            self._tell(f"{row.pipeline}: stopping; {for_what}{why}; at most {max(0.0, seconds_left):.0f} s more")

    def once(self, pipeline: str, what: str) -> None:
        if lasting(self._said.get(pipeline, ("", 0.0))[0]) != lasting(what):
            self._said[pipeline] = (what, time.monotonic())
            self._tell(f"{pipeline}: {what}")


def drain_pipelines(
    engine: sa.Engine,
    pipelines: Sequence[str],
    *,
    seconds: float,
    interrupted: Callable[[], bool],
    tell: Callable[[str], None],
) -> DrainResult:
    """Stop `pipelines` gracefully; return when they are stopped, after `seconds`, or when `interrupted` is true.

    Survives an unavailable driver log: it tries again until the time is over. Does not wait for a pipeline that a
    quarantined batch has halted, that a person starts again meanwhile, or that is removed. `tell` gets each line of
    progress.
    """
    deadline = time.monotonic() + seconds
    printer = _Printer(tell)
    outage = Outage("the drain", tell=tell)
    requested = False
    while not interrupted():
        try:
            with connect(engine) as connection:
                if not requested:
                    _request(connection, pipelines)
                    requested = True
                waiting = _waiting(connection, pipelines, printer)
        except SURVIVED as error:
            outage.failed(error)
        else:
            outage.answered()
            if not waiting:
                return DrainResult.DRAINED
            for row in waiting:
                printer.waits(row, deadline - time.monotonic())
        if time.monotonic() >= deadline:
            return DrainResult.TIMED_OUT
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    return DrainResult.INTERRUPTED


def _request(connection: sa.Connection, pipelines: Sequence[str]) -> None:
    for name in pipelines:
        # A pipeline that was removed meanwhile needs no stop.
        with contextlib.suppress(NotAppliedError):
            stop_pipelines(connection, name=name)


def _waiting(connection: sa.Connection, pipelines: Sequence[str], printer: _Printer) -> list[StopProgress]:
    """Return the pipelines that are still stopping and that need no person for it; print what the others are."""
    halted = {row.name for row in list_pipelines(connection) if row.halted_by is not None}
    waiting = []
    for row in stop_progress(connection, pipelines):
        if row.state is not PipelineState.STOPPING:
            kept = f"; {quarantined(row)}" if row.quarantined_batches else ""
            printer.once(row.pipeline, f"{row.state.lower()}{kept}")
        elif row.pipeline in halted:
            printer.once(row.pipeline, f"halted by a quarantined batch, which waits for a person; {what_is_open(row)}")
        else:
            waiting.append(row)
    return waiting
