"""Put a driver log, and where needed a block store, into the state that a runbook is about, and out of it.

It imports nothing of pytest. Each state begins with a healthy log: one stream, one pipeline, a leading tracker. It is
made by the driver log's own functions; only times are set directly.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from receiver_runtime.block_store.frames.errors import BlockCorruptError
from receiver_runtime.block_store.stores.identity import make_identity
from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.eventful_log import COMPLETED, QUARANTINED, backdate_completion, make_eventful_log
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, new_segment
from tests.support.driver_log.placing import schedule_receiver
from tests.support.driver_log.stored_lines import LineReceiver
from tracker_store.batches import batches
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import apply_pipeline, apply_stream
from tracker_store.batches.readers import attach_reader
from tracker_store.batches.run_queue import enqueue_run, register_batch_driver, set_batch_driver_state
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.blocks.blocks import AddOutcome
from tracker_store.blocks.segments import salvage_blocks, seal_salvaged
from tracker_store.receivers.leadership import read_leadership, resign, take_leadership
from tracker_store.receivers.processes import (
    deregister_process,
    end_processes_of_pid,
    expire_process,
    live_processes,
    register_process,
)
from tracker_store.receivers.receivers import (
    NOT_STORING,
    placements,
    report_event,
    restart_receivers,
    set_receiver_state,
)
from tracker_store.receivers.source_lag import LagReport, Unread, report_source_lag
from tracker_store.schema.states import BatchDriverState, ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

#: What `forebay apply` of a page applies; no driver log of a state has it.
MODULE = """
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

lines = Stream("lines", SocketText(host="127.0.0.1", port=9999), receivers=2)
pipeline = Pipeline("words", interval="10s")


@pipeline.output(inputs=[lines], sink=ParquetSink("counts"))
def counts(lines):
    return lines
"""
#: The modules of pages whose cure changes the code, by page.
MODULES = {"remove-a-stream": MODULE.replace('"lines"', '"others"').replace('"words"', '"both"')}
#: The rows that a command leaves in the driver log, whatever the page; there are none in a page's state.
LEFT_BY = {
    "apply": "SELECT FROM forebay.pipelines WHERE declaration #> '{outputs,counts,sink}' IS NOT NULL",
    "receivers restart": "SELECT FROM forebay.receiver_events WHERE kind = 'RESTARTED' AND epoch = 0",
}
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
    """Store three blocks, copy their file, change a byte, and let their batch fail with what its reader says."""
    root = home / "blocks"
    root.mkdir(parents=True)
    [store] = replicas_of(open_block_store(str(root)))
    make_identity(store)
    # A bisection reads the stream's columns from the declaration.
    connection.execute(
        sa.text("UPDATE forebay.streams SET declaration = jsonb_set(declaration, '{source}', CAST(:source AS jsonb))"),
        {"source": SocketText(host="127.0.0.1", port=9999).model_dump_json()},
    )
    receiver = LineReceiver(connection, str(root), log.receiver_ids[0])
    for line in ("one", "two", "three"):
        receiver.receive([line])
    receiver.close()
    [segment] = root.rglob("*.segment")
    shutil.copy(segment, home / "copy.segment")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON + _SECOND})
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    claim_batch(connection, log.pipeline_id, NOON + INTERVAL, run_id="run-1")
    error = BlockCorruptError(str(segment), len(content) // 3, "crc32c 1", "crc32c 2", "its checksum differs")
    fail_batch(
        connection,
        log.pipeline_id,
        NOON + INTERVAL,
        run_id="run-1",
        error=f"BlockCorruptError: {error}",
        max_attempts=1,
        pauses=None,
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


def _stream_to_remove(connection: sa.Connection, log: Log, home: Path) -> None:
    """Let another pipeline read the stream too, beside one that stays; nothing waits for it."""
    _read_stream(connection, log, home)
    others = apply_stream(connection, name="others", declaration={"source": {}, "settings": {}}, receivers=1)
    apply_pipeline(
        connection,
        name="both",
        declaration={"max_attempts": 3, "streams": ["lines", "others"]},
        stream_ids=[log.stream_id, others],
        interval=INTERVAL,
        at_latest=True,
    )


def _reader_holds_back(connection: sa.Connection, log: Log, home: Path) -> None:
    """Let 20 GB wait for a reader whose query has ended, the alert's limit being 10 GB."""
    _read_stream(connection, log, home)
    log.add_at(log.receiver_ids[0], NOON + 2 * _SECOND, records=2_000_000_000)


def _placed(connection: sa.Connection, log: Log) -> tuple[int, int]:
    """Place the receiver on an agent of the host h1; return the agent's process and the receiver's assignment."""
    [receiver_id] = log.receiver_ids
    agent_id = register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=100, slots=16)
    schedule_receiver(connection, term=_term(connection), receiver_id=receiver_id, agent_id=agent_id, why="a free slot")
    assignment: int = connection.execute(sa.text("SELECT assignment FROM forebay.receivers")).scalar_one()
    return agent_id, assignment


def _not_storing(connection: sa.Connection, log: Log, what: str) -> None:
    """Let the receiver hold data that it can't store or register; it has said so once."""
    [receiver_id] = log.receiver_ids
    _, assignment = _placed(connection, log)
    assert set_receiver_state(
        connection,
        receiver_id=receiver_id,
        assignment=assignment,
        state=ReceiverState.ACTIVE,
        reason=f"{NOT_STORING} for 60 s: {what}",
    )
    _report(connection, receiver_id, ReceiverEventKind.ERROR, what)


def _report(
    connection: sa.Connection, receiver_id: int, kind: ReceiverEventKind, message: str, detail: str = ""
) -> None:
    report_event(connection, receiver_id=receiver_id, epoch=1, kind=kind, message=message, detail=detail)


def _store_read_only(connection: sa.Connection, log: Log, _home: Path) -> None:
    what = "a block could not be stored: [Errno 30] Read-only file system: '/blocks/receiver-1'"
    _not_storing(connection, log, what)


def _disk_full(connection: sa.Connection, log: Log, _home: Path) -> None:
    _not_storing(connection, log, "a block could not be stored: [Errno 28] No space left on device: '/blocks'")


def _postgres_away(connection: sa.Connection, log: Log, _home: Path) -> None:
    """Let the server answer and accept no blocks: else no statement could be run."""
    _not_storing(connection, log, "the driver log does not register blocks: canceling statement due to lock timeout")


def _store_not_mounted(connection: sa.Connection, log: Log, home: Path) -> None:
    (home / "blocks").mkdir()
    attach_block_store(connection, host="h1", roots={"directory-1": str(home / "blocks")})
    why = f"the block store {home / 'blocks'} can't be reached (not mounted? Its file _store is missing)"
    _report(connection, log.receiver_ids[0], ReceiverEventKind.ERROR, "a block could not be stored", why)


def _driver_dies(connection: sa.Connection, _log: Log, _home: Path) -> None:
    """Let a driver be killed while a run waits for it."""
    driver = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="batch-driver-1", host="h1", pid=103)
    register_batch_driver(connection, process_id=driver, location="forebay")
    set_batch_driver_state(connection, process_id=driver, state=BatchDriverState.READY)
    assert enqueue_run(connection, run_id="run-1", location="forebay")
    assert end_processes_of_pid(connection, hosts=["h1"], pid=103, why="its process ended") == 1


def _host_lost(connection: sa.Connection, log: Log, _home: Path) -> None:
    """Let the only host fall silent, so that its receiver waits."""
    agent_id, _ = _placed(connection, log)
    attach_block_store(connection, host="h1", roots={"directory-1": "/blocks"})
    why = "no heartbeat from agent h1 for 10 s"
    beats: int = connection.execute(
        sa.text("SELECT heartbeat FROM forebay.processes WHERE id = :id"), {"id": agent_id}
    ).scalar_one()
    done = expire_process(connection, term=_term(connection), process_id=agent_id, heartbeat=beats, why=why)
    assert done == "expired"


def _pipeline_stale(connection: sa.Connection, log: Log, home: Path) -> None:
    """Let blocks wait for a pipeline that has made no batch since it was applied, long ago."""
    _no_batches(connection, log, home)
    connection.execute(sa.text("UPDATE forebay.pipelines SET applied_at = :noon, state_since = :noon"), {"noon": NOON})


def _receiver_killed(connection: sa.Connection, log: Log, _home: Path) -> None:
    """Let a process store two blocks and register one, and its successor salvage the other and fence it.

    A segment of another host stays open: its successor could not reach it.
    """
    [receiver_id] = log.receiver_ids
    killed = claim_anew(connection, receiver_id)
    segment_id = new_segment(connection, killed, "receiver-1/1")
    add(connection, block(killed, killed.sequence + 1, segment_id=segment_id))
    elsewhere = new_segment(connection, killed, "receiver-1/2")
    connection.execute(
        sa.text("UPDATE forebay.log_segments SET opened_at = opened_at - CAST(:ago AS interval) WHERE id = :id"),
        {"ago": 31 * _LONG_AGO, "id": elsewhere},
    )
    successor = claim_anew(connection, receiver_id)
    found = block(successor, successor.sequence + 1, segment_id=segment_id, offset=200)
    outcome, _ = salvage_blocks(connection, [found], salvaged_to=300)
    assert outcome is AddOutcome.ADDED
    seal_salvaged(connection, {segment_id: 300}, claimed=successor, through=found.sequence)
    said = f"1 blocks, 10 records registered as {found.sequence}..{found.sequence}"
    _report(connection, receiver_id, ReceiverEventKind.SALVAGED, said)
    _report(connection, receiver_id, ReceiverEventKind.FENCED, "another process owns the receiver", "0 records")
    _remove_unsalvaged(connection, log)


def _remove_unsalvaged(connection: sa.Connection, log: Log) -> None:
    """Let a second receiver, removed long ago, have a segment that no process has salvaged."""
    apply_stream(connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=2)
    [removed] = {placed.receiver_id for placed in placements(connection)} - set(log.receiver_ids)
    new_segment(connection, claim_anew(connection, removed), f"receiver-{removed}/1")
    connection.execute(
        sa.text("UPDATE forebay.receivers SET removed_at = clock_timestamp() - CAST(:ago AS interval) WHERE id = :id"),
        {"ago": 31 * _LONG_AGO, "id": removed},
    )


def _source_ahead(connection: sa.Connection, log: Log, _home: Path) -> None:
    """Let a receiver say that its source has a record of long ago that it has not read."""
    _report_unread(connection, log, Unread(7, "records", end=7, oldest_at=NOON.timestamp()))


def _read_all(connection: sa.Connection, log: Log, _home: Path) -> None:
    _report_unread(connection, log, Unread(0, "records"))


def _report_unread(connection: sa.Connection, log: Log, unread: Unread) -> None:
    [receiver_id] = log.receiver_ids
    process_id = register_process(connection, kind=ProcessKind.RECEIVER, name="lines/1", host="h1", pid=106)
    connection.execute(
        sa.text("UPDATE forebay.receivers SET process_id = :process WHERE id = :id"),
        {"process": process_id, "id": receiver_id},
    )
    report = LagReport(receiver_id, whole=True, unread={("orders", "0"): unread})
    assert report_source_lag(connection, process_id=process_id, reports=[report]) == {receiver_id}


def _stops(connection: sa.Connection, _log: Log, _home: Path) -> None:
    """Request a stop while a receiver runs, a block waits and a batch runs."""
    make_eventful_log(connection)
    assert stop_pipelines(connection) == ["words"]


#: The state of each runbook, on a healthy log and in an empty FOREBAY_HOME.
STATES: Mapping[str, Callable[[sa.Connection, Log, Path], None]] = {
    "batch-driver-dies": _driver_dies,
    "batch-failed": _eventful,
    "block-corrupt": _block_corrupt,
    "dagster-daemon-down": _no_batches,
    "disk-full": _disk_full,
    "host-lost": _host_lost,
    "lag-grows": _lag_grows,
    "move-a-stream": _eventful,
    "no-leader": _no_leader,
    "pipeline-stale": _pipeline_stale,
    "positions-lost": _eventful,
    "postgres-away": _postgres_away,
    "reader-holds-back": _reader_holds_back,
    "receiver-failed": _eventful,
    "receiver-killed": _receiver_killed,
    "remove-a-stream": _stream_to_remove,
    "replay-a-day": _eventful,
    "rotate-secrets": _old_processes,
    "source-ahead": _source_ahead,
    "stop-and-start": _stops,
    "store-not-mounted": _store_not_mounted,
    "store-read-only": _store_read_only,
}


def _start_driver(connection: sa.Connection, _log: Log, _home: Path) -> None:
    """Let the agent start another driver."""
    driver = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="batch-driver-1", host="h1", pid=104)
    register_batch_driver(connection, process_id=driver, location="forebay")
    set_batch_driver_state(connection, process_id=driver, state=BatchDriverState.READY)


def _discard(connection: sa.Connection, log: Log, _home: Path) -> None:
    batches.discard_batch(connection, pipeline_id=log.pipeline_id, batch_time=QUARANTINED)


def _replay(connection: sa.Connection, log: Log, batch_time: datetime, outputs: list[str]) -> None:
    process_id = register_process(connection, kind=ProcessKind.BATCH_RUN, name="words", host="h1", pid=105)
    attempt = batches.claim_replay(
        connection,
        pipeline_id=log.pipeline_id,
        batch_time=batch_time,
        run_id="run-4",
        process_id=process_id,
        reach=timedelta(0),
    )
    for output in outputs:
        commit_batch(
            connection,
            log.pipeline_id,
            batch_time,
            output,
            attempt,
            location=f"data/{output}/attempt={attempt}",
            rows=4,
        )
    batches.complete_replay(
        connection, pipeline_id=log.pipeline_id, batch_time=batch_time, attempt=attempt, outputs=outputs, due=outputs
    )


def _replay_corrupt(connection: sa.Connection, log: Log, _home: Path) -> None:
    _replay(connection, log, NOON + INTERVAL, [])


def _replay_day(connection: sa.Connection, log: Log, _home: Path) -> None:
    for batch_time in (COMPLETED, QUARANTINED):
        _replay(connection, log, batch_time, ["counts"])


def _batch_in_time(connection: sa.Connection, log: Log, _home: Path) -> None:
    """Let one batch process all that waits, within its interval."""
    log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL)
    log.end_batch(NOON + 3 * INTERVAL)
    backdate_completion(connection, log.pipeline_id, NOON + 3 * INTERVAL)


def _place_elsewhere(connection: sa.Connection, _log: Log, _home: Path) -> None:
    """Let an agent of another host run every receiver."""
    agent_id = register_process(connection, kind=ProcessKind.AGENT, name="h2", host="h2", pid=200, slots=16)
    ids = [placed.receiver_id for placed in placements(connection)]
    restart_receivers(connection, receiver_ids=ids, why="moved from h1 to h2")
    for receiver_id in ids:
        schedule_receiver(
            connection, term=_term(connection), receiver_id=receiver_id, agent_id=agent_id, why="moved from h1 to h2"
        )
    _receive(connection, _log, _home)


def _receive(connection: sa.Connection, _log: Log, _home: Path) -> None:
    """Let every receiver be ACTIVE, for no special reason."""
    for placed in placements(connection):
        assert set_receiver_state(
            connection, receiver_id=placed.receiver_id, assignment=placed.assignment, state=ReceiverState.ACTIVE
        )


def _lead(connection: sa.Connection, _log: Log, _home: Path) -> None:
    assert take_leadership(connection, seen=read_leadership(connection), holder="h2:100") is not None


def _restart_processes(connection: sa.Connection, _log: Log, _home: Path) -> None:
    for process in live_processes(connection):
        deregister_process(connection, process.process_id)
    register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=101, slots=16)


#: What happens in the driver log when a person or a process does the part of a cure that is no command of the page.
CURES: Mapping[str, Callable[[sa.Connection, Log, Path], None]] = {
    "batch-driver-dies": _start_driver,
    "batch-failed": _discard,
    "block-corrupt": _replay_corrupt,
    "dagster-daemon-down": _batch_in_time,
    "disk-full": _receive,
    "host-lost": _place_elsewhere,
    "lag-grows": _batch_in_time,
    "move-a-stream": _place_elsewhere,
    "no-leader": _lead,
    "postgres-away": _receive,
    "replay-a-day": _replay_day,
    "rotate-secrets": _restart_processes,
    "source-ahead": _read_all,
    "store-read-only": _receive,
}
