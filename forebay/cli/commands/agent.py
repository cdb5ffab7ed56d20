"""`forebay agent`, and the hidden command `forebay tracker`, which it starts as a child."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance.withheld import FROM_YOUR_CODE, from_receivers, from_tracker
from forebay.cli.services.child import SupervisorError
from forebay.cli.services.parent_pipe import stop_event
from forebay.cli.services.private_home import make_home_private
from forebay.cli.terminal.failures import CommandError, clear_errors
from orchestration.declarations.settings import Settings
from orchestration.tracker.http.listen_address import listen_address
from tracker_store.connection.engine import create_engine
from tracker_store.host.log_files import LogRoller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestration.tracker.tracker import Tracker

ROLES = ("receivers", "tracker", "batch-driver")
# Without batch-driver: that role needs a Dagster instance (DAGSTER_HOME), so it must be requested by --roles.
DEFAULT_ROLES = ("receivers", "tracker")
DEFAULT_SLOTS = 16
# How long to wait for the pusher's thread at a stop: a request to Dagster in flight times out after 5 s.
PUSHER_STOP_SECONDS = 6.0


def _roles(value: str) -> list[str]:
    roles = [role.strip() for role in value.split(",") if role.strip()]
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        message = f"{value!r}: give one or more of {', '.join(ROLES)}, separated by commas"
        raise typer.BadParameter(message)
    return roles


def agent(
    host: Annotated[str | None, typer.Option(help="This host's name (default: its hostname).")] = None,
    slots: Annotated[int, typer.Option(min=0, help="The most receivers that may run on this host.")] = DEFAULT_SLOTS,
    roles: Annotated[
        str, typer.Option(help="What runs here: receivers, tracker, batch-driver, separated by commas.")
    ] = ",".join(DEFAULT_ROLES),
    receivers_per_process: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="FOREBAY_RECEIVERS_PER_PROCESS",
            help="How many receivers may share a process. 1 isolates each. Up to a few hundred suit many small "
            "receivers; if one of them crashes the process, all of them stop for a moment. Default: 1 for up to 16 "
            "receivers on the host; with more, as many as keep it at 16 processes.",
        ),
    ] = None,
    spare: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            help="Keep one process loaded and waiting (about 90 MB), so that a receiver restarts within a second.",
        ),
    ] = True,
    batch_drivers: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="FOREBAY_BATCH_DRIVERS",
            help="How many batch drivers run here, with the role batch-driver: each has Spark and runs one batch at a "
            "time. 0: each batch starts its own process.",
        ),
    ] = 1,
    parent_pipe: Annotated[  # noqa: FBT002
        bool, typer.Option("--parent-pipe", hidden=True, help="Stop at the end of standard input.")
    ] = False,
    withhold_from_receivers: Annotated[
        str, typer.Option(hidden=True, help="Variables that receivers do not get, separated by commas.")
    ] = "",
) -> None:
    """Run this host's agent: it starts, watches and restarts the receivers that are placed here.

    Run one agent per host. Of all agents with the role `tracker`, one leads. The agent stops on SIGTERM or Ctrl-C,
    after its receivers have drained.

    For example:

        forebay agent
        forebay agent --roles receivers --slots 8
    """
    from receiver_runtime.agent.agent import Agent, AgentSettings  # noqa: PLC0415  other commands need none of it
    from receiver_runtime.agent.batch_drivers import BatchDrivers  # noqa: PLC0415
    from receiver_runtime.agent.left_processes import LeftProcesses  # noqa: PLC0415
    from receiver_runtime.agent.service_manager import ServiceManager  # noqa: PLC0415
    from receiver_runtime.agent.store_attachment import attach  # noqa: PLC0415
    from receiver_runtime.block_store.frames.encryption import check_block_key  # noqa: PLC0415

    settings = Settings()
    wanted = _roles(roles)
    if "batch-driver" in wanted:
        with clear_errors():
            settings.require_module()
    if "tracker" in wanted:
        # Report a wrong address here, once: the tracker is a child, and would log it at every restart.
        with clear_errors():
            listen_address(settings.tracker_http, settings.tracker_token, settings.tracker_write_token)
    with clear_errors():
        url = settings.require_database_url()
    stop = stop_event(parent_pipe=parent_pipe)
    engine = create_engine(url, application_name="forebay agent")
    here = host or socket.gethostname()
    has_receivers = "receivers" in wanted and slots > 0
    if has_receivers:
        # Report it here, once: each receiver would be FAILED for the same reason.
        with clear_errors():
            check_block_key(settings.block_key)
            attach(engine, host=here, block_store=settings.block_store_roots, stop=stop)
    command = [sys.executable, "-m", "forebay.cli"]

    def receiver_command(receivers: Sequence[tuple[int, int]]) -> list[str]:
        pairs = [word for pair in receivers for word in ("--receiver", "{}:{}".format(*pair))]
        return [*command, "receiver", "--host", here, *pairs]

    with clear_errors():
        try:
            make_home_private(settings.home)
        except SupervisorError as error:
            raise CommandError(str(error)) from error
    log_directory = Path(settings.home) / "logs"
    roller = LogRoller(log_directory).start()
    Agent(
        engine,
        AgentSettings(
            name=here,
            host=here,
            slots=slots if has_receivers else 0,
            receiver_command=receiver_command,
            role_commands={"tracker": [*command, "tracker"]} if "tracker" in wanted else {},
            log_directory=log_directory,
            receivers_per_process=receivers_per_process,
            spare_command=[*command, "receiver", "--host", here, "--spare"]
            if spare and "receivers" in wanted
            else None,
            withheld_from_receivers=from_receivers(settings, filter(None, withhold_from_receivers.split(","))),
            withheld_from_roles=from_tracker(settings),
        ),
        batch_drivers=BatchDrivers(
            [*command, "batch-driver", "--agent-line", "--host", here],
            log_directory,
            wanted=batch_drivers,
            preparation=[sys.executable, "-m", "orchestration.spark.session.class_archive"]
            if settings.class_archive
            else None,
            withheld=FROM_YOUR_CODE,
        )
        if "batch-driver" in wanted
        else None,
        left_processes=LeftProcesses(Path(settings.home) / "run" / "agent.processes", host=here),
        service_manager=ServiceManager.taken_from(os.environ),
    ).run(stop)
    roller.stop()
    engine.dispose()


def tracker() -> None:
    """Run a tracker, as a child of the agent: it leads if no other tracker does, and then places receivers.

    It serves /health, /ready, /metrics and a JSON API at the address in FOREBAY_TRACKER_HTTP.
    """
    from orchestration.batches.attached_store import open_attached_store  # noqa: PLC0415
    from orchestration.batches.noted_replicas import report_noted_replicas  # noqa: PLC0415
    from orchestration.declarations.project_code import CodeCopies  # noqa: PLC0415
    from orchestration.tracker.clean_up.cleaner import Cleaner  # noqa: PLC0415
    from orchestration.tracker.clean_up.link_cleaner import LinkCleaner  # noqa: PLC0415
    from orchestration.tracker.http.http import (  # noqa: PLC0415
        STATEMENT_TIMEOUT,
        PageContent,
        TrackerHttpServer,
        TrackerView,
    )
    from orchestration.tracker.http.http_writes import ReplayDagster  # noqa: PLC0415
    from orchestration.tracker.placement_rules import PlacementRules  # noqa: PLC0415
    from orchestration.tracker.tracker import Tracker  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store  # noqa: PLC0415

    settings = Settings()
    # Report a wrong setting now, and not at the first clean-up.
    open_block_store(settings.block_store_roots)
    with clear_errors():
        address = listen_address(settings.tracker_http, settings.tracker_token, settings.tracker_write_token)
    stop = stop_event(parent_pipe=True)
    engine = create_engine(settings.require_database_url(), application_name="forebay tracker")
    candidate = Tracker(
        engine,
        heartbeat_limit_seconds=settings.heartbeat_limit_seconds,
        cleaner=Cleaner(
            partial(open_attached_store, block_store=settings.block_store_roots),
            before=partial(report_noted_replicas, block_store=settings.block_store_roots),
            history=settings.history_retention,
        ),
        link_cleaner=LinkCleaner(),
        placement=PlacementRules.of(settings),
    )
    with ExitStack() as serving:
        if address is not None:
            # A separate connection pool: HTTP clients can't delay the tracker's tick.
            reading = create_engine(
                settings.require_database_url(),
                application_name="forebay tracker http",
                pool_size=4,
                statement_timeout=STATEMENT_TIMEOUT,
            )
            serving.callback(reading.dispose)
            view = TrackerView(candidate.name, lambda: candidate.term, candidate.lease_ages)
            serving.enter_context(
                TrackerHttpServer(
                    reading,
                    view,
                    address,
                    address_file=settings.home / "run" / "tracker.url",
                    content=PageContent(
                        settings.metrics_max_receivers,
                        None if settings.dagster_url is None else settings.dagster_url.name,
                        CodeCopies(settings.home).state,
                        None
                        if settings.dagster_url is None
                        else ReplayDagster(
                            settings.dagster_url.reveal(), settings.dagster_url.name, settings.webserver_token
                        ),
                    ),
                )
            )
        if settings.dagster_url is not None:
            serving.enter_context(_pushing(settings, settings.dagster_url.reveal(), candidate, stop))
        candidate.run(stop)
    engine.dispose()


@contextmanager
def _pushing(settings: Settings, dagster_url: str, candidate: Tracker, stop: threading.Event) -> Iterator[None]:
    """Push batches while the candidate leads, in a separate thread with its own connection."""
    from orchestration.dagster_instance.dagster_client import DagsterClient  # noqa: PLC0415
    from orchestration.tracker.batch_pusher import BatchPusher  # noqa: PLC0415  other commands need none of it

    engine = create_engine(settings.require_database_url(), application_name="forebay batch pusher", pool_size=1)
    pusher = BatchPusher(engine, DagsterClient(dagster_url, token=settings.webserver_token), name=candidate.name)
    thread = threading.Thread(target=pusher.run, args=(stop, lambda: candidate.term), name="batch pusher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PUSHER_STOP_SECONDS)
        engine.dispose()
