"""Check that each state moves in every way that its table of transitions allows, and in no other."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log, seal
from tests.support.driver_log.placing import schedule_receiver
from tests.support.driver_log.state_moves import MACHINES, RECORDER, SEEN, illegal_moves
from tracker_store.batches import batches
from tracker_store.batches.pipeline_states import advance_stops, start_pipelines, stop_pipelines
from tracker_store.batches.pipelines import apply_stream
from tracker_store.batches.run_queue import register_batch_driver, set_batch_driver_state
from tracker_store.receivers.agents import forget_host
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import deregister_process, expire_process, register_process
from tracker_store.receivers.receivers import (
    give_up_receiver,
    release_receivers,
    restart_receiver,
    set_receiver_state,
)
from tracker_store.retention.cleanup import clean_up_receiver, segments_to_delete
from tracker_store.schema import states
from tracker_store.schema.states import (
    AttemptFailure,
    BatchDriverState,
    BatchState,
    PipelineState,
    ProcessKind,
    ReceiverState,
)
from tracker_store.schema.tables import metadata

if TYPE_CHECKING:
    from datetime import datetime


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a log whose moves are recorded."""
    made = make_log(connection)
    connection.execute(sa.text(RECORDER))
    return made


def seen(log: Log, machine: str) -> set[tuple[str, str]]:
    """Return the moves of one machine, and check that no machine made an illegal one."""
    found = [(row.machine, row.old, row.new) for row in log.connection.execute(sa.text(SEEN))]
    assert illegal_moves(found) == []
    return {(old, new) for moved, old, new in found if moved == machine}


def process(log: Log, kind: ProcessKind = ProcessKind.BATCH_RUN) -> int:
    return register_process(log.connection, kind=kind, name="n", host="h", pid=1)


def test_every_table_with_a_state_has_its_transitions_here() -> None:
    tables = {table.name for table in metadata.sorted_tables if "state" in table.columns}
    assert MACHINES.keys() == tables
    assert len(tables) == len([name for name in vars(states) if name.endswith("_TRANSITIONS")])


class Batches:
    """A series of batches, and attempts at them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.process_id = process(log)
        self._made = 0

    def allocated(self) -> datetime:
        """Allocate a batch with records."""
        self._made += 1
        time = NOON + self._made * INTERVAL
        self.log.add_at(self.log.receiver_ids[0], time - INTERVAL / 2)
        self.log.tracker.allocate_blocks_to_batch(time)
        return time

    def claim(self, time: datetime, attempt: int) -> None:
        claim_batch(
            self.log.connection,
            self.log.pipeline_id,
            time,
            attempt,
            run_id=f"run {attempt}",
            process_id=self.process_id,
        )

    def fail(
        self, time: datetime, attempt: int, failure: AttemptFailure = AttemptFailure.FAILED, *, most: int = 9
    ) -> BatchState | None:
        return fail_batch(
            self.log.connection,
            self.log.pipeline_id,
            time,
            attempt,
            run_id=f"run {attempt}",
            error="a test",
            max_attempts=most,
            failure=failure,
            max_lost_attempts=most,
        )


def test_batches_and_attempts_move_in_every_way_of_their_tables(log: Log) -> None:
    made = Batches(log)
    key: dict[str, Any] = {"pipeline_id": log.pipeline_id}

    # It claims and fails in each way; then it is completed.
    time = made.allocated()
    made.claim(time, 1)
    assert made.fail(time, 1) is BatchState.FAILED
    made.claim(time, 2)
    assert made.fail(time, 2, AttemptFailure.BLOCKED) is BatchState.BLOCKED
    made.claim(time, 3)
    assert made.fail(time, 3, AttemptFailure.LOST) is BatchState.FAILED
    made.claim(time, 4)
    batches.complete_batch(log.connection, **key, batch_time=time, attempt=4, outputs=[])

    # It dies before it claims, from each state; the last attempt quarantines.
    time = made.allocated()
    assert made.fail(time, 1) is BatchState.FAILED
    assert made.fail(time, 2, most=2) is BatchState.QUARANTINED
    replay = batches.claim_replay(
        log.connection, **key, batch_time=time, run_id="replay", process_id=made.process_id, reach=INTERVAL * 0
    )
    batches.complete_replay(log.connection, **key, batch_time=time, attempt=replay, outputs=[], due=[])
    time = made.allocated()
    made.claim(time, 1)
    made.fail(time, 1, AttemptFailure.BLOCKED)
    assert made.fail(time, 2) is BatchState.FAILED
    time = made.allocated()
    made.claim(time, 1)
    made.fail(time, 1, AttemptFailure.BLOCKED)
    assert made.fail(time, 2, most=1) is BatchState.QUARANTINED
    assert made.fail(made.allocated(), 1, most=1) is BatchState.QUARANTINED
    time = made.allocated()
    made.claim(time, 1)
    assert made.fail(time, 1, most=1) is BatchState.QUARANTINED
    batches.discard_batch(log.connection, **key, batch_time=time)
    time = made.allocated()
    made.claim(time, 1)
    made.fail(time, 1, AttemptFailure.BLOCKED)
    batches.discard_batch(log.connection, **key, batch_time=time)

    assert seen(log, "batches") == MACHINES["batches"]
    assert seen(log, "batch_attempts") == MACHINES["batch_attempts"]


class Receiver:
    """The only receiver of a log, moved by each function that moves receivers."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.connection = log.connection
        [self.receiver_id] = log.receiver_ids
        self.agent_id = process(log, ProcessKind.AGENT)
        self.process_id = process(log, ProcessKind.RECEIVER)
        term = take_leadership(self.connection, seen=read_leadership(self.connection), holder="h")
        assert term is not None
        self.term = term

    @property
    def assignment(self) -> int:
        found: int = self.connection.execute(sa.text("SELECT assignment FROM forebay.receivers")).scalar_one()
        return found

    def move(self, state: ReceiverState) -> None:
        """Move within the assignment; ACTIVE and PAUSED name the process."""
        holder = self.process_id if state in (ReceiverState.ACTIVE, ReceiverState.PAUSED) else None
        assert set_receiver_state(
            self.connection,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            state=state,
            process_id=holder,
        )

    def place(self, *then: ReceiverState) -> None:
        """Place the receiver on the agent, and move it on to further states."""
        assert schedule_receiver(
            self.connection, term=self.term, receiver_id=self.receiver_id, agent_id=self.agent_id, why="a test"
        )
        for state in then:
            self.move(state)

    def give_up(self) -> None:
        assert give_up_receiver(
            self.connection,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            process_id=self.process_id,
            reason="hangs",
        )

    def expire(self) -> None:
        expired = expire_process(self.connection, term=self.term, process_id=self.agent_id, heartbeat=0, why="a test")
        assert expired == "expired"
        self.agent_id = process(self.log, ProcessKind.AGENT)

    def is_inactive(self) -> bool:
        found: str = self.connection.execute(sa.text("SELECT state FROM forebay.receivers")).scalar_one()
        return found == "INACTIVE"


def test_receivers_move_in_every_way_of_their_table(log: Log) -> None:
    receiver = Receiver(log)
    active, paused, failed, inactive = (
        ReceiverState.ACTIVE,
        ReceiverState.PAUSED,
        ReceiverState.FAILED,
        ReceiverState.INACTIVE,
    )
    placed: list[tuple[ReceiverState, ...]] = [(), (active,), (active, paused)]
    # Each function that takes a receiver from its agent, from each state that the receiver may have then.
    for states_before in placed:
        receiver.place(*states_before)
        receiver.expire()
        assert receiver.is_inactive()
        receiver.place(*states_before)
        release_receivers(log.connection, term=receiver.term, agent_id=receiver.agent_id, why="a test")
        assert receiver.is_inactive()
        receiver.place(*states_before)
        deregister_process(log.connection, receiver.agent_id)
        assert receiver.is_inactive()
        receiver.agent_id = process(log, ProcessKind.AGENT)
        receiver.place(*states_before)
        receiver.move(inactive)
    for number, states_before in enumerate([*placed, (failed,)]):
        receiver.place(*states_before)
        assert restart_receiver(log.connection, receiver_id=receiver.receiver_id, why="a test")
        assert receiver.is_inactive()
        receiver.place(*states_before)
        declaration = {"source": {}, "settings": {"changed": number}}
        apply_stream(log.connection, name="lines", declaration=declaration, receivers=1)
        assert receiver.is_inactive()
        receiver.place(*states_before)
        apply_stream(log.connection, name="lines", declaration=declaration, receivers=0)
        assert receiver.is_inactive()
        apply_stream(log.connection, name="lines", declaration=declaration, receivers=1)
    # Within an assignment.
    receiver.place(active)
    receiver.give_up()
    receiver.move(active)
    receiver.move(paused)
    receiver.give_up()
    receiver.move(active)
    receiver.move(paused)
    receiver.move(active)
    for states_before in placed[1:]:
        receiver.move(inactive)
        receiver.place(*states_before, failed)
    receiver.move(inactive)
    # A receiver that is bound to a host, which is forgotten.
    for states_before in [*placed, (failed,)]:
        receiver.place(*states_before)
        # Not by deregister_process, which releases the receiver: it was placed on the agent while that ended.
        log.connection.execute(
            sa.text("UPDATE forebay.processes SET ended_at = clock_timestamp() WHERE kind = 'agent'")
        )
        log.connection.execute(sa.text("UPDATE forebay.receivers SET host = 'h'"))
        assert forget_host(log.connection, "h") == (0, 1)
        assert receiver.is_inactive()
        receiver.agent_id = process(log, ProcessKind.AGENT)
    # Stopped before a process claimed it.
    receiver.place()
    stop_pipelines(log.connection)
    assert ("receiver ended", receiver.receiver_id) in advance_stops(log.connection, term=receiver.term)

    assert seen(log, "receivers") == MACHINES["receivers"]


def test_pipelines_move_in_every_way_of_their_table(log: Log) -> None:
    receiver = Receiver(log)
    for stopped in (False, True):
        stop_pipelines(log.connection)
        if stopped:
            advance_stops(log.connection, term=receiver.term)
            state = log.connection.execute(sa.text("SELECT state FROM forebay.pipelines")).scalar_one()
            assert state == PipelineState.STOPPED
        start_pipelines(log.connection)
    assert seen(log, "pipelines") == MACHINES["pipelines"]


def test_segments_move_in_every_way_of_their_table(log: Log) -> None:
    [receiver_id] = log.receiver_ids
    for _ in range(2):
        log.add_at(receiver_id, NOON - INTERVAL)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    made = Batches(log)
    made.claim(NOON + INTERVAL, 1)
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=NOON + INTERVAL, attempt=1, outputs=[]
    )
    clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=NOON + 2 * INTERVAL, max_rows=1000)
    ids = log.connection.execute(sa.text("SELECT id FROM forebay.log_segments ORDER BY id")).scalars().all()
    for _ in range(2):
        seal(log.connection, ids[0], 100)
    for _ in range(2):
        marked = segments_to_delete(log.connection, receiver_id=receiver_id, restore_window=timedelta(0), limit=10)
        assert [segment.segment_id for segment in marked] == [ids[0]]
    seal(log.connection, ids[0], 200)
    assert seen(log, "log_segments") == MACHINES["log_segments"]


def test_batch_drivers_move_in_every_way_of_their_table(log: Log) -> None:
    for first in BatchDriverState:
        for then in BatchDriverState:
            process_id = process(log, ProcessKind.BATCH_DRIVER)
            register_batch_driver(log.connection, process_id=process_id, location="forebay")
            for state in (first, then, BatchDriverState.STARTING, BatchDriverState.READY):
                set_batch_driver_state(log.connection, process_id=process_id, state=state)
    assert seen(log, "batch_drivers") == MACHINES["batch_drivers"]


def test_an_illegal_move_is_found(log: Log) -> None:
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    moves = [(row.machine, row.old, row.new) for row in log.connection.execute(sa.text(SEEN))]
    assert illegal_moves(moves) == ["pipelines: RUNNING -> STOPPED"]
