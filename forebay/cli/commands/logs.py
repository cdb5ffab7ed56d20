"""`forebay logs`: print the log of a receiver or a process of this host, and follow it."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.log_reader import LogFollower, newest_lines
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.settings import Settings
from tracker_store.close_names import did_you_mean
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import NoSuchReceiverError, process_of_receiver, receivers_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

APPLICATION = "forebay logs"
_POLL_SECONDS = 0.25
_SUFFIX = ".log"
# What the agent writes when it starts a process, or gives receivers to a spare one.
_STARTED = re.compile(r"child=(?P<name>[\w-]+).* pid=(?P<pid>\d+)")


@dataclass(frozen=True, slots=True)
class _Log:
    """Name a log file to print. `note`: what a person must know about it, or ""."""

    path: Path
    note: str = ""


def _log_names() -> list[str]:
    # Settings that can't be read: a shell would show the error in the middle of the command line.
    with suppress(Exception):
        return [path.stem for path in _logs(_directory())]
    return []


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECEIVER | PROCESS]",
            help="A receiver as STREAM/N (STREAM: its first one), or a process such as agent, tracker, postgres or "
            "batch-driver-1. Without it: a list of the logs that are here.",
            autocompletion=_log_names,
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--limit", "-n", min=0, help="The newest N lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line; of a list: one.")] = False,  # noqa: FBT002
) -> None:
    """Print the log of a receiver or a process of this host, from FOREBAY_HOME/logs.

    A receiver's log is on the host that runs it: this command says which one that is. Receivers that share a process
    share its log. Control characters are shown as escapes.

    For example:

        forebay logs
        forebay logs orders/1 --follow
        forebay logs batch-driver-1 -n 200
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    directory = _directory()
    if name is None:
        _list(_logs(directory), directory, as_json=as_json)
        return
    log = _find(console, directory, name)
    if log.note:
        console.print(log.note, style="yellow", markup=False)
    try:
        newest, position = newest_lines(log.path, lines, whole=follow)
    except OSError as error:
        console.print(f"{log.path} can't be read: {error.strerror}", style="bold red", markup=False)
        raise typer.Exit(1) from error
    _show(log.path, newest, as_json=as_json)
    if follow:
        _follow(LogFollower(log.path, position), log.path, as_json=as_json)


def _follow(follower: LogFollower, path: Path, *, as_json: bool) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            _show(path, follower.read(), as_json=as_json)
            time.sleep(_POLL_SECONDS)


def _find(console: Console, directory: Path, name: str) -> _Log:
    """Return the log of a process of this home by its file's name, else a receiver's, by the driver log."""
    path = directory / f"{name}{_SUFFIX}"
    if "/" not in name and path.is_file():
        return _Log(path)
    with driver_log(console, application_name=APPLICATION) as connection:
        try:
            receiver = min(receivers_named(connection, name), key=lambda one: one.ordinal)
        except NoSuchReceiverError as error:
            if hint := did_you_mean(name, (path.stem for path in _logs(directory))):
                raise NoSuchReceiverError(f"{error.detail}; {hint}", "`forebay logs` lists what is here.") from error
            raise
        process = process_of_receiver(connection, receiver.receiver_id)
    full_name = f"{receiver.stream_name}/{receiver.ordinal}"
    own = directory / f"receiver-{receiver.receiver_id}{_SUFFIX}"
    host = process.host or process.agent_host
    if process.pid is not None and (shared := _written_by(process.pid, directory)) is not None:
        return _Log(shared)
    if own.is_file():
        elsewhere = host is not None and host != socket.gethostname()
        note = f"{full_name} runs on host {host}: this is what it wrote here before." if elsewhere else ""
        return _Log(own, note)
    if host is None:
        said = f"{full_name} is on no host now ({receiver.state}), and has no log here, in {directory}."
    else:
        said = (
            f"{full_name} runs on host {host}, and has no log here, in {directory}. On that host, with the "
            f"FOREBAY_HOME of its agent: forebay logs {full_name}"
        )
    console.print(said, style="bold red", markup=False)
    raise typer.Exit(1)


def _written_by(pid: int, directory: Path) -> Path | None:
    """Return the log of this directory that a process of this machine writes to, or None."""
    with suppress(OSError):
        target = Path(f"/proc/{pid}/fd/1").readlink()
        if target.parent == directory.resolve() and target.suffix == _SUFFIX:
            return target
    # Where there is no /proc, the agent's log has it.
    with suppress(OSError):
        started, _ = newest_lines(directory / f"agent{_SUFFIX}", 1_000)
        for line in reversed(started):
            found = _STARTED.search(line)
            if found is not None and int(found["pid"]) == pid:
                path = directory / f"{found['name']}{_SUFFIX}"
                return path if path.is_file() else None
    return None


def _directory() -> Path:
    return Settings().home.absolute() / "logs"


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{_SUFFIX}"))


def _list(paths: Sequence[Path], directory: Path, *, as_json: bool) -> None:
    found = [
        (path.stem, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
        for path in paths
        if (status := path.stat())
    ]
    if as_json:
        rows = [{"name": name, "bytes": size, "written_at": at.isoformat()} for name, size, at in found]
        typer.echo(json.dumps({"directory": str(directory), "logs": rows}))
        return
    console = Console(highlight=False)
    cells = [(name, f"{size:,}", f"{at:%Y-%m-%d %H:%M:%S}") for name, size, at in found]
    print_table(console, ("log", "bytes", "last written (UTC)"), cells)
    if not found:
        console.print(f"No process of Forebay has run here: {directory} has no logs.", markup=False, soft_wrap=True)


def _show(path: Path, lines: Iterable[str], *, as_json: bool) -> None:
    for line in lines:
        typer.echo(json.dumps({"log": path.stem, "line": line}) if as_json else escaped(line))
