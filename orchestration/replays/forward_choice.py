"""Choose what a replay forward runs: its output, and whether it has begun already. ``state_forward`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.replays.replay_choice import ReplayError
from tracker_store.batches.state_replays import begin_state_replay, state_replays
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import sqlalchemy as sa


def output_to_replay(pipeline: str, declaration: Mapping[str, Any], outputs: Sequence[str]) -> str:
    """Return the one output with a state that is meant: the only one, if none is named. Raises ReplayError."""
    declared = PipelineDeclaration.of(declaration).outputs
    stateful = [name for name, output in declared.items() if output.has_state]
    chosen = list(outputs) or stateful
    if len(chosen) == 1 and chosen[0] in stateful:
        return chosen[0]
    raise ReplayError(
        f"a replay forward runs one output with a state: name one of {', '.join(stateful)}"
        if stateful
        else f"pipeline {pipeline} has no output with a state: its batches are replayed without `forward`"
    )


def check_begin(
    connection: sa.Connection, pipeline: str, pipeline_id: int, output: str, from_time: datetime
) -> int | None:
    """Return the replay forward that was begun in this way and RUNS, as after the end of its process, or None.

    No locks. Raises ReplayError if another one is unfinished.
    """
    for found in state_replays(connection, pipeline_id=pipeline_id, output=output):
        if found.state is StateReplayState.RUNNING and found.from_time == from_time:
            return found.replay_id
        if found.is_unfinished:
            raise ReplayError(
                f"replay {found.replay_id} of output {output} is {found.state}, from {found.from_time.isoformat()} on: "
                f"end it first, with `forebay state resume {pipeline} {output}`, or `undo` in its place"
            )
    return None


def begin_or_find(connection: sa.Connection, pipeline: str, pipeline_id: int, output: str, from_time: datetime) -> int:
    """Begin a replay forward, or return the one of ``check_begin``. Raises what these raise."""
    found = check_begin(connection, pipeline, pipeline_id, output, from_time)
    if found is not None:
        return found
    return begin_state_replay(connection, pipeline_id=pipeline_id, output=output, from_time=from_time)
