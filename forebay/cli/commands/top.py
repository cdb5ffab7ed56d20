"""`forebay top`: a live screen of streams, pipelines, batches and receivers; q ends it.

It only reads, and waits at least ten times as long as reading took, so that it costs the driver log little.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from forebay.cli.instance.database import driver_log_engine
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.row_json import to_json
from forebay.cli.terminal.top_screen import Snapshot, draw, report
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import TRANSIENT
from tracker_store.reports import status as store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

APPLICATION = "forebay top"
_LEAST_SECONDS = 0.5
_COST_FACTOR = 10  # it waits this many times as long as reading took
_LONGEST_PAUSE_SECONDS = 10.0  # between two attempts, while the driver log is unavailable
_KEY_SECONDS = 0.1
_BATCHES = 20
_LINES_OF_A_PAGE = 60  # of the one that is printed where there is no terminal
_QUIT = b"q"


def top(
    interval: Annotated[
        float, typer.Option(min=_LEAST_SECONDS, help="Seconds between two looks; more if reading takes long.")
    ] = 2.0,
    once: Annotated[  # noqa: FBT002
        bool, typer.Option("--once", help="Print the screen once, as where the output is no terminal.")
    ] = False,
    as_one_object: Annotated[bool, typer.Option("--json", help="One JSON object, once.")] = False,  # noqa: FBT002
) -> None:
    """Show streams, pipelines, batches and receivers, live. q, or Ctrl-C, ends it.

    Rates are of the time between two looks. What needs attention comes first, in red; rows that find no room are
    counted. "run": receivers that run, of all; "dead": records that could not be processed; "lag": the age of the
    oldest block that waits for a batch; "open": batches that are not finished; "done" and "block": how long ago.

    For example:

        forebay top --interval 5
        forebay top --json | jq '.streams[] | {stream, records_per_second}'
    """
    console = Console(highlight=False)
    errors = Console(highlight=False, stderr=True, soft_wrap=True)
    with driver_log_engine(errors, application_name=APPLICATION) as engine:
        try:
            before = _look(engine)
            if once or as_one_object or not console.is_terminal:
                time.sleep(interval)
                now = _look(engine)
                if as_one_object:
                    typer.echo(to_json(report(before, now)))
                else:
                    console.print(draw(before, now, height=_LINES_OF_A_PAGE, keys=False))
                return
            _Screen(engine, console, interval).run(before)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _look(engine: sa.Engine) -> Snapshot:
    """Read everything that the screen shows. Raises as `connect`."""
    with connect(engine) as connection:
        lags = store.stream_lag(connection)
        pipelines = store.pipeline_status_with(connection, lags)
        batches = store.batch_stats(connection, limit=_BATCHES)
        receivers = store.receiver_status(connection)
        # At the end: the totals that rates are made of were read last.
        return Snapshot(time.monotonic(), datetime.now(UTC), receivers, lags, pipelines, batches)


class _Screen:
    """Draw until a key ends it, while a thread reads: a driver log that hangs keeps no key from working."""

    def __init__(self, engine: sa.Engine, console: Console, interval: float) -> None:
        self._engine = engine
        self._console = console
        self._interval = interval
        self._stopping = threading.Event()
        # Guards what follows.
        self._lock = threading.Lock()
        self._newest: Snapshot | None = None
        self._note = ""
        self._failure: BaseException | None = None

    def run(self, first: Snapshot) -> None:
        """Show the screen until q. Raises what kept the thread from reading, unless that may pass."""
        before, now, shown = None, first, ""
        size = self._console.size
        threading.Thread(target=self._read, name="reading for forebay top", daemon=True).start()
        try:
            with _keys() as pressed, Live(console=self._console, screen=True, auto_refresh=False) as live:
                live.update(draw(before, now, height=size.height), refresh=True)
                while not pressed():
                    with self._lock:
                        newest, note, failure = self._newest, self._note, self._failure
                    if failure is not None:
                        raise failure
                    if newest is not None and newest is not now:
                        before, now = now, newest
                    elif (note, self._console.size) == (shown, size):
                        continue
                    shown, size = note, self._console.size
                    live.update(draw(before, now, height=size.height, note=note), refresh=True)
        finally:
            self._stopping.set()

    def _read(self) -> None:
        pause = self._interval
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                found = _look(self._engine)
            except TRANSIENT as error:
                with self._lock:
                    self._note = f"The driver log does not answer: {error}"
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            except BaseException as error:  # noqa: BLE001  the main thread raises it
                with self._lock:
                    self._failure = error
                return
            pause = max(self._interval, _COST_FACTOR * (time.monotonic() - began))
            with self._lock:
                self._newest, self._note = found, ""


class _Keys:
    """Tell whether q was pressed, within a moment."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self) -> bool:
        if self._descriptor is None:
            time.sleep(_KEY_SECONDS)
            return False
        ready, _, _ = select.select([self._descriptor], [], [], _KEY_SECONDS)
        if not ready:
            return False
        data = os.read(self._descriptor, 64)
        if not data:
            # The terminal is gone.
            return True
        return _QUIT in data.lower()


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Let single keys through while the screen is shown; put the terminal back as it was."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
