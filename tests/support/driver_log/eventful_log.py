"""Put a driver log into a state in which every question of an operator has an answer, by its own functions.

It imports nothing of pytest. Names and times are those of docs/how-to/sql.md and of the runbooks: the stream `lines`
with two receivers, the pipeline `words`, batches from 12:00:10 to 12:00:30 UTC on 2026-01-01.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, new_segment
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.batches import batches
from tracker_store.batches.batch_outputs import fail_output
from tracker_store.batches.input_metadata import record_input_metadata
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.readers import attach_reader
from tracker_store.batches.state_versions import begin_version, note_version
from tracker_store.blocks.blocks import BlockHandle, OffsetLink, open_partition
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements, report_event, set_receiver_state
from tracker_store.receivers.source_lag import LagReport, Unread, report_source_lag
from tracker_store.schema.states import AttemptFailure, LinkKind, ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from datetime import datetime

COMPLETED, QUARANTINED, RUNNING = (NOON + number * INTERVAL for number in (1, 2, 3))
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class EventfulLog:
    """A log with a batch in each of three states; `agent_id`, `first`, `second`: its agent and its two receivers."""

    log: Log
    agent_id: int
    first: int
    second: int


def make_eventful_log(connection: sa.Connection) -> EventfulLog:
    """Fill an empty, migrated driver log; the connection is in autocommit."""
    log = make_log(connection, receivers=2)
    _apply_outputs(connection, log)
    agent_id = register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=100, slots=16)
    term = take_leadership(connection, seen=read_leadership(connection), holder="h1:100")
    assert term is not None
    first, second = log.receiver_ids
    for receiver_id in (first, second):
        schedule_receiver(connection, term=term, receiver_id=receiver_id, agent_id=agent_id, why="a free slot")
    receives = register_process(connection, kind=ProcessKind.RECEIVER, name="receiver-1", host="h1", pid=101)
    attach_reader(connection, name="dashboard", stream="lines")
    _receive(connection, log, first, receives)
    _fail(connection, second)
    run = register_process(connection, kind=ProcessKind.BATCH_RUN, name="words", host="h1", pid=102)
    _complete(connection, log, run)
    _quarantine(connection, log, run)
    log.tracker.allocate_blocks_to_batch(RUNNING)
    claim_batch(connection, log.pipeline_id, RUNNING, run_id="run-3", process_id=run)
    return EventfulLog(log, agent_id, first, second)


def _apply_outputs(connection: sa.Connection, log: Log) -> None:
    apply_pipeline(
        connection,
        name="words",
        declaration={"max_attempts": 1, "streams": ["lines"], "outputs": {"counts": {"inputs": ["lines"]}}},
        stream_ids=[log.stream_id],
        interval=INTERVAL,
    )
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET applied_at = :noon, state_since = :noon WHERE id = :id"),
        {"noon": NOON, "id": log.pipeline_id},
    )


def _assignment(connection: sa.Connection, receiver_id: int) -> int:
    [found] = [row.assignment for row in placements(connection) if row.receiver_id == receiver_id]
    return found


def _receive(connection: sa.Connection, log: Log, receiver_id: int, process_id: int) -> None:
    """Let a receiver add four blocks: one for each of three batches, and one that waits."""
    assignment = _assignment(connection, receiver_id)
    claimed = claim_anew(connection, receiver_id, assignment)
    set_receiver_state(
        connection, receiver_id=receiver_id, assignment=assignment, state=ReceiverState.ACTIVE, process_id=process_id
    )
    segment_id = new_segment(connection, claimed, "receiver-1/1")
    open_partition(connection, receiver_id=receiver_id, source="orders", partition="0", start_offset=100)
    # The source has 45 more by now.
    unread = {("orders", "0"): Unread(45, "records", end=200, oldest_at=time.time())}
    report_source_lag(connection, process_id=process_id, reports=[LagReport(receiver_id, whole=True, unread=unread)])
    _backdate(connection, receiver_id, 1, NOON + _SECOND)
    # The source has lost the first five positions of the second block.
    links = (
        (OffsetLink("orders", "0", 0, 100, 110),),
        (OffsetLink("orders", "0", 0, 110, 115, LinkKind.LOST), OffsetLink("orders", "0", 0, 115, 135)),
        (OffsetLink("orders", "0", 0, 135, 145),),
        (OffsetLink("orders", "0", 0, 145, 155),),
    )
    for number, (steps, records) in enumerate(zip(links, (10, 20, 10, 10), strict=True)):
        sequence = number + 2
        new = block(claimed, sequence, segment_id=segment_id, records=records)
        add(connection, replace(new, links=steps))
        _backdate(connection, receiver_id, sequence, NOON + number * INTERVAL + 2 * _SECOND)
    letter = StoredDeadLetter("not UTF-8", 0, 7, BlockHandle(segment_id, 5_000, 60, 1))
    add_dead_letters(connection, [letter], receiver_id=receiver_id, epoch=claimed.epoch)


def _fail(connection: sa.Connection, receiver_id: int) -> None:
    message = "connection refused by 127.0.0.1:9999"
    report_event(connection, receiver_id=receiver_id, epoch=0, kind=ReceiverEventKind.ERROR, message=message)
    set_receiver_state(
        connection,
        receiver_id=receiver_id,
        assignment=_assignment(connection, receiver_id),
        state=ReceiverState.FAILED,
        reason=message,
    )


def _complete(connection: sa.Connection, log: Log, process_id: int) -> None:
    log.tracker.allocate_blocks_to_batch(COMPLETED)
    claim_batch(connection, log.pipeline_id, COMPLETED, run_id="run-1", process_id=process_id)
    record_input_metadata(connection, log.pipeline_id, COMPLETED)
    version: dict[str, Any] = {
        "pipeline_id": log.pipeline_id,
        "output": "counts",
        "batch_time": COMPLETED,
        "attempt": 1,
    }
    begin_version(connection, **version, read=None, schema_version=1, schema={}, buckets=1, folder="state/1/counts/1")
    frames = [[0, "state/1/counts/1/1.segment", 0, 300, 7, 4, 1, None]]
    seen = {"stream": "lines", "seen": COMPLETED.isoformat(), "idle": False}
    note_version(
        connection,
        **version,
        frames=frames,
        keys=4,
        changed=4,
        deleted=0,
        bytes=300,
        next_expiry=None,
        watermark=COMPLETED - 70 * _SECOND,
        event_times=[
            {**seen, "source": "1", "latest": (COMPLETED - 10 * _SECOND).isoformat()},
            {**seen, "source": "2", "latest": (COMPLETED - _SECOND).isoformat()},
        ],
        late=2,
    )
    commit_batch(connection, log.pipeline_id, COMPLETED, "counts", location="data/counts/attempt=1", rows=4, state=True)
    batches.complete_batch(connection, pipeline_id=log.pipeline_id, batch_time=COMPLETED, attempt=1, outputs=["counts"])
    backdate_completion(connection, log.pipeline_id, COMPLETED)


def _quarantine(connection: sa.Connection, log: Log, process_id: int) -> None:
    error = "[CAST_INVALID_INPUT] 'x' is no number"
    log.tracker.allocate_blocks_to_batch(QUARANTINED)
    claim_batch(connection, log.pipeline_id, QUARANTINED, run_id="run-2", process_id=process_id)
    record_input_metadata(connection, log.pipeline_id, QUARANTINED)
    fail_output(
        connection,
        pipeline_id=log.pipeline_id,
        batch_time=QUARANTINED,
        attempt=1,
        output="counts",
        failure=AttemptFailure.FAILED,
        error=error,
    )
    fail_batch(connection, log.pipeline_id, QUARANTINED, run_id="run-2", error=error, max_attempts=1, pauses=None)


def _backdate(connection: sa.Connection, receiver_id: int, sequence: int, time: datetime) -> None:
    connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r AND sequence = :s"),
        {"at": time, "r": receiver_id, "s": sequence},
    )


def backdate_completion(
    connection: sa.Connection, pipeline_id: int, batch_time: datetime, *, took: timedelta = 2 * _SECOND
) -> None:
    """Let a completed batch have run from one second after its time on."""
    for statement in (
        "UPDATE forebay.batches SET allocated_at = :start, completed_at = :end",
        "UPDATE forebay.batch_attempts SET started_at = :start, ended_at = :end",
        "UPDATE forebay.output_commits SET committed_at = :end",
    ):
        start = batch_time + _SECOND
        connection.execute(
            sa.text(f"{statement} WHERE pipeline_id = :pipeline AND batch_time = :time"),
            {"start": start, "end": start + took, "pipeline": pipeline_id, "time": batch_time},
        )
