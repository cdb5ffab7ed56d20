"""`forebay demo`: send the flights of 2013 through all of Forebay, and compare the totals with the known answer.

This module runs the replay server, the services of `forebay up` for `forebay.demo.pipeline`, and a watch on the driver
log. It never writes to the driver log itself. It uses a separate home, which it empties at each start, and never
touches a Postgres or block store that the user's environment names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import sqlalchemy as sa
import typer
from rich.live import Live

from forebay.cli.services.child import ChildEvent, ChildEventKind, SupervisorError
from forebay.cli.services.private_home import make_home_private
from forebay.cli.services.supervisor import StopReason, StopRequestedError, Supervisor
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError
from forebay.demo import comparison, flights, known_answer, report
from forebay.demo.progress import QUARANTINED, BatchFacts, ProgressSnapshot, Watch, what_is_stuck
from forebay.demo.replay_process import ReplayFailedError, ReplayProcess
from orchestration.declarations.modules import PipelineModuleError
from orchestration.tracker.http.listen_address import ListenAddressError
from receiver_runtime.block_store.frames.errors import BlockStoreError
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.reports import status

if TYPE_CHECKING:
    from datetime import timedelta

    from forebay.cli.commands.up import Services

MODULE = "forebay.demo.pipeline"
PIPELINE = "flights_by_carrier"
STREAM = "flights"
# The outputs, and their directories.
DELAYS = "departure_delays"
RUNNING = "running_totals"

_MARKER = "forebay-demo-home"
_KEPT = frozenset({_MARKER, "supervisor.lock"})
_TICK_SECONDS = 0.5
_LINE_SECONDS = 5.0
_LOG_WIDTH = 250
# These name the user's own services: the demo starts its own, and must not touch those.
_NOT_INHERITED = ("FOREBAY_DATABASE_URL", "FOREBAY_BLOCK_STORE")


class StoppedError(CommandError):
    """Told to stop before the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Hold the options. rate: lines/s, 0 = no limit; deadline: seconds; ui_port: None = 3000 or a free port."""

    home: Path
    rate: float = 5600.0
    deadline: float = 600.0
    ui_port: int | None = None
    keep_running: bool = False
    as_json: bool = False


StartReplay = Callable[[float], AbstractContextManager[ReplayProcess]]
StartServices = Callable[
    [int | None, Mapping[str, str], Callable[[ChildEvent], None]], AbstractContextManager["Services"]
]
TakeLook = Callable[[ReplayProcess, float], ProgressSnapshot]


def demo(
    rate: Annotated[
        float, typer.Option(min=0, help="Lines sent per second; 0 = as fast as the receiver takes them.")
    ] = 5600.0,
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds after which the demo gives up and says what is stuck.")
    ] = 600.0,
    ui_port: Annotated[
        int | None, typer.Option(help="Port of the Dagster UI; 3000 if that is free, else any free one.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Folder for everything that the demo creates, emptied at each start (default: .forebay/demo)."
        ),
    ] = None,
    keep_running: Annotated[  # noqa: FBT002  an option by its name
        bool, typer.Option("--keep-running", help="After the result, keep everything running until Ctrl-C.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002  an option by its name
        bool,
        typer.Option("--json", help="The result as one JSON object on standard output; the rest on standard error."),
    ] = False,
) -> None:
    """Run 336,776 real flights through all of Forebay, and check the totals.

    A small server sends the flights of 2013 from New York over TCP; a receiver stores them as blocks; every
    10 seconds a batch goes through PySpark in Dagster; the totals of the Parquet output, and a running total per
    carrier that each batch adds to, are compared with the known answer. Sending alone takes a minute. The exit code
    is 0 only if everything agrees exactly.

    For example:

        forebay demo
        forebay demo --rate 2000 --keep-running
    """
    default_home = Path(os.environ.get("FOREBAY_HOME", ".forebay")) / "demo"
    options = DemoOptions(
        home=(home or default_home).expanduser().absolute(),
        rate=rate,
        deadline=deadline,
        ui_port=ui_port,
        keep_running=keep_running,
        as_json=as_json,
    )
    raise typer.Exit(run(options))


def run(
    options: DemoOptions,
    *,
    start_replay: StartReplay | None = None,
    start_services: StartServices | None = None,
    take_look: TakeLook | None = None,
    clock: Callable[[], float] = time.monotonic,
    console: Console | None = None,
) -> int:
    """Run the whole demo; return the exit code: 0 agrees, 1 differs or failed, 128 + N on signal N (Ctrl-C: 130)."""
    console = console or _console(options)
    started = clock()
    try:
        empty_home(options.home)
        with contextlib.ExitStack() as parts:
            replay = parts.enter_context((start_replay or _start_replay)(options.rate))
            host, port = replay.wait_listening()
            output = options.home / "output" / PIPELINE
            environment = demo_environment(options.home, host, port, output)
            console.print(f"The flights wait at {host}:{port}; everything the demo makes is in {options.home}")
            services = parts.enter_context(
                (start_services or _start_services)(
                    options.ui_port, environment, _event_printer(console, lambda: clock() - started)
                )
            )
            console.print(f"Dagster: {services.ui_link(console)}", soft_wrap=True)
            if take_look is None:
                take_look = parts.enter_context(contextlib.closing(DriverLogLook(services.database_url)))
            watch = _watch(
                services,
                replay,
                options,
                take_look,
                lambda: clock() - started,
                console,
            )
            result = comparison.compare(
                comparison.published_totals(comparison.read_published(output / DELAYS)),
                comparison.expected_totals(flights.read_flights()),
                comparison.running_totals(comparison.read_running(output / RUNNING)),
            )
            timings = watch.timings()
            console.print(report.comparison_table(result))
            console.print(report.timings_table(timings))
            console.print(report.verdict(result), style="green" if result.same else "bold red")
            if watch.last is not None and not result.same:
                console.print(what_is_stuck(watch.last))
            if options.keep_running:
                console.print(f"Dagster: {services.ui_link(console)} - all keeps running until Ctrl-C.")
                services.wait(None)
            console.print("Stopping all services.")
        console.print("All services are stopped.")
        if options.as_json:
            _write_json(report.as_json(result, timings))
    except StoppedError as stopped:
        console.print(f"Stopped by {stopped}; all services are stopped.")
        return 128 + stopped.number
    except (KeyboardInterrupt, StopRequestedError):
        console.print("Stopped; all services are stopped.")
        return 128 + signal.SIGINT
    except (
        BlockStoreError,
        CommandError,
        DriverLogError,
        ListenAddressError,
        PipelineModuleError,
        ReplayFailedError,
        SupervisorError,
    ) as error:
        message = str(error) or (type(error).__doc__ or "")
        console.print(message, style="bold red", markup=False)
        if options.as_json:
            _write_json({"same": False, "error": message})
        return 1
    return result.exit_code


def _write_json(result: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def empty_home(home: Path) -> None:
    """Create `home`, or empty it if a demo created it; first end the processes that an earlier demo left running.

    Raises CommandError if it holds anything else, SupervisorError if a demo is running in it.
    """
    if home.exists() and not (home / _MARKER).is_file() and any(home.iterdir()):
        message = f"{home} holds things that the demo did not make, so it is left as it is; name another by --home"
        raise CommandError(message)
    make_home_private(home)
    (home / _MARKER).touch()
    # Entering it takes the lock and ends what a killed demo left behind.
    with Supervisor(home):
        for entry in home.iterdir():
            if entry.name in _KEPT:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def demo_environment(home: Path, host: str, port: int, output: Path) -> dict[str, str]:
    """Return the environment variables that the demo's services and its pipeline module read."""
    return {
        "FOREBAY_HOME": str(home),
        "FOREBAY_MODULE": MODULE,
        "FOREBAY_DEMO_HOST": host,
        "FOREBAY_DEMO_PORT": str(port),
        "FOREBAY_DEMO_OUTPUT": str(output),
    }


@contextlib.contextmanager
def process_environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add `added` to this process's environment, and hide the user's own services, while the context is entered.

    The services are built from the environment, and their processes inherit it.
    """
    before = dict(os.environ)
    for name in _NOT_INHERITED:
        os.environ.pop(name, None)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class DriverLogLook:
    """Looks at the driver log and the replay server; called once per tick."""

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(database_url, application_name="forebay demo", pool_size=1)

    def close(self) -> None:
        """Close its connection."""
        self._engine.dispose()

    def __call__(self, replay: ReplayProcess, at: float) -> ProgressSnapshot:
        """Take one look. Raises DriverLogError or SQLAlchemy's errors if the driver log does not answer."""
        # Before the driver log, so that "all was sent" is never combined with an older count of received records.
        sent = replay.progress()
        with connect(self._engine) as connection:
            receivers = [row for row in status.receiver_status(connection) if row.stream == STREAM]
            batches = [row for row in status.batch_stats(connection, limit=10_000) if row.pipeline == PIPELINE]
            waiting = [row for row in status.stream_lag(connection) if row.pipeline == PIPELINE]
        return ProgressSnapshot(
            at=at,
            expected=known_answer.ROWS,
            replay_state=str(sent.state),
            replayed=sent.lines,
            replay_seconds=sent.seconds,
            receiver_state=receivers[0].state if receivers else "",
            receiver_reason=receivers[0].reason if receivers else "",
            received=sum(row.records for row in receivers),
            blocks=sum(row.blocks for row in batches) + sum(row.waiting_blocks for row in waiting),
            batches=[
                BatchFacts(
                    time=row.batch_time,
                    state=row.state,
                    records=row.records,
                    attempts=row.attempt,
                    scheduling_delay=_seconds(row.scheduling_delay),
                    processing_time=_seconds(row.processing_time),
                    error=row.reason,
                )
                for row in sorted(batches, key=lambda row: row.batch_time)
            ],
        )


def _console(options: DemoOptions) -> Console:
    console = Console(stderr=options.as_json, highlight=False)
    # Without a terminal no width limits the output: each report of progress stays on one line.
    return console if console.is_terminal else Console(stderr=options.as_json, highlight=False, width=_LOG_WIDTH)


def _start_replay(rate: float) -> AbstractContextManager[ReplayProcess]:
    return ReplayProcess(rate=rate)


@contextlib.contextmanager
def _start_services(
    ui_port: int | None, environment: Mapping[str, str], on_event: Callable[[ChildEvent], None]
) -> Iterator[Services]:
    """Start what `forebay up` starts, for the demo's pipeline; on leaving, stop everything."""
    from forebay.cli.commands.up import Services  # noqa: PLC0415  loads many modules that are not needed before
    from orchestration.declarations.settings import Settings  # noqa: PLC0415

    with (
        process_environment(environment),
        Services(Settings(), ui_port=ui_port, on_event=on_event) as services,
    ):
        yield services


def _event_printer(console: Console, now: Callable[[], float]) -> Callable[[ChildEvent], None]:
    """Return a function that prints which service starts, is ready, is restarted, or was given up."""
    words = {
        ChildEventKind.STARTED: "starting {name}",
        ChildEventKind.READY: "{name} is ready",
        ChildEventKind.RESTARTING: "{name} {detail}",
        ChildEventKind.FAILED: "{name} was given up: {detail}",
    }

    def print_event(event: ChildEvent) -> None:
        text = words.get(event.kind)
        if text is not None:
            sentence = text.format(name=event.name, detail=event.detail)
            console.print(f"{report.minutes(now())}  {sentence}", markup=False, soft_wrap=True)

    return print_event


def _watch(
    services: Services,
    replay: ReplayProcess,
    options: DemoOptions,
    take_look: TakeLook,
    now: Callable[[], float],
    console: Console,
) -> Watch:
    """Show the progress until the demo is over.

    Raises CommandError, StoppedError.
    """
    watch = Watch()
    next_line = 0.0
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(console=console, refresh_per_second=4)) if console.is_terminal else None
        while True:
            at = now()
            # A driver log that doesn't answer for a while (during a restart, say) ends nothing: only the deadline does.
            with contextlib.suppress(DriverLogError, sa.exc.SQLAlchemyError):
                look = take_look(replay, at)
                over = watch.see(look)
                if live is not None:
                    live.update(report.progress_view(look, services.ui_link(console)))
                elif at >= next_line or over:
                    next_line = at + _LINE_SECONDS
                    console.print(report.progress_line(look), markup=False)
                if look.count(QUARANTINED):
                    message = f"A batch was given up: {what_is_stuck(look)}. Logs: {options.home}/logs"
                    raise CommandError(message)
                if over:
                    return watch
            if now() >= options.deadline:
                stuck = what_is_stuck(watch.last)
                message = f"Not done after {options.deadline:.0f} s: {stuck}. Logs: {options.home}/logs"
                raise CommandError(message)
            reason = services.wait(_TICK_SECONDS)
            if reason is not None:
                raise _stopped_by(reason, options)


def _stopped_by(reason: StopReason, options: DemoOptions) -> CommandError:
    if reason.failed_child is not None:
        name = reason.failed_child
        return CommandError(f"{name} was given up after its restarts. Its log: {options.home}/logs/{name}.log")
    return StoppedError(reason.signal or signal.SIGTERM)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
