"""Check a version of the project's code in a process of its own, and put it in force if nobody has to decide.

`forebay up` starts it (``code_watch``) with FOREBAY_CODE naming the copy to check, writes one request to its standard
input, and reads one result from its standard output. The link to the copy in force and the driver log are changed here
and nowhere else while `forebay up` runs, in an order that can be repeated: the link first, so that a receiver with a
new declaration starts with the new code; if the driver log then refuses, the link goes back.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import LISTENING, check_listening
from forebay.cli.checks.unset_variables import unset_variables
from orchestration.declarations.apply import (
    apply,
    declared_streams,
    difference,
    refuse,
    rename_hints,
    streams_read,
)
from orchestration.declarations.asked_targets import ask_targets
from orchestration.declarations.compatibility import declared, needs_a_person
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.modules import IMPORT_FAILS, PipelineModuleError, load_pipelines, said_in_a_line
from orchestration.declarations.project_code import CodeCopies, same_code
from orchestration.declarations.questions import NOTHING_DECIDED, undecided
from orchestration.declarations.settings import Settings
from tracker_store.batches.pipeline_states import start_pipelines
from tracker_store.batches.pipelines import list_pipelines, list_streams
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import SharedPlaceError, StrandingChangeError, sentence
from tracker_store.connection.outage import SURVIVED
from tracker_store.host.code_in_force import CodeCopy, load_code_in_force
from tracker_store.receivers.processes import receiver_pids
from tracker_store.receivers.receivers import placements, restart_receivers
from tracker_store.schema.states import DesiredState, PipelineState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline


class Outcome(StrEnum):
    """Name what became of a version."""

    IN_FORCE = "in force"
    WAITS = "waits"  # for a person: `why` says for what
    REFUSED = "refused"  # it can't be loaded, or is not valid: `why`
    UNKNOWN = "unknown"  # the driver log or a target did not answer, or a port is taken: try again


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a version. declared: what the version in force declares. agreed: a person has applied this version.

    runs: the copy that receivers have loaded; None: unknown. of_outputs: the variables that receivers are not given.
    """

    declared: Mapping[str, Any]
    agreed: bool
    runs: str | None = None
    of_outputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """Say what became of it.

    why: the reason, or what else to say of a version in force. declared: what it declares. is_new: the code server must
    load it at once.
    """

    outcome: Outcome
    why: str = ""
    declared: Mapping[str, Any] = field(default_factory=dict)
    is_new: bool = False


def main() -> None:
    """Answer one request."""
    # What the user's modules print when they are imported goes to the log.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(0, 65_536)):
            return
        line += read
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer.write(json.dumps(asdict(check(Request(**json.loads(line))))) + "\n")
    answer.flush()
    # Without waiting for threads that the user's modules may have started.
    os._exit(0)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def check(request: Request) -> CodeAnswer:
    """Load the version that FOREBAY_CODE names, and put it in force if that needs nobody, or the person has agreed."""
    settings = Settings()
    try:
        pipelines = load_pipelines(settings.require_module())
        # All that Dagster makes of them.
        import orchestration.definitions  # noqa: F401, PLC0415  loads Dagster, which only this process is to have
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's module does when it is imported
        traceback.print_exc()
        said = str(error) if isinstance(error, PipelineModuleError) else said_in_a_line(error)
        return CodeAnswer(Outcome.REFUSED, said.rpartition(IMPORT_FAILS)[2])
    try:
        with connect_once(settings.require_database_url(), application_name="forebay up") as connection:
            return put_in_force(connection, CodeCopies(settings.home), pipelines, request)
    except DeclarationError as error:
        return CodeAnswer(Outcome.REFUSED, str(error))
    except (SharedPlaceError, StrandingChangeError) as error:
        return CodeAnswer(Outcome.WAITS, str(error))
    except SURVIVED as error:
        return CodeAnswer(Outcome.UNKNOWN, str(error))


def put_in_force(
    connection: sa.Connection, copies: CodeCopies, pipelines: Sequence[Pipeline], request: Request
) -> CodeAnswer:
    """Put the version of this process in force, unless it waits for a person."""
    copy = load_code_in_force()
    assert copy is not None, "FOREBAY_CODE names the copy to check"
    now, has = declared(pipelines), in_driver_log(connection)
    if not request.agreed and (unset := " ".join(unset_variables(has, now, request.of_outputs))):
        return CodeAnswer(Outcome.REFUSED, unset)
    hints = rename_hints(connection, pipelines)
    targets = ask_targets(connection, pipelines)
    for line in targets.unasked:
        sys.stderr.write(f"{line}\n")
    waits = _waits_for(connection, pipelines, request, hints)
    waits += [*targets.refused, *([] if request.agreed else targets.steps_in_order)]
    later = [] if request.agreed else [*_taken_ports(connection, pipelines, has), *targets.unlooked]
    if waits:
        return CodeAnswer(Outcome.WAITS, _said([*waits, *later]))
    if later:
        return CodeAnswer(Outcome.UNKNOWN, _said(later).rstrip("."))
    # One that is put back so that its stop can end is not to run on.
    stopping = {row.name for row in list_pipelines(connection) if row.state is PipelineState.STOPPING}
    # What a person has applied nevertheless, so that the driver log may have it already.
    hints += unset_variables(request.declared, now, request.of_outputs)
    hints += map(sentence, _taken_ports(connection, pipelines, request.declared))
    before = copies.in_force()
    copies.put_in_force(copy.file)
    try:
        changes = apply(connection, pipelines)
    except BaseException:
        if before is not None:
            copies.put_in_force(before)
        raise
    new = now["pipelines"].keys() - request.declared["pipelines"].keys()
    start_pipelines(connection, names=sorted(new - stopping), lift_halts=False)
    hints += [
        f"{name} goes on stopping: `forebay start --pipeline {name}` lets it run." for name in sorted(new & stopping)
    ]
    # A check before this one may have moved the link, and have ended then.
    loaded = before if request.runs is None else Path(request.runs)
    if loaded is not None and loaded != copy.file:
        _restart_receivers(connection, pipelines, CodeCopy(loaded), copy)
    return CodeAnswer(Outcome.IN_FORCE, " ".join(hints), declared=now, is_new=bool(changes) or now != request.declared)


def _waits_for(
    connection: sa.Connection, pipelines: Sequence[Pipeline], request: Request, hints: Sequence[str]
) -> list[str]:
    """Return what a person must decide, and why `forebay apply` would refuse the version: both, or they try in vain."""
    waits: list[str] = []
    if not request.agreed:
        now, applied = declared(pipelines), list_pipelines(connection)
        decisions = needs_a_person(request.declared, now, streams_read(applied))
        gone = request.declared["pipelines"].keys() - {row.name for row in applied}
        decisions += [f"pipeline {name!r} was removed, and begins again" for name in sorted(gone & {*now["pipelines"]})]
        waits = ["; ".join(decisions), *hints] if decisions else []
    try:
        refuse(connection, pipelines)
    except (SharedPlaceError, StrandingChangeError) as error:
        waits.append(str(error))
    if not waits and not request.agreed:
        changes = difference(connection, pipelines)
        unclear = undecided(connection, pipelines, changes, NOTHING_DECIDED, "forebay apply")
        waits += [] if unclear is None else [unclear]
    return waits


def in_driver_log(connection: sa.Connection) -> dict[str, Any]:
    """Return what is applied, in the form of `declared`: no receiver and no batch runs on without it.

    A stream that no pipeline reads is left out, because its receivers are stopped.
    """
    rows = list_pipelines(connection)
    read = set().union(*streams_read(rows).values())
    return {
        "pipelines": {row.name: row.declaration for row in rows},
        "streams": {row.name: row.declaration for row in list_streams(connection) if row.name in read},
    }


def _said(reasons: Sequence[str]) -> str:
    return " ".join([*map(sentence, reasons[:-1]), reasons[-1]])


def _taken_ports(connection: sa.Connection, pipelines: Sequence[Pipeline], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a new stream, or one that moves, can't listen on this host now."""
    for stream in declared_streams(pipelines):
        was = before["streams"].get(stream.name, {}).get("source", {})
        now = stream.declaration()["source"]
        if any(was.get(key) != now.get(key) for key in LISTENING):
            ours = partial(receiver_pids, connection)
            # Receivers that `forebay up` has started are seen: another account's program holds what is not.
            for found in check_listening(stream, ours=ours, is_here=True, unseen=Health.FAILED):
                if found.health is Health.FAILED:
                    yield f"{found.check}: {found.found}. {found.way_out}"


def _restart_receivers(
    connection: sa.Connection, pipelines: Sequence[Pipeline], before: CodeCopy, now: CodeCopy
) -> None:
    """Let receivers of the user's own classes start again if the modules of their class have changed."""
    changed = {
        stream.name
        for stream in declared_streams(pipelines)
        if stream.source.kind == "custom" and not same_code(before, now, stream.source.address.partition(":")[0])
    }
    running = [
        row.receiver_id
        for row in placements(connection)
        if row.stream_name in changed and row.desired_state is DesiredState.RUNNING
    ]
    if running:
        restart_receivers(connection, receiver_ids=running, why="the code of its class changed", also_waiting=False)


if __name__ == "__main__":
    if "" not in sys.path:
        # Import from the working directory, as the code server does.
        sys.path.insert(0, "")
    main()
