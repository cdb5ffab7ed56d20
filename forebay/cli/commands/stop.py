"""`forebay stop` and `forebay start`: stop pipelines in order, and start them again.

A stop is a request in the driver log, which the leading tracker carries out. `forebay stop` writes the request and
watches its progress. It ends no process: `forebay up` exits by itself when everything is stopped.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.services.running_module import declared_here
from forebay.cli.services.supervisor_lock import lock_holder
from forebay.cli.terminal.console import Console
from orchestration.declarations.settings import Settings
from orchestration.status_page.reasons import LONGEST, cause_in
from receiver_runtime.sources.fields.units import parse_duration
from tracker_store.batches import pipeline_states as store
from tracker_store.long_texts import one_line
from tracker_store.receivers.leadership import read_leadership
from tracker_store.schema.states import BatchState, PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import sqlalchemy as sa

POLL_SECONDS = 0.25
DEFAULT_TIMEOUT = "10m"
#: Seconds between two lines that differ in a number alone.
NUMBERS_SECONDS = 5.0
# What differs from one line to the next while a pipeline waits: numbers, and the state of a batch that is tried again.
_PASSING = re.compile(r"\d[\d,]*|RUNNING|FAILED|BLOCKED")
# Seconds: a leading tracker raises its counter each second.
LEADER_SECONDS = 5.0
_WAY_OUT = (
    "Put it back into the module (and forebay apply), or, if what waits is not wanted any more: forebay pipelines "
    "remove {}"
)
NOBODY_LEADS = "No tracker leads to carry out the stop: start one with forebay up, or forebay agent."

Pipeline = Annotated[
    str | None, typer.Option(help="One pipeline; all of them unless given.", autocompletion=names.pipelines)
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def _seconds(value: str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if seconds < 0:
        message = f"{value!r} is negative: give a duration such as 90s or 10m, or 0s to not wait"
        raise typer.BadParameter(message)
    return seconds


class OpenWork:
    """Say what stopping pipelines wait for, and each cause of a failure once: again only after another cause."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def of(self, progress: store.StopProgress) -> tuple[str, str]:
        """Return what a pipeline waits for, and why in one line; "" for a cause that it returned already."""
        why = one_line(progress.batch_reason or "", LONGEST)
        # A batch that is tried again has no reason while it runs: that is no other cause.
        if why:
            cause = cause_in(why)
            why = "" if self._causes.get(progress.pipeline) == cause else f" ({why})"
            self._causes[progress.pipeline] = cause
        return what_is_open(replace(progress, batch_reason=None)), why


def lasting(line: str) -> str:
    """Return what of a line does not change while a pipeline waits for the same."""
    return _PASSING.sub("", line)


def what_is_open(progress: store.StopProgress) -> str:
    """Return in one line what a stopping pipeline still waits for; empty parts are left out."""
    said = []
    if progress.receivers:
        said.append(f"receivers: {', '.join(progress.receivers)}")
    if progress.waiting_records:
        said.append(f"waiting: {progress.waiting_records:,} records in {progress.waiting_blocks:,} blocks")
    if progress.batch_time is not None:
        batch = (
            f"batch {progress.batch_time:%Y-%m-%d %H:%M:%S}Z {progress.batch_state}, attempt {progress.batch_attempt}"
        )
        more = f", {progress.unfinished_batches - 1} more" if progress.unfinished_batches > 1 else ""
        why = f" ({one_line(progress.batch_reason, LONGEST)})" if progress.batch_reason else ""
        said.append(batch + more + why)
    return "; ".join(said) or "the tracker's next look"


def quarantined(row: store.StopProgress) -> str:
    """Return how many batches are quarantined, and the command that shows them."""
    return (
        f"{row.quarantined_batches} batch(es) are quarantined, and some or all of their outputs did not come out: "
        f"forebay batches list --pipeline {row.pipeline} --state QUARANTINED"
    )


def left_behind(row: store.StopProgress) -> Iterator[str]:
    """Yield what of a stopped pipeline has not come out, in a line each."""
    if row.quarantined_batches:
        yield f"{row.pipeline}: {quarantined(row)}"
    if row.waiting_records:
        yield (
            f"{row.pipeline}: {row.waiting_records:,} records came after it was stopped, because another pipeline "
            "reads their stream. They wait until it is started again."
        )


def stop(
    pipeline: Pipeline = None,
    timeout: Annotated[
        str, typer.Option(help="How long to wait: a duration such as 90s or 10m; 0s: request the stop, and return.")
    ] = DEFAULT_TIMEOUT,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Stop pipelines in order: everything that was received is processed first, then they end.

    Receivers of streams that no other running pipeline reads stop reading, register what they hold, and end. Waiting
    records get a last batch, at the next multiple of the interval. Without --pipeline the system ends after that:
    `forebay up` exits. The stop is durable, and continues if this command ends. `forebay start` or `forebay up` lets
    the pipelines run again.

    For example:

        forebay stop
        forebay stop --pipeline words --timeout 2m
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    seconds = _seconds(timeout)
    settings = Settings()
    deadline = time.monotonic() + seconds
    # Look before the stop is requested: after that the system may end at any moment.
    supervised = pipeline is None and lock_holder(settings.home) is not None
    with driver_log(console, application_name="forebay stop") as connection:
        names = store.stop_pipelines(connection, name=pipeline)
        leader = _LeaderWatch(connection, console)
        code = _CodeWatch(settings, console)
        progress = _watch(connection, names, deadline, _progress_printer(console), (code.look, leader.look))
        code.look(progress)
        leads = read_leadership(connection).holder is not None
    stopped = all(row.state is PipelineState.STOPPED for row in progress)
    ended = stopped and (not supervised or _wait_for_end(settings.home, deadline))
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "ended": ended, "pipelines": [_plain(row) for row in progress]}))
    if not stopped:
        # It was said already, while the command waited.
        _print_open_work(console, progress, leads=leads or leader.has_said, said=code.said)
        if not seconds:
            return
        console.print(
            f"Not stopped within {seconds:g} s. It goes on stopping: forebay stop waits again, forebay start takes "
            "it back.",
            style="bold red",
        )
        raise typer.Exit(1)
    for row in progress:
        for line in left_behind(row):
            console.print(line, style="bold red", markup=False)
    if supervised and not ended:
        console.print("Everything is stopped, but forebay up has not ended in time.", style="bold red")
        raise typer.Exit(1)
    if supervised:
        console.print("Everything is stopped, and forebay up has ended.")
    else:
        console.print("Stopped." if progress else "There is no pipeline to stop.")


def _print_open_work(
    console: Console, progress: Sequence[store.StopProgress], *, leads: bool, said: Collection[str]
) -> None:
    for row in progress:
        if row.state is PipelineState.STOPPING:
            console.print(f"{row.pipeline} is still stopping; open: {what_is_open(row)}", markup=False)
            # One that has been tried has code.
            untried = row.batch_state in (None, BatchState.ALLOCATED)
            if untried and _needs_code(row) and not row.receivers and row.pipeline not in said:
                console.print(
                    f"No process runs a batch of it: does Dagster run, and does its module declare {row.pipeline}? "
                    f"{_WAY_OUT.format(row.pipeline)}",
                    markup=False,
                )
    if not leads:
        console.print(NOBODY_LEADS)


def _needs_code(row: store.StopProgress) -> bool:
    """Return whether a batch must be made or launched before the pipeline is stopped."""
    waits = row.waiting_records if row.batch_state is None else row.batch_state != BatchState.RUNNING
    return row.state is PipelineState.STOPPING and bool(waits)


def _plain(progress: store.StopProgress) -> dict[str, object]:
    row = asdict(progress)
    for name in ("state_since", "batch_time"):
        row[name] = None if row[name] is None else row[name].isoformat()
    return row


def _watch(
    connection: sa.Connection,
    names: Sequence[str],
    deadline: float,
    tell: Callable[[store.StopProgress], None],
    on_wait: Sequence[Callable[[Sequence[store.StopProgress]], None]],
) -> list[store.StopProgress]:
    """Watch until no pipeline is STOPPING, or until the deadline; return the newest progress."""
    while True:
        progress = store.stop_progress(connection, names)
        for row in progress:
            tell(row)
        # A pipeline may be started again meanwhile, on purpose: do not wait for it.
        if all(row.state is not PipelineState.STOPPING for row in progress) or time.monotonic() >= deadline:
            return progress
        for look in on_wait:
            look(progress)
        time.sleep(POLL_SECONDS)


class _LeaderWatch:
    """Say once, while a stop waits, that no tracker is there to carry it out."""

    def __init__(self, connection: sa.Connection, console: Console) -> None:
        self._connection = connection
        self._console = console
        self._seen = read_leadership(connection)
        self._moved_at = time.monotonic()
        self.has_said = False

    def look(self, _: Sequence[store.StopProgress]) -> None:
        """Look whether the leader has moved."""
        now = read_leadership(self._connection)
        if now != self._seen:
            self._seen, self._moved_at = now, time.monotonic()
        silent = time.monotonic() - self._moved_at
        if not self.has_said and (now.holder is None or silent >= LEADER_SECONDS):
            self.has_said = True
            self._console.print(f"{NOBODY_LEADS} This command waits for it.")


class _CodeWatch:
    """Say once, while a stop waits, which pipelines the code lacks that the `forebay up` of this home runs."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self.said: set[str] = set()

    def look(self, progress: Sequence[store.StopProgress]) -> None:
        """Look at the pipelines that need code, and are not declared."""
        lacking = [row.pipeline for row in progress if row.pipeline not in self.said and _needs_code(row)]
        declared = declared_here(self._settings) if lacking else None
        for name in lacking:
            if declared is not None and name not in declared["pipelines"]:
                self.said.add(name)
                self._console.print(
                    f"{name} is not in the code that forebay up runs here: unless other code has it, no batch of it "
                    f"runs, and it never comes to its end. {_WAY_OUT.format(name)}",
                    markup=False,
                )


def _progress_printer(console: Console) -> Callable[[store.StopProgress], None]:
    """Return a function that prints a pipeline's progress when it has changed; what only passes, not at once."""
    said: dict[str, tuple[str, float]] = {}
    work = OpenWork()

    def tell(progress: store.StopProgress) -> None:
        now, why = progress.state.lower(), ""
        if progress.state is PipelineState.STOPPING:
            is_open, why = work.of(progress)
            now = f"stopping; {is_open}"
        before, at = said.get(progress.pipeline, ("", 0.0))
        is_other = bool(why) or lasting(before) != lasting(now)
        if is_other or (before != now and time.monotonic() - at >= NUMBERS_SECONDS):
            said[progress.pipeline] = now, time.monotonic()
            console.print(f"{progress.pipeline}: {now}{why}", markup=False)

    return tell


def _wait_for_end(home: Path, deadline: float) -> bool:
    while lock_holder(home) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def start(pipeline: Pipeline = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Start stopped pipelines again, and their receivers with them.

    A pipeline that is still stopping continues at once. Nothing is lost in between: records that wait for a batch get
    one; records that the sources kept, or sent elsewhere, meanwhile are up to the sources.

    For example:

        forebay start
        forebay start --pipeline words
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name="forebay start") as connection:
        started = store.start_pipelines(connection, names=None if pipeline is None else [pipeline])
    if as_json:
        typer.echo(json.dumps({"started": started}))
        return
    console.print(f"Started: {', '.join(started)}." if started else "Nothing to start: it runs.", markup=False)
