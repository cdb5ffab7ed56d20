"""Declare the states of what the driver log holds, and the transitions that each state machine allows.

This module owns the names: the tables' CHECK constraints in `schema` list the same values. Each state column has a
table of transitions here; ARCHITECTURE.md, "State machines", lists the functions that move it. The values of an enum
without such a table (kinds, desired states) are not a machine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class DesiredState(StrEnum):
    """Name what an operator wants of a receiver; durable."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class ReceiverState(StrEnum):
    """Name a receiver's state (the original's K01, with PAUSED and FAILED added)."""

    INACTIVE = "INACTIVE"  # no process runs it; the tracker places it if it should run
    SCHEDULED = "SCHEDULED"  # assigned to an agent, no claim yet
    ACTIVE = "ACTIVE"  # claimed: a process holds the newest epoch
    PAUSED = "PAUSED"  # claimed, but an operator has paused its reading
    FAILED = "FAILED"  # its restarts are used up; Dagster's receiver sensor acts, then a person


RECEIVER_TRANSITIONS: Mapping[ReceiverState, frozenset[ReceiverState]] = {
    ReceiverState.INACTIVE: frozenset({ReceiverState.SCHEDULED}),
    ReceiverState.SCHEDULED: frozenset({ReceiverState.ACTIVE, ReceiverState.FAILED, ReceiverState.INACTIVE}),
    # To SCHEDULED when its process hangs and the agent replaces it.
    ReceiverState.ACTIVE: frozenset(
        {ReceiverState.PAUSED, ReceiverState.FAILED, ReceiverState.INACTIVE, ReceiverState.SCHEDULED}
    ),
    ReceiverState.PAUSED: frozenset(
        {ReceiverState.ACTIVE, ReceiverState.FAILED, ReceiverState.INACTIVE, ReceiverState.SCHEDULED}
    ),
    ReceiverState.FAILED: frozenset({ReceiverState.INACTIVE}),
}


class PipelineState(StrEnum):
    """Say whether a pipeline makes batches; set by an operator, durable (`forebay stop`, `forebay start`)."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # its receivers stop and drain; what waits goes into last batches
    STOPPED = "STOPPED"  # nothing waits and nothing runs; it makes no batches


PIPELINE_TRANSITIONS: Mapping[PipelineState, frozenset[PipelineState]] = {
    PipelineState.RUNNING: frozenset({PipelineState.STOPPING}),
    PipelineState.STOPPING: frozenset({PipelineState.STOPPED, PipelineState.RUNNING}),
    PipelineState.STOPPED: frozenset({PipelineState.RUNNING}),
}


class BatchState(StrEnum):
    """Name a batch's state. FAILED: between two attempts (also after a LOST one); QUARANTINED: waits for a person."""

    ALLOCATED = "ALLOCATED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    BLOCKED = "BLOCKED"  # no block store, target or key of a block: retried without using up attempts
    QUARANTINED = "QUARANTINED"
    DISCARDED = "DISCARDED"  # discarded by a person; the blocks that were kept for it are gone


BATCH_TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    # A run may die before it claims: its attempt is recorded as failed without the batch ever RUNNING.
    BatchState.ALLOCATED: frozenset({BatchState.RUNNING, BatchState.FAILED, BatchState.QUARANTINED}),
    BatchState.RUNNING: frozenset(
        {BatchState.COMPLETED, BatchState.FAILED, BatchState.BLOCKED, BatchState.QUARANTINED}
    ),
    BatchState.FAILED: frozenset({BatchState.RUNNING, BatchState.FAILED, BatchState.QUARANTINED}),
    BatchState.BLOCKED: frozenset(
        {BatchState.RUNNING, BatchState.FAILED, BatchState.QUARANTINED, BatchState.DISCARDED}
    ),
    BatchState.COMPLETED: frozenset(),
    BatchState.QUARANTINED: frozenset({BatchState.COMPLETED, BatchState.DISCARDED}),
    BatchState.DISCARDED: frozenset(),
}
# The states of unfinished batches; the partial index `batches_unfinished` holds exactly these.
UNFINISHED_STATES = (BatchState.ALLOCATED, BatchState.RUNNING, BatchState.FAILED, BatchState.BLOCKED)


class AttemptKind(StrEnum):
    """Name an attempt's purpose: `run` completes a batch, `replay` runs a COMPLETED or QUARANTINED one again."""

    RUN = "run"
    REPLAY = "replay"


class AttemptState(StrEnum):
    """Name the state of one attempt at a batch: it runs, and ends in one way."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  # by the batch's data or code; counted in max_attempts
    BLOCKED = "BLOCKED"  # no block store, target or key of a block; not counted
    LOST = "LOST"  # its process or host died; counted in max_lost_attempts


ATTEMPT_TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.RUNNING: frozenset(
        {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.BLOCKED, AttemptState.LOST}
    ),
    AttemptState.SUCCEEDED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.BLOCKED: frozenset(),
    AttemptState.LOST: frozenset(),
}


class AttemptFailure(StrEnum):
    """Say why an attempt failed; the state in which it ends has the same name."""

    FAILED = AttemptState.FAILED.value
    BLOCKED = AttemptState.BLOCKED.value
    LOST = AttemptState.LOST.value


class StateReplayState(StrEnum):
    """Name the state of a replay forward: of an output with a state, from one batch on."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # by a person, or because a batch failed; no new batch of the output runs
    UNDOING = "UNDOING"  # its batches get their former results again
    COMPLETED = "COMPLETED"  # its chain is in force
    UNDONE = "UNDONE"


STATE_REPLAY_TRANSITIONS: Mapping[StateReplayState, frozenset[StateReplayState]] = {
    StateReplayState.RUNNING: frozenset(
        {StateReplayState.STOPPED, StateReplayState.UNDOING, StateReplayState.COMPLETED}
    ),
    # To COMPLETED by its last batch, which was running when it was stopped.
    StateReplayState.STOPPED: frozenset(
        {StateReplayState.RUNNING, StateReplayState.UNDOING, StateReplayState.COMPLETED}
    ),
    StateReplayState.UNDOING: frozenset({StateReplayState.UNDONE}),
    # As long as no later batch has read its chain.
    StateReplayState.COMPLETED: frozenset({StateReplayState.UNDOING}),
    StateReplayState.UNDONE: frozenset(),
}
# The states of unfinished replays forward; the partial index `state_replays_unfinished` holds exactly these.
UNFINISHED_STATE_REPLAYS = (StateReplayState.RUNNING, StateReplayState.STOPPED, StateReplayState.UNDOING)


class ProcessKind(StrEnum):
    """Name the kinds of processes that raise a heartbeat counter."""

    AGENT = "agent"
    RECEIVER = "receiver"
    BATCH_RUN = "batch run"
    BATCH_DRIVER = "batch driver"


class BatchDriverState(StrEnum):
    """Say whether a batch driver may be given runs; the state ends with its process."""

    STARTING = "STARTING"  # loads the code and starts Spark
    READY = "READY"  # claims runs
    DRAINING = "DRAINING"  # claims no more, and ends


BATCH_DRIVER_TRANSITIONS: Mapping[BatchDriverState, frozenset[BatchDriverState]] = {
    BatchDriverState.STARTING: frozenset({BatchDriverState.READY, BatchDriverState.DRAINING}),
    BatchDriverState.READY: frozenset({BatchDriverState.DRAINING}),
    BatchDriverState.DRAINING: frozenset(),
}


class ReceiverEventKind(StrEnum):
    """Name the kinds of events that an operator can read about a receiver, in time order."""

    SCHEDULED = "SCHEDULED"
    STARTED = "STARTED"
    CONNECTED = "CONNECTED"
    RESTARTED = "RESTARTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    STOPPED = "STOPPED"
    ERROR = "ERROR"
    EXITED = "EXITED"
    FENCED = "FENCED"
    FAILED = "FAILED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    BAD_RECORD = "BAD_RECORD"
    SALVAGED = "SALVAGED"


class SegmentState(StrEnum):
    """Name a segment's state: open for the one process that made it, sealed at its final length, then being deleted.

    Deletion removes the file first.
    """

    OPEN = "OPEN"
    SEALED = "SEALED"
    DELETING = "DELETING"


SEGMENT_TRANSITIONS: Mapping[SegmentState, frozenset[SegmentState]] = {
    SegmentState.OPEN: frozenset({SegmentState.SEALED}),
    SegmentState.SEALED: frozenset({SegmentState.DELETING}),
    SegmentState.DELETING: frozenset(),
}


class LinkKind(StrEnum):
    """Say why a partition's position moved."""

    ORIGIN = "origin"  # where reading begins: first link of a partition or of a new generation
    BLOCK = "block"  # the records went into a block
    LOST = "lost"  # the source no longer has them; they are counted, not stored
