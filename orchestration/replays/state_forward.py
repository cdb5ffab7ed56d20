"""Runs a batch of an output with a state again, and then every later one, each from the state that the one before left.

The driver log keeps how far it is, so that a replay which was stopped or killed is resumed, or undone: then each batch
gets the result and the state again that it had. New batches of the output wait meanwhile. One process has it: another
takes it over only once that one has ended.

Knows nothing of Dagster: the replay job and the command line both use it.
"""

from __future__ import annotations

import time as monotonic
from functools import partial
from typing import TYPE_CHECKING

import structlog

from orchestration.batches.batch_heartbeat import heartbeats
from orchestration.batches.batch_run import replay_batch
from orchestration.batches.following import follow_output
from orchestration.replays.replay import ReplayedBatch, unreported
from tracker_store.batches.state_replays import (
    end_undoing,
    next_batch,
    state_replay,
    stop_state_replay,
    take_state_replay,
)
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import BatchHeldError, DriverLogError
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from orchestration.batches.attempt_outputs import OutputResult
    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

log = structlog.get_logger(__name__)


def replay_forward(
    pipeline: Pipeline,
    replay_id: int,
    *,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[datetime, OutputResult], None] = unreported,
) -> Generator[ReplayedBatch]:
    """Run, or restore, the batches that are left of a replay forward; a failure stops it, and is the last one returned.

    A caller that closes the iterator, or is interrupted, stops the replay too. A batch that another process holds
    ends the iterator and stops nothing. `on_committed` is called with each result as soon as readers see it. Raises
    DriverLogError, also while another process runs the replay.
    """
    engine = create_engine(settings.require_database_url(), application_name=f"forebay replay {replay_id}")
    try:
        with heartbeats(engine, name=f"{pipeline.name} replay {replay_id}") as process_id:
            with connect(engine) as connection:
                if not state_replay(connection, replay_id).is_unfinished:
                    # A run that is launched again after its last commit has nothing left to do.
                    return
                take_state_replay(connection, replay_id, process_id)
            yield from _run(
                engine,
                pipeline,
                replay_id,
                process_id,
                run_id=run_id,
                settings=settings,
                session=session,
                on_committed=on_committed,
            )
    finally:
        engine.dispose()


def _run(
    engine: sa.Engine,
    pipeline: Pipeline,
    replay_id: int,
    process_id: int,
    *,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[datetime, OutputResult], None],
) -> Generator[ReplayedBatch]:
    is_over = False
    try:
        with connect(engine) as connection:
            output = state_replay(connection, replay_id).output
            pipeline_id = state_replay(connection, replay_id).pipeline_id
        # What an attempt that was killed has left in the target, without a row, goes on, or is undone, as the rest.
        follow_output(engine, pipeline.outputs[output], pipeline_id)
        while True:
            with connect(engine) as connection:
                batch_time = next_batch(connection, replay_id)
                if batch_time is None:
                    if state_replay(connection, replay_id).state is StateReplayState.UNDOING:
                        end_undoing(connection, replay_id)
                    is_over = True
                    return
            started = monotonic.monotonic()
            try:
                results = replay_batch(
                    pipeline,
                    batch_time=batch_time,
                    outputs=[output],
                    forward=replay_id,
                    process_id=process_id,
                    run_id=run_id,
                    settings=settings,
                    session=session,
                    on_committed=partial(on_committed, batch_time),
                )
            except BatchHeldError as refusal:
                is_over = True
                yield ReplayedBatch(batch_time, (), monotonic.monotonic() - started, str(refusal), refused=True)
                return
            except Exception as failure:
                log.exception("replay failed", pipeline=pipeline.name, batch_time=batch_time.isoformat())
                error = f"{type(failure).__name__}: {failure}"
                yield ReplayedBatch(batch_time, (), monotonic.monotonic() - started, error)
                return
            yield ReplayedBatch(batch_time, results, monotonic.monotonic() - started)
    finally:
        if not is_over:
            _stop(engine, replay_id, process_id)


def _stop(engine: sa.Engine, replay_id: int, process_id: int) -> None:
    """Stop the replay if it runs, and no other process has taken it over: then this one was taken for dead."""
    with connect(engine) as connection:
        found = state_replay(connection, replay_id)
        if found.state is not StateReplayState.RUNNING:
            return
        try:
            stop_state_replay(connection, replay_id, process_id=process_id)
        except DriverLogError as error:
            log.warning("the replay goes on elsewhere", replay=replay_id, error=str(error))
