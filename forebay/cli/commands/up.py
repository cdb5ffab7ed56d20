"""`forebay up`: run everything on one machine; Ctrl-C stops it cleanly, with `--drain` when all is processed.

This module defines the children (Postgres unless you name one, an agent, Dagster's code server, daemon and webserver)
and the order in which they start; the supervisor starts, restarts and stops them. Your declarations are applied before
any child reads them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from forebay.cli.checks.block_directory import check_roots
from forebay.cli.checks.code_watch import OTHER, REMOVED, CodeWatch
from forebay.cli.checks.problem_watch import ProblemWatch
from forebay.cli.checks.process_watch import ProcessWatch
from forebay.cli.commands.agent import DEFAULT_SLOTS, ROLES
from forebay.cli.commands.apply import print_changes
from forebay.cli.commands.drain import DrainResult, drain_pipelines
from forebay.cli.commands.stop import left_behind
from forebay.cli.instance.dagster_home import (
    DATABASE_VARIABLE,
    LOCATION,
    TOKEN_FILE,
    URL_FILE,
    code_server_socket,
    dagster_database_url,
    ensure_dagster_schema,
    webserver_token,
    write_dagster_home,
)
from forebay.cli.instance.database import embedded_postgres
from forebay.cli.instance.withheld import (
    BLOCK_STORE,
    DAGSTER_TOKEN,
    FROM_YOUR_CODE,
    from_dagsters_services,
    only_of_outputs,
)
from forebay.cli.services.child import Child, ChildEvent, ChildEventKind, SupervisorError
from forebay.cli.services.held_port import HOST, held_port
from forebay.cli.services.supervisor import StopReason, StopRequestedError, Supervisor
from forebay.cli.terminal.console import Console, printed_link
from forebay.cli.terminal.failures import CommandError, clear_errors
from orchestration.declarations.apply import Change, absent_pipelines, apply, difference, refuse, rename_hints
from orchestration.declarations.asked_targets import PAUSED, ask_targets
from orchestration.declarations.compatibility import declared
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.modules import PipelineModuleError, load_pipelines
from orchestration.declarations.project_file import project_definitions
from orchestration.declarations.questions import NOTHING_DECIDED, Decided, mistyped_stops, undecided
from orchestration.declarations.settings import NO_TOKEN, Settings
from orchestration.tracker.http.listen_address import ListenAddressError, checked_token, listen_address
from orchestration.tracker.http.status_address import asked_for, forget_served, is_served, status_page
from receiver_runtime.block_store.frames.encryption import check_block_key
from receiver_runtime.block_store.frames.errors import BlockStoreError
from tracker_store.batches.pipeline_states import all_ended, start_pipelines, stop_progress
from tracker_store.batches.pipelines import declared_versions, list_pipelines, list_streams
from tracker_store.batches.run_queue import has_ready_driver, has_waiting_run
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError, SharedPlaceError, StrandingChangeError, sentence
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.host.code_in_force import CODE_VARIABLE
from tracker_store.host.log_files import LogRoller
from tracker_store.install import migrate
from tracker_store.server.embedded_postgres import EmbeddedPostgres, StopMode
from tracker_store.server.services_login import SERVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline

CODE_SERVER = "dagster-code-server"
DEFAULT_UI_PORT = 3000
# Long, because a crash recovery that is interrupted starts again from its beginning the next time.
POSTGRES_READY_SECONDS = 600.0
# Long, because on a cold machine Dagster compiles and imports for a while.
DAGSTER_READY_SECONDS = 180.0
AGENT_STOP_SECONDS = 45.0
# Time for the agent's children to end if the agent has ended on its own. Receivers need less to drain; a batch that
# takes longer is run again by its next attempt.
AGENT_LEFT_SECONDS = 5.0
# Seconds between two checks whether `forebay stop` has stopped everything, and for how long that must be so before
# `forebay up` exits: `forebay stop` still reads its result from the driver log.
STOP_POLL_SECONDS = 1.0
ENDS_AFTER_SECONDS = 2.0
# Unless --slots says otherwise: a receiver's process takes about 80 MB.
MOST_SLOTS = 64


def _accepts(path: Path) -> Callable[[], bool]:
    def ready() -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            return True

    return ready


def _answers(url: str, token: str | None) -> Callable[[], bool]:
    request = urllib.request.Request(url)  # noqa: S310  our own address
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")

    def ready() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310  our own address
                return bool(answer.status == 200)  # noqa: PLR2004
        except urllib.error.URLError:
            return False

    return ready


# How long, in seconds, `forebay up` waits for the tracker's page: it takes a second when the port is free.
_PAGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Running:
    """Name a pipeline of the code in force, and its interval."""

    name: str
    interval: timedelta


def _running(declared: Mapping[str, Any]) -> list[_Running]:
    return [
        _Running(name, timedelta(milliseconds=found["interval_ms"])) for name, found in declared["pipelines"].items()
    ]


def _disagreement(connection: sa.Connection, declared: Mapping[str, Any], version: str) -> str:
    """Return what a person has done to the driver log that has not all that is declared; empty: it has all."""
    pipelines = {row.name: row.declaration for row in list_pipelines(connection)}
    streams = {row.name: row.declaration for row in list_streams(connection)}
    removed = sorted(declared["pipelines"].keys() - pipelines.keys())
    is_other = any(one != declared["pipelines"].get(name, one) for name, one in pipelines.items()) or any(
        # The streams of a removed pipeline may be removed too.
        streams.get(name, one if removed else None) != one
        for name, one in declared["streams"].items()
    )
    return " ".join([*map(REMOVED.format, removed), *([OTHER.format(version)] if is_other else [])])


def _all_left_behind(connection: sa.Connection) -> list[str]:
    """Return what has not come out of all pipelines, which are stopped."""
    rows = stop_progress(connection, [row.name for row in list_pipelines(connection)])
    return [line for row in rows for line in left_behind(row)]


def _is_driver_awaited(connection: sa.Connection) -> bool:
    """Return whether no driver of this installation is ready, or a run waits that none has taken yet."""
    return has_waiting_run(connection, location=LOCATION) or not has_ready_driver(connection, location=LOCATION)


class StartRefusedError(CommandError):
    """Say why nothing is applied and started, and what would be: a driver log that only runs then can't be asked."""

    def __init__(self, why: str, changes: list[Change]) -> None:
        """Take the difference between code and driver log as `changes`."""
        super().__init__(f"Nothing was started. {why}")
        self.changes = changes


def apply_at_start(
    connection: sa.Connection,
    pipelines: Sequence[Pipeline],
    tell: Callable[[str], None],
    *,
    decided: Decided = NOTHING_DECIDED,
    command: str = "forebay up",
) -> tuple[list[Change], str]:
    """Apply what is declared before anything runs; `tell` is called as `Services` does, `command` takes the decisions.

    Returns what that changes, and what is not applied, as text: a pipeline of which a table needs a step receives as it
    was declared before, and makes no batches, because each would fail.

    Raises StartRefusedError, and writes nothing, if it is refused, or if a person must decide first.
    """
    changes = difference(connection, pipelines)
    for line in (*rename_hints(connection, pipelines), *mistyped_stops(connection, changes, decided)):
        tell(line)
    try:
        refuse(connection, pipelines)
        if unclear := undecided(connection, pipelines, changes, decided, command):
            raise StartRefusedError(unclear, changes)
        for line in absent_pipelines(connection, pipelines):
            tell(line)
        targets = ask_targets(connection, pipelines)
        for line in (*targets.unasked, *targets.unlooked):
            tell(line)
        # A person applies no output that its target refuses; a start, maybe with no person there, runs all others.
        for line in targets.refused:
            tell(f"{line} Until then its batches wait (BLOCKED), and all else runs.")
        held = {output.pipeline.name for output in targets.steps}
        waits = " ".join([*targets.steps.values(), PAUSED]) if held else ""
        return apply(connection, [pipeline for pipeline in pipelines if pipeline.name not in held]), waits
    except (DeclarationError, SharedPlaceError, StrandingChangeError) as error:
        said = sentence(str(error))
        before = " To run these commands, start with the code as it was before." if "`forebay " in said else ""
        raise StartRefusedError(f"{said}{before}", changes) from error


class Services:
    """Run the services of one home while the context is entered. For the main thread: it handles signals."""

    def __init__(
        self,
        settings: Settings,
        *,
        ui_port: int | None = None,
        on_event: Callable[[ChildEvent], None] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        watches: bool = True,
        slots: int | None = None,
        decided: Decided = NOTHING_DECIDED,
    ) -> None:
        """Prepare them; nothing starts before the context is entered.

        Args:
            settings: this installation's; its module's declarations are applied.
            ui_port: the Dagster UI's; None: 3000 if that is free, else any free one.
            on_event: called for each start, readiness and restart of a child.
            tell: called with a line for people: code that was changed, a process that ended unasked, or what became
                wrong in the system.
            watches: whether changed files take effect by themselves, or by `forebay apply` alone.
            slots: how many receivers may run; None: as many as are declared, at least 16 and at most `MOST_SLOTS`.
            decided: what a start would ask a person.
        """
        self._settings = settings
        self._wanted_ui_port = ui_port
        self._ui_port = 0
        self._supervisor = Supervisor(settings.home, on_event)
        self._stack = ExitStack()
        self._database_url = None if settings.database_url is None else settings.database_url.reveal()
        self._token: str | None = None
        self._pipelines: list[_Running] = []
        self._tell = tell
        self._problems = ProblemWatch(tell)
        self._processes = ProcessWatch(tell, location=LOCATION)
        self._watches = watches
        self._slots = slots
        self._decided = decided
        #: How many receivers are declared, when the services start.
        self.receivers = 0
        self._code: CodeWatch | None = None
        self._applied: dict[tuple[str, int], int] = {}
        self.changes: list[Change] = []

    def ui_link(self, console: Console) -> str:
        """Return the address of the Dagster UI as a line on this console says it: with its token on a terminal only."""
        if self._token is None:
            return self._webserver_url
        of_user = self._settings.dagster_token is not None
        kept_in = DAGSTER_TOKEN if of_user else str(self._settings.home.absolute() / "dagster" / TOKEN_FILE)
        return printed_link(console, f"{self._webserver_url}/", self._token, kept_in=kept_in)

    @property
    def _webserver_url(self) -> str:
        return f"http://{HOST}:{self._ui_port}"

    @property
    def database_url(self) -> str:
        """Return the driver log's address. The embedded server's is known once it runs."""
        if self._database_url is None:
            message = "the services have not been started"
            raise RuntimeError(message)
        return self._database_url

    @property
    def slots(self) -> int:
        """Return how many receivers may run at most."""
        return min(max(self.receivers, DEFAULT_SLOTS), MOST_SLOTS) if self._slots is None else self._slots

    def wait(self, timeout: float | None = None) -> StopReason | None:
        """Wait until a signal arrives or a service is given up; return None after `timeout` seconds without either."""
        return self._supervisor.wait(timeout)

    def wait_for_stop(self) -> StopReason | None:
        """Wait as `wait` does, without a timeout; return None when `forebay stop` has stopped everything."""
        engine = create_engine(self.database_url, application_name="forebay up", pool_size=1)
        outage = Outage("forebay up", tell=self._tell)
        try:
            while (reason := self.wait(STOP_POLL_SECONDS)) is None:
                try:
                    with connect(engine) as connection:
                        if all_ended(connection, after_seconds=ENDS_AFTER_SECONDS):
                            for line in _all_left_behind(connection):
                                self._tell(line)
                            return None
                        self._look_at_the_code(connection)
                        self._problems.look(connection, [pipeline.name for pipeline in self._pipelines])
                        self._processes.look(connection)
                except SURVIVED as error:
                    outage.failed(error)
                else:
                    outage.answered()
        finally:
            engine.dispose()
        return reason

    def _look_at_the_code(self, connection: sa.Connection) -> None:
        """Put changed code in force, by itself or because `forebay apply` has changed the driver log."""
        applied = declared_versions(connection)
        rung = applied != self._applied
        is_applied = any(self._applied.get(key) != version for key, version in applied.items())
        self._applied = applied
        if self._code is None:
            return
        found = self._code.look(
            rung=rung,
            is_applied=is_applied,
            differs=partial(_disagreement, connection),
            waits=partial(_is_driver_awaited, connection),
        )
        if found is None:
            return
        self._pipelines = _running(found.declared)
        # Batch drivers see for themselves that they have another version; the code server runs no function of it, and
        # only needs to know what is declared.
        if found.is_new:
            self._supervisor.restart(CODE_SERVER)

    def drain(self, tell: Callable[[str], None]) -> DrainResult:
        """Process what was received, for at most `graceful_stop_timeout`.

        Ends earlier at a second signal, and when a service is given up: nothing would replace it.
        """
        engine = create_engine(self.database_url, application_name="forebay up", pool_size=1)
        try:
            return drain_pipelines(
                engine,
                [pipeline.name for pipeline in self._pipelines],
                seconds=self._settings.graceful_stop_timeout.total_seconds(),
                interrupted=lambda: self._supervisor.stops_at_once() or self.given_up() is not None,
                tell=tell,
            )
        finally:
            engine.dispose()

    def given_up(self) -> str | None:
        """Return the name of a service that was given up; None if there is none."""
        return self._supervisor.failed_child()

    def intervals_beyond_the_drain(self) -> list[str]:
        """Return the pipelines whose last batch may come later than a drain waits for it."""
        timeout = self._settings.graceful_stop_timeout
        return [pipeline.name for pipeline in self._pipelines if pipeline.interval >= timeout]

    def pid(self, name: str) -> int | None:
        """Return the pid of a service's process now."""
        return self._supervisor.pid(name)

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            entering.enter_context(self._supervisor.stopping_on_signals())
            entering.callback(LogRoller(self._settings.home / "logs").start().stop)
            entering.enter_context(self._supervisor)
            forget_served(self._settings)
            self._start(entering)
            self._stack = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _start(self, entered: ExitStack) -> None:
        # Report a module that can't be loaded, an address that may not be used, a block store that is none, or a key
        # that can't be read, before anything starts.
        check_block_key(self._settings.block_key)
        check_roots(self._settings.block_store_roots, self._tell)
        listen_address(self._settings.tracker_http, self._settings.tracker_token, self._settings.tracker_write_token)
        checked_token(DAGSTER_TOKEN, self._settings.dagster_token)
        self._ui_port = entered.enter_context(held_port(self._wanted_ui_port, else_any=DEFAULT_UI_PORT))
        module = self._settings.require_module()
        self._code = CodeWatch(module, self._settings.home, tell=self._tell, watches=self._watches)
        entered.callback(self._code.close)
        # Before the module is loaded: what is saved in between is a change that follows.
        self._code.first()
        pipelines = load_pipelines(module)
        declarations = declared(pipelines)
        self._pipelines = _running(declarations)
        self._database_url = _prepare_database(self._database_url, self._settings, self._supervisor)
        engine = create_engine(self._database_url, application_name="forebay up", pool_size=1)
        with connect(engine) as connection:
            self.changes, waits = apply_at_start(
                connection, pipelines, self._tell, decided=self._decided, command=f"forebay up {module}"
            )
            # Start stopped pipelines too: whoever runs `forebay up` wants them to run. A pipeline that a batch has
            # halted stays halted until a person decides.
            start_pipelines(connection, names=[pipeline.name for pipeline in pipelines], lift_halts=False)
            self._applied = declared_versions(connection)
            # Of a stream with a receiver for each host there is none before the agent starts.
            self.receivers = sum(max(row.receivers, 1) for row in list_streams(connection))
        engine.dispose()
        dagster_home = self._settings.home.absolute() / "dagster"
        code_server = entered.enter_context(code_server_socket(dagster_home))
        own = project_definitions() is not None
        workspace = str(write_dagster_home(dagster_home, code_server=code_server, own_definitions=own))
        self._token = webserver_token(self._settings, dagster_home)
        # Commands in this home find Dagster by this file while this process runs.
        (dagster_home / URL_FILE).write_text(self._webserver_url, encoding="utf-8")
        environment = {
            **_environment(self._settings, dagster_home, self.database_url, self._webserver_url),
            CODE_VARIABLE: str(self._code.copies.link),
        }
        of_outputs = only_of_outputs(pipelines)
        self._code.runs(declarations, environment, FROM_YOUR_CODE, of_outputs, waits=waits)
        # Only for the children that demand it, or send it.
        token = {DAGSTER_TOKEN: NO_TOKEN if self._token is None else self._token}
        # What the services need is in here, even if an output's secret is in a variable of the same name.
        without_blocks = {name: value for name, value in environment.items() if name != BLOCK_STORE}
        withheld = from_dagsters_services(self._settings, pipelines)
        python = [sys.executable, "-m"]
        self._supervisor.start(
            [
                Child(
                    "agent",
                    [
                        *(*python, "forebay.cli", "agent", "--parent-pipe", "--roles", ",".join(ROLES)),
                        *("--withhold-from-receivers", ",".join(sorted(of_outputs))),
                        *("--slots", str(self.slots)),
                    ],
                    {**environment, **token},
                    guarded=False,
                    stop_grace=AGENT_STOP_SECONDS,
                    left_grace=AGENT_LEFT_SECONDS,
                ),
                Child(
                    CODE_SERVER,
                    [
                        *python,
                        *("dagster", "api", "grpc", "--module-name", "orchestration.definitions"),
                        *("--socket", str(code_server), "--location-name", "forebay"),
                    ],
                    environment,
                    withheld=FROM_YOUR_CODE,
                    ready=_accepts(code_server),
                    ready_within=DAGSTER_READY_SECONDS,
                ),
            ]
        )
        self._supervisor.start(
            [
                Child(
                    "dagster-daemon",
                    [*python, "dagster._daemon", "run", "-w", workspace],
                    without_blocks,
                    withheld=withheld,
                ),
                Child(
                    "dagster-webserver",
                    [
                        *(*python, "orchestration.dagster_instance.dagster_webserver"),
                        *("--port", str(self._ui_port), "--workspace", workspace),
                    ],
                    {**without_blocks, **token},
                    withheld=withheld,
                    ready=_answers(f"{self._webserver_url}/server_info", self._token),
                    ready_within=DAGSTER_READY_SECONDS,
                ),
            ]
        )


def _prepare_database(url: str | None, settings: Settings, supervisor: Supervisor) -> str:
    """Start and migrate the embedded server, or migrate the one that is named; return the services' URL."""
    if url is not None:
        migrate.upgrade(url)
        with migrate.naming_missing_rights(url):
            ensure_dagster_schema(url)
        return url
    server = _start_postgres(settings, supervisor)
    # The superuser does what follows here, and nothing else.
    migrate.upgrade(server.url())
    server.ensure_services_login()
    ensure_dagster_schema(server.url(), owner=SERVICES)
    return server.services_url()


def _start_postgres(settings: Settings, supervisor: Supervisor) -> EmbeddedPostgres:
    server = embedded_postgres(settings)
    server.initialise()
    user = server.user()
    supervisor.start(
        [
            Child(
                "postgres",
                server.command(),
                server.environment(),
                inherit_environment=False,
                directory=server.data_directory,
                ready=server.is_ready,
                ready_within=POSTGRES_READY_SECONDS,
                stop_signal=signal.Signals(StopMode.FAST.signal),
                stop_grace=30.0,
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
            )
        ]
    )
    server.ensure_database()
    return server


def _environment(settings: Settings, dagster_home: Path, database_url: str, webserver_url: str) -> dict[str, str]:
    paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # noqa: PTH109  as text
    return {
        "DAGSTER_HOME": str(dagster_home),
        DATABASE_VARIABLE: dagster_database_url(database_url),
        # Marks the instance as Forebay's own: see Settings.dagster_url.
        "FOREBAY_DAGSTER_URL": webserver_url,
        "FOREBAY_BLOCK_STORE": settings.block_store_roots,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(settings.home.absolute()),
        "FOREBAY_MODULE": settings.require_module(),
        # This machine is all, unless the user expects more hosts: receivers wait for no other agent.
        "FOREBAY_PLACEMENT_MIN_AGENTS": str(settings.placement_min_agents or 1),
        # Dagster starts a process for each run: without .pyc files each process would compile Dagster again.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def up(
    module: Annotated[
        str | None,
        typer.Argument(
            help="The module (or .py file) that declares your pipelines; unless given, FOREBAY_MODULE or the project's."
        ),
    ] = None,
    ui_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the Dagster UI; 0: any free one (default: FOREBAY_UI_PORT, else 3000 if that is free)."
        ),
    ] = None,
    drain: Annotated[
        bool | None,
        typer.Option(
            "--drain/--no-drain",
            help="On SIGTERM or Ctrl-C, first process what was received, for at most FOREBAY_GRACEFUL_STOP_TIMEOUT "
            "(10m). Default: FOREBAY_STOP_GRACEFULLY_ON_SHUTDOWN, else no.",
        ),
    ] = None,
    watch: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            help="Let a change of the module, or of a module of the project that it imports, take effect at the next "
            "batch. --no-watch: only `forebay apply` does that, for production.",
        ),
    ] = True,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"The most receivers that may run. Default: as many as are declared, {DEFAULT_SLOTS} to {MOST_SLOTS}.",
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="A stream that ends because the module does not declare it any more; without it, a start that also "
            "finds a new stream asks whether it is the same."
        ),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(
            help="A new pipeline that may begin with kept records of which a removed one wrote results to the same "
            "place: it is empty, or they may be there twice."
        ),
    ] = None,
) -> None:
    """Apply a pipeline module and run everything on this machine until Ctrl-C.

    Starts an embedded Postgres (unless FOREBAY_DATABASE_URL names yours), an agent with the receivers and the
    tracker, and Dagster. A process that ends is started again. The state is in FOREBAY_HOME (.forebay).

    For example:

        forebay up my_pipeline
        forebay up my_pipeline --drain --ui-port 0
    """
    settings = Settings()
    if module is not None:
        settings = settings.model_copy(update={"module": module})
    if drain is not None:
        settings = settings.model_copy(update={"stop_gracefully_on_shutdown": drain})
    console = Console(highlight=False)
    with clear_errors(console):
        # Before anything is started, or written to the driver log; once, for a project's file may change meanwhile.
        settings = settings.model_copy(update={"module": settings.require_module()})
    result: DrainResult | None = None
    with _ends_in_words(console):
        wanted = settings.ui_port if ui_port is None else ui_port
        with Services(
            settings,
            ui_port=wanted,
            on_event=_event_printer(console),
            tell=lambda line: console.print(f"{datetime.now(UTC):%H:%M:%S} {line}", markup=False, soft_wrap=True),
            watches=watch,
            slots=slots,
            decided=Decided(stop or (), again or ()),
        ) as services:
            if services.changes:
                print_changes(console, services.changes)
            console.print(f"Dagster: {services.ui_link(console)}", markup=False, soft_wrap=True)
            _print_page(console, settings)
            _print_missing_slots(console, services)
            _print_how_to_stop(console, settings, services)
            reason = services.wait_for_stop()
            if reason is None:
                console.print("forebay stop has stopped all pipelines.")
            elif settings.stop_gracefully_on_shutdown and reason.signal is not None:
                console.print(
                    f"Draining: what was received is processed first, for at most {_drain_seconds(settings)} "
                    "(Ctrl-C again: ends at once)."
                )
                result = services.drain(lambda line: console.print(line, markup=False, soft_wrap=True))
                console.print(_drain_result(result, settings, services))
            given_up = services.given_up()
            console.print("Stopping all services (Ctrl-C again: at once).")
    console.print("All services are stopped.")
    if given_up is not None:
        console.print(f"{given_up} failed too often and was given up.", style="bold red")
        raise typer.Exit(1)
    if result is DrainResult.TIMED_OUT:
        raise typer.Exit(1)


@contextmanager
def _ends_in_words(console: Console) -> Iterator[None]:
    """Print why nothing runs, or runs any more, and exit with 1: what was asked for, a refusal, or a known error."""
    try:
        yield
    except StopRequestedError as stopped:
        # What was asked for, and so no alarm.
        console.print(str(stopped))
        raise typer.Exit(1) from stopped
    except StartRefusedError as refused:
        print_changes(console, refused.changes, asks=True)
        console.print(str(refused), style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from refused
    except (
        BlockStoreError,
        CommandError,
        DeclarationError,
        DriverLogError,
        ListenAddressError,
        PipelineModuleError,
        SupervisorError,
    ) as error:
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


_DRAIN_RESULTS = {
    DrainResult.DRAINED: "Drained.",
    DrainResult.TIMED_OUT: "Not drained within {seconds}: the rest is processed after the next start.",
    DrainResult.INTERRUPTED: "Not drained, because {why}: the rest is processed after the next start.",
}


def _drain_result(result: DrainResult, settings: Settings, services: Services) -> str:
    given_up = services.given_up()
    why = "of a second signal" if given_up is None else f"{given_up} was given up"
    return _DRAIN_RESULTS[result].format(seconds=_drain_seconds(settings), why=why)


def _drain_seconds(settings: Settings) -> str:
    return f"{settings.graceful_stop_timeout.total_seconds():g} s"


def _print_page(console: Console, settings: Settings) -> None:
    """Print where the status page is, once a tracker serves it: another installation may have its port."""
    if (address := asked_for(settings)) is None:
        return
    end = time.monotonic() + _PAGE_SECONDS
    while not is_served(settings) and time.monotonic() < end:
        time.sleep(0.05)
    if is_served(settings) and (page := status_page(settings)) is not None:
        token = None if settings.tracker_token is None else settings.tracker_token.get_secret_value()
        shown = printed_link(console, page, token, kept_in="FOREBAY_TRACKER_TOKEN")
    else:
        shown = (
            f"no page, because {address.host}:{address.port} is not to be had (forebay logs tracker); "
            "FOREBAY_TRACKER_HTTP=127.0.0.1:PORT names another address"
        )
    console.print(f"Status:  {shown}", markup=False, soft_wrap=True)


def _print_missing_slots(console: Console, services: Services) -> None:
    if services.receivers > services.slots:
        console.print(
            f"{services.receivers} receivers are declared, and {services.slots} may run here; the others wait. To run "
            f"all: forebay up --slots {services.receivers}",
            style="bold red",
        )


def _print_how_to_stop(console: Console, settings: Settings, services: Services) -> None:
    if not settings.stop_gracefully_on_shutdown:
        console.print(
            "Ctrl-C stops everything; what waits for a batch gets it after the next start. In another terminal: "
            "forebay status, and forebay stop, which lets everything come out first"
        )
        return
    console.print(
        "Ctrl-C stops everything when what was received is processed, after at most "
        f"{_drain_seconds(settings)}. In another terminal: forebay status"
    )
    if beyond := services.intervals_beyond_the_drain():
        console.print(
            f"The interval of {', '.join(beyond)} is not shorter than that: its last batch may come too late. Set "
            "FOREBAY_GRACEFUL_STOP_TIMEOUT to more than the interval.",
            style="bold red",
            markup=False,
        )


def _event_printer(console: Console) -> Callable[[ChildEvent], None]:
    words = {
        ChildEventKind.STARTED: "starting",
        ChildEventKind.READY: "ready",
        ChildEventKind.RESTARTING: "{detail}",
        ChildEventKind.FAILED: "was given up: {detail}",
    }

    def print_event(event: ChildEvent) -> None:
        if event.kind in words:
            said = words[event.kind].format(detail=event.detail)
            console.print(f"{event.name}: {said}", markup=False, soft_wrap=True)

    return print_event
