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

from forebay.cli.dagster_home import LOCATION
from orchestration.settings import Settings
from tracker_store.engine import create_engine

# A run in progress gets so long when the agent is gone; its batch is made again by its next attempt.
HARD_EXIT_SECONDS = 20.0

log = structlog.get_logger(__name__)


def batch_driver(
    host: Annotated[str | None, typer.Option(help="The name of this host; its own unless given.")] = None,
    location: Annotated[str, typer.Option(help="The Dagster code location whose batch runs it takes.")] = LOCATION,
    agent_line: Annotated[  # noqa: FBT002
        bool, typer.Option("--agent-line", hidden=True, help="Standard input is a socket to the agent.")
    ] = False,
) -> None:
    """Run a batch driver: it takes the batch runs of a code location, with Spark started before the first of them.

    DAGSTER_HOME names the Dagster instance, FOREBAY_MODULE the module that declares the pipelines. Drains and ends on
    SIGTERM or Ctrl-C, and when it should be replaced (on new code, after many runs, above a memory mark): whoever runs
    it starts it again. An agent with the role `batch-driver` does all that by itself.
    """
    from orchestration.run_launcher.driver_registration import DriverRegistration  # noqa: PLC0415  for this command

    agent = _AgentLine() if agent_line else None
    if "" not in sys.path:
        # The working directory, as `python -m` has it.
        sys.path.insert(0, "")
    settings = Settings()
    engine = create_engine(settings.require_database_url(), application_name="forebay batch driver", pool_size=1)
    # Before the seconds that Dagster and Spark take: whoever has a run knows that a driver is coming.
    registration = DriverRegistration(engine, host=host or socket.gethostname(), location=location)
    from orchestration.run_launcher.driver_start import start  # noqa: PLC0415  loads Spark

    # Until Dagster takes signals: a driver that is ended while it starts signs off.
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
        on_ready=_nobody if agent is None else agent.ready,
        ask_for_successor=_alone if agent is None else agent.recycle,
    ).run()


def _nobody() -> None:
    """Whom nobody watches tells nobody."""


def _alone(_reason: str) -> bool:
    return False


class _AgentLine:
    """This process's end of the line (receiver_runtime.batch_drivers has the words); a thread listens."""

    def __init__(self) -> None:
        self.drain = threading.Event()
        self.is_gone = threading.Event()
        self._is_ready = threading.Event()
        threading.Thread(target=self._listen, name="agent line", daemon=True).start()

    def ready(self) -> None:
        """It takes runs."""
        self._is_ready.set()
        self._say("ready")

    def recycle(self, reason: str) -> bool:
        """It should be replaced; whether the agent was told."""
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
            # It has nothing to drain, and would go on to start for seconds.
            end_at_once(0)
        while _read():
            # Until the agent itself is gone: it bounds how long the last run may take.
            continue
        threading.Event().wait(HARD_EXIT_SECONDS)
        end_at_once(1)


def _read() -> bytes:
    """What the agent says; nothing at the end of the line."""
    try:
        return os.read(0, 4096)
    except OSError:
        return b""
