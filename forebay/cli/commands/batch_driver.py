"""`forebay batch-driver`: a child of the agent, in which Dagster's batch runs execute."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from typing import Annotated

import structlog
import typer

from forebay.cli.instance.dagster_home import LOCATION
from forebay.cli.terminal.failures import clear_errors
from orchestration.declarations.settings import Settings
from tracker_store.connection.engine import create_engine

# Seconds that a run in progress has to end when the agent is gone. After that its batch's next attempt runs it again.
HARD_EXIT_SECONDS = 20.0

log = structlog.get_logger(__name__)


def batch_driver(
    host: Annotated[str | None, typer.Option(help="This host's name (default: its hostname).")] = None,
    location: Annotated[str, typer.Option(help="The Dagster code location whose batch runs it executes.")] = LOCATION,
    agent_line: Annotated[  # noqa: FBT002
        bool, typer.Option("--agent-line", hidden=True, help="Standard input is a socket to the agent.")
    ] = False,
) -> None:
    """Run a batch driver: it executes the batch runs of a code location, and starts Spark before the first of them.

    DAGSTER_HOME names the Dagster instance, FOREBAY_MODULE the module that declares the pipelines. The driver drains
    and exits on SIGTERM or Ctrl-C, and when it should be replaced (new code, many runs, too much memory): then start it
    again. An agent with the role `batch-driver` does all that by itself.

    For example:

        forebay batch-driver
    """
    from orchestration.run_launcher.driver_registration import DriverRegistration  # noqa: PLC0415  for this command

    agent = _AgentPipe() if agent_line else None
    if "" not in sys.path:
        # Import from the working directory, as `python -m` does.
        sys.path.insert(0, "")
    settings = Settings()
    with clear_errors():
        url = settings.require_database_url()
        settings.require_module()
    engine = create_engine(url, application_name="forebay batch driver", pool_size=1)
    # Register before Dagster and Spark load, which takes seconds: a launcher with a run then knows of this driver.
    registration = DriverRegistration(engine, host=host or socket.gethostname(), location=location)
    from orchestration.run_launcher.driver_start import start  # noqa: PLC0415  loads Spark

    # Until Dagster handles signals: a driver that is terminated while it starts still ends its registration.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(signal.SIGTERM + 128))
    began = time.monotonic()
    try:
        started = start(settings, application=f"forebay batch driver {location}")
        from orchestration.run_launcher.batch_driver import BatchDriver  # noqa: PLC0415  loads Dagster
    except BaseException:
        registration.end("it could not start")
        raise
    log.info("Spark started", seconds=round(time.monotonic() - began, 1))
    BatchDriver(
        settings,
        started=started,
        registration=registration,
        drain=threading.Event() if agent is None else agent.drain,
        is_left=threading.Event() if agent is None else agent.is_gone,
        on_ready=_ignore_ready if agent is None else agent.ready,
        ask_for_successor=_no_successor if agent is None else agent.recycle,
    ).run()


def _ignore_ready() -> None:
    """Do nothing: without an agent there is no process to report to."""


def _no_successor(_reason: str) -> bool:
    return False


class _AgentPipe:
    """This process's end of the line to its agent, in the words of `batch_drivers` there. A thread reads."""

    def __init__(self) -> None:
        self.drain = threading.Event()
        self.is_gone = threading.Event()
        self._is_ready = threading.Event()
        threading.Thread(target=self._listen, name="agent line", daemon=True).start()

    def ready(self) -> None:
        """Report that the driver takes runs."""
        self._is_ready.set()
        self._say("ready")

    def recycle(self, reason: str) -> bool:
        """Request a replacement; return whether the request was sent to the agent."""
        return self._say("recycle " + " ".join(reason.split()))

    def _say(self, line: str) -> bool:
        try:
            os.write(0, line.encode() + b"\n")
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        from orchestration.run_launcher.driver_registration import end_at_once  # noqa: PLC0415  as above

        heard = b""
        while data := _read():
            heard += data
            if b"drain\n" in heard:
                break
        else:
            log.warning("the agent is gone, draining")
            self.is_gone.set()
        self.drain.set()
        if not self._is_ready.is_set():
            # There is nothing to drain, and the start would take more seconds.
            end_at_once(0)
        while _read():
            # Wait until the agent is gone: while it lives, the agent limits how long the last run may take.
            continue
        threading.Event().wait(HARD_EXIT_SECONDS)
        end_at_once(1)


def _read() -> bytes:
    """Return what the agent sent, or nothing once the line is closed."""
    try:
        return os.read(0, 4096)
    except OSError:
        return b""
