"""Put a driver log, and where needed a block store, into the state that a runbook is about.

It imports nothing of pytest. Each state begins with a healthy log: one stream, one pipeline, a leading tracker. It is
made by the driver log's own functions; only times are set directly.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from receiver_runtime.block_store.errors import BlockCorruptError
from receiver_runtime.block_store.identity import make_identity
from receiver_runtime.block_store.stores import open_block_store, replicas_of
from tests.driver_log import INTERVAL, NOON, Log, make_log
from tests.eventful_log import backdate_completion, make_eventful_log
from tests.stored_lines import LineReceiver
from tracker_store import batches
from tracker_store.leadership import read_leadership, resign, take_leadership
from tracker_store.processes import register_process
from tracker_store.readers import attach_reader
from tracker_store.receivers import schedule_receiver, set_receiver_state
from tracker_store.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SECOND = timedelta(seconds=1)
_LONG_AGO = timedelta(days=1)


def make_healthy_log(connection: sa.Connection) -> Log:
    """Declare a stream and a pipeline, and let a tracker lead."""
    log = make_log(connection)
    assert take_leadership(connection, seen=read_leadership(connection), holder="h1:100") is not None
    return log


def _term(connection: sa.Connection) -> int:
    return read_leadership(connection).term


def _lag_grows(connection: sa.Connection, log: Log, _home: Path) -> None:
    [receiver_id] = log.receiver_ids
    log.add_at(receiver_id, NOON + _SECOND, NOON + INTERVAL + _SECOND, NOON + 2 * INTERVAL)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    log.end_batch(NOON + INTERVAL)
    backdate_completion(connection, log.pipeline_id, NOON + INTERVAL, took=3 * INTERVAL)


def _block_corrupt(connection: sa.Connection, log: Log, home: Path) -> None:
    """Store three blocks, change a byte of the second, and let their batch fail with what its reader says."""
    root = home / "blocks"
    root.mkdir(parents=True)
    [store] = replicas_of(open_block_store(str(root)))
    make_identity(store)
    receiver = LineReceiver(connection, str(root), log.receiver_ids[0])
    for line in ("one", "two", "three"):
        receiver.receive([line])
    receiver.close()
    [segment] = root.rglob("*.segment")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + _SECOND})
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    process_id = register_process(connection, kind=ProcessKind.BATCH_RUN, name="words", host="h1", pid=102)
    batches.claim_attempt(
        connection,
        pipeline_id=log.pipeline_id,
        batch_time=NOON + INTERVAL,
        attempt=1,
        run_id="run-1",
        process_id=process_id,
    )
    error = BlockCorruptError(str(segment), len(content) // 3, "crc32c 1", "crc32c 2", "its checksum differs")
    batches.fail_attempt(
        connection,
        pipeline_id=log.pipeline_id,
        batch_time=NOON + INTERVAL,
        attempt=1,
        run_id="run-1",
        error=f"BlockCorruptError: {error}",
        max_attempts=1,
    )


def _no_batches(_connection: sa.Connection, log: Log, _home: Path) -> None:
    log.add_at(log.receiver_ids[0], NOON + _SECOND, NOON + INTERVAL)


def _no_leader(connection: sa.Connection, _log: Log, _home: Path) -> None:
    resign(connection, term=_term(connection))


def _eventful(connection: sa.Connection, _log: Log, _home: Path) -> None:
    make_eventful_log(connection)


def _old_processes(connection: sa.Connection, _log: Log, _home: Path) -> None:
    register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=100, slots=16)
    connection.execute(
        sa.text("UPDATE forebay.processes SET started_at = started_at - CAST(:ago AS interval)"), {"ago": _LONG_AGO}
    )


def _read_stream(connection: sa.Connection, log: Log, _home: Path) -> None:
    log.add_at(log.receiver_ids[0], NOON + _SECOND)
    attach_reader(connection, name="dashboard", stream="lines")


def _hindered(connection: sa.Connection, log: Log, _home: Path) -> None:
    [receiver_id] = log.receiver_ids
    agent_id = register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=100, slots=16)
    schedule_receiver(connection, term=_term(connection), receiver_id=receiver_id, agent_id=agent_id, why="a free slot")
    assignment: int = connection.execute(sa.text("SELECT assignment FROM forebay.receivers")).scalar_one()
    reason = "hindered: a block could not be stored: [Errno 30] Read-only file system: '/blocks/receiver-1'"
    assert set_receiver_state(
        connection, receiver_id=receiver_id, assignment=assignment, state=ReceiverState.ACTIVE, reason=reason
    )


#: The state of each runbook, on a healthy log and in an empty FOREBAY_HOME.
STATES: Mapping[str, Callable[[sa.Connection, Log, Path], None]] = {
    "lag-grows": _lag_grows,
    "block-corrupt": _block_corrupt,
    "dagster-daemon-down": _no_batches,
    "no-leader": _no_leader,
    "positions-lost": _eventful,
    "replay-a-day": _eventful,
    "move-a-stream": _eventful,
    "rotate-secrets": _old_processes,
    "remove-a-stream": _read_stream,
    "store-read-only": _hindered,
}
