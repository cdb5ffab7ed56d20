from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.registration.registrar import Registrar
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from tests.support.polling import joined
from tests.unit.receiver_runtime.support import (
    ManualClock,
    MemoryBlockLog,
    PaidClock,
    advance_until,
    block,
    eventually,
    reaches,
)
from tracker_store.blocks.blocks import AddResult, ControlResponse, NewBlock, OffsetLink
from tracker_store.connection.errors import (
    DriverLogError,
    DriverLogUnavailableError,
    LostCommitsError,
    OffsetConflictError,
    OutcomeUnknownError,
    ReceiverFencedError,
    SequenceGapError,
)
from tracker_store.receivers.processes import ProcessExpiredError
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from receiver_runtime.block_path.registration.receiver_queue import Registration


@pytest.fixture
def log() -> MemoryBlockLog:
    return MemoryBlockLog()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registrar(log: MemoryBlockLog, clock: ManualClock) -> Iterator[Registrar]:
    made = Registrar(log, clock=clock)
    made.start()
    yield made
    made.stop()


def attach(registrar: Registrar, receiver_id: int = 1, limit: int = 100) -> Registration:
    return registrar.attach(receiver_id, registered_through=RegisteredThrough(0), limit=limit)


def submit(registration: Registration, item: NewBlock) -> Future[NewBlock]:
    registration.reserve()
    return registration.submit(item)


def test_waiting_blocks_of_all_receivers_go_in_one_call_in_order(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lanes = {receiver_id: attach(registrar, receiver_id) for receiver_id in (1, 2, 3)}
    log.away = True
    first = submit(lanes[2], block(1, receiver_id=2))
    eventually(lambda: log.calls)
    futures = [
        submit(lanes[receiver_id], block(sequence, receiver_id=receiver_id))
        for sequence in (1, 2)
        for receiver_id in (1, 3)
    ]
    log.away = False
    for future in [first, *futures]:
        advance_until(clock, future.done)
        future.result(60)
    assert len(log.calls[-1]) == 5
    assert [item.sequence for item in log.chain(1)] == [1, 2]


def test_a_group_that_was_sent_is_sent_again_identically(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lane = attach(registrar)
    log.lose_answers = 1
    first = submit(lane, block(1))
    eventually(lambda: log.calls)
    later = [submit(lane, block(sequence)) for sequence in (2, 3)]
    assert not first.done()
    for future in [first, *later]:
        advance_until(clock, future.done)
        future.result(60)
    assert [[item.sequence for item in call] for call in log.calls] == [[1], [1], [2, 3]]
    assert [item.sequence for item in log.chain(1)] == [1, 2, 3]


@pytest.mark.parametrize("error", [DriverLogUnavailableError("53300"), OutcomeUnknownError("cut")])
def test_an_unavailable_driver_log_is_asked_again_with_growing_pauses(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock, error: Exception
) -> None:
    lane = attach(registrar)
    asked: list[float] = []

    def refuse(_: Sequence[NewBlock]) -> Exception:
        asked.append(clock.monotonic())
        return error

    log.refuse_call = refuse
    log.heartbeat_error = error
    future = submit(lane, block(1))
    advance_until(clock, lambda: len(asked) == 8)
    pauses = [after - before for before, after in pairwise(asked)]
    # A failed heartbeat also counts as a failure, so the first pauses may be skipped.
    assert all(pause >= 0.09 * 2 ** min(n, 4) for n, pause in enumerate(pauses))
    assert pauses[-1] >= 1.8
    log.refuse_call, log.heartbeat_error = lambda _: None, None
    advance_until(clock, future.done)
    assert future.result(60) == block(1)


def test_blocks_answered_with_again_are_sent_again(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lane = attach(registrar)
    log.say_again = 2
    future = submit(lane, block(1))
    advance_until(clock, future.done)
    assert len(log.calls) == 3


def test_w21_a_fenced_receiver_fails_by_name_without_effect_on_others(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    fenced, other = attach(registrar, 1), attach(registrar, 2)
    submit(fenced, block(1)).result(20)
    log.fence.add(1)
    log.lose_answers = 1
    futures = [submit(fenced, block(2)), submit(other, block(1, receiver_id=2))]
    advance_until(clock, lambda: all(future.done() for future in futures))
    with pytest.raises(ReceiverFencedError, match="epoch 2"):
        futures[0].result(60)
    assert futures[1].result(60) == block(1, receiver_id=2)
    with pytest.raises(ReceiverFencedError):
        fenced.reserve()
    fenced.wait_until_settled()
    submit(other, block(2, receiver_id=2)).result(20)


def test_a_block_registered_before_the_take_over_is_acknowledged(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lane = attach(registrar)
    log.lose_answers = 1
    future = submit(lane, block(1))
    eventually(lambda: log.chain(1))
    log.fence.add(1)
    advance_until(clock, future.done)
    assert future.result(60) == block(1)


def test_conflict_and_gap_fail_by_name(registrar: Registrar, log: MemoryBlockLog) -> None:
    for receiver_id, sequence, error, said in (
        (1, 1, DriverLogError, "a different block of this very epoch"),
        (2, 9, SequenceGapError, "predecessor is not in the log"),
    ):
        log.chains[receiver_id] = [block(1, receiver_id=receiver_id, records=5)]
        future = submit(attach(registrar, receiver_id), block(sequence, receiver_id=receiver_id))
        with pytest.raises(error, match=said):
            future.result(20)


def test_a_block_that_the_database_refuses_does_not_delay_other_receivers(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lanes = {receiver_id: attach(registrar, receiver_id) for receiver_id in (1, 2, 3)}
    log.away = True
    futures = {n: submit(lane, block(1, receiver_id=n)) for n, lane in lanes.items()}
    eventually(lambda: log.calls)

    def refuse(blocks: Sequence[NewBlock]) -> Exception | None:
        return ValueError("a check failed") if any(item.receiver_id == 2 for item in blocks) else None

    log.refuse_call, log.away = refuse, False
    advance_until(clock, lambda: all(future.done() for future in futures.values()))
    assert futures[1].result(60) == block(1, receiver_id=1)
    assert futures[3].result(60) == block(1, receiver_id=3)
    with pytest.raises(ValueError, match="a check failed"):
        futures[2].result(60)
    submit(lanes[1], block(2)).result(20)


def test_the_number_of_waiting_blocks_is_bounded(registrar: Registrar, log: MemoryBlockLog, clock: ManualClock) -> None:
    lane = attach(registrar, limit=2)
    log.away = True
    futures = [submit(lane, block(1)), submit(lane, block(2))]
    third = threading.Event()

    def reserve() -> None:
        lane.reserve()
        third.set()

    thread = threading.Thread(target=reserve)
    thread.start()
    assert not third.wait(0.05)
    log.away = False
    advance_until(clock, third.is_set)
    joined(thread)
    for future in futures:
        future.result(20)
    lane.release()
    lane.wait_until_settled()


def test_a_heartbeat_is_sent_each_second_and_returns_steering(log: MemoryBlockLog, clock: ManualClock) -> None:
    told: list[ControlResponse] = []
    registrar = Registrar(log, clock=clock)
    registrar.attach(5, registered_through=RegisteredThrough(0), limit=1, on_response=told.append)
    registrar.start()
    eventually(lambda: log.heartbeats == 1)
    log.desired[5], log.rates[5] = DesiredState.PAUSED, 10.0
    for n in range(2, 6):
        clock.advance(1.0)
        eventually(reaches(lambda: log.heartbeats, n))
    registrar.stop()
    assert told[0] == ControlResponse(5, None, DesiredState.RUNNING, 1)
    assert told[-1] == ControlResponse(5, 10.0, DesiredState.PAUSED, 1)
    assert log.heartbeats == 5


def test_steering_also_comes_with_every_block_and_a_failing_callback_stops_nothing(
    log: MemoryBlockLog, clock: ManualClock
) -> None:
    told: list[ControlResponse] = []

    def callback(response: ControlResponse) -> None:
        told.append(response)
        raise RuntimeError("a bug")

    registrar = Registrar(log, clock=clock)
    lane = registrar.attach(1, registered_through=RegisteredThrough(0), limit=10, on_response=callback)
    registrar.start()
    for sequence in (1, 2):
        submit(lane, block(sequence)).result(20)
    registrar.stop()
    assert len(told) >= 2


def test_a_process_that_was_declared_dead_is_informed(log: MemoryBlockLog, clock: ManualClock) -> None:
    expired: list[ProcessExpiredError] = []
    registrar = Registrar(log, clock=clock, on_expired=expired.append)
    log.heartbeat_error = ProcessExpiredError("process 3")
    registrar.start()
    eventually(lambda: expired)
    registrar.stop()


def test_at_the_end_the_futures_of_unregistered_blocks_fail(log: MemoryBlockLog, clock: ManualClock) -> None:
    registrar = Registrar(log, clock=clock)
    lane = attach(registrar)
    registrar.start()
    log.away = True
    future = submit(lane, block(1))
    eventually(lambda: log.calls)
    registrar.stop()
    with pytest.raises(RuntimeError, match="was not registered: the process is ending"):
        future.result(60)
    with pytest.raises(RuntimeError, match="was not registered: the process is ending"):
        lane.reserve()


def test_a_receiver_can_be_attached_only_once(registrar: Registrar) -> None:
    attach(registrar)
    with pytest.raises(ValueError, match="attached already"):
        attach(registrar)


class RecordingStatus(ReceiverStatus):
    """Keeps the waits that are reported to it."""

    def __init__(self) -> None:
        self.away: list[tuple[str, str]] = []
        self.back: list[float] = []

    def driver_log_unavailable(self, what: str, error: Exception) -> None:
        self.away.append((what, str(error)))

    def driver_log_available(self, what: str, seconds: float) -> None:
        self.back.append(seconds)


def test_a_long_wait_is_reported_once_and_then_its_length(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    status = RecordingStatus()
    lane = registrar.attach(1, registered_through=RegisteredThrough(0), limit=100, status=status)
    log.refuse_call = lambda _: DriverLogUnavailableError("53100: no space left")
    future = submit(lane, block(1))
    advance_until(clock, lambda: len(log.calls) >= 8)
    [(what, error)] = status.away
    assert what == "register blocks"
    assert "no space left" in error
    assert status.back == []
    log.refuse_call = lambda _: None
    advance_until(clock, future.done)
    advance_until(clock, lambda: status.back)
    assert status.back[0] > 1.0


def test_one_lost_answer_is_not_reported(log: MemoryBlockLog) -> None:
    status, clock = RecordingStatus(), PaidClock()
    registrar = Registrar(log, clock=clock)
    lane = registrar.attach(1, registered_through=RegisteredThrough(0), limit=100, status=status)

    def pay(_: Sequence[NewBlock]) -> None:
        clock.pays()

    # Only the registrar's own waits make time pass.
    log.refuse_call = pay
    log.lose_answers = 1
    registrar.start()
    for sequence in (1, 2):
        submit(lane, block(sequence)).result(20)
    registrar.stop()
    assert len(log.calls) == 3
    assert (status.away, status.back) == ([], [])


class SlowBlockLog(MemoryBlockLog):
    """A block log whose additions wait for a lock that another process holds."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.lock_is_free = threading.Event()

    def add_blocks(self, blocks: Sequence[NewBlock]) -> list[AddResult]:
        self.asked.set()
        self.lock_is_free.wait(20)
        return super().add_blocks(blocks)


def test_heartbeats_continue_while_blocks_wait_for_a_lock(clock: ManualClock) -> None:
    log = SlowBlockLog()
    registrar = Registrar(log, clock=clock)
    registrar.start()
    future = submit(attach(registrar), block(1))
    assert log.asked.wait(20)
    before = log.heartbeats
    advance_until(clock, lambda: log.heartbeats >= before + 3)
    assert not future.done()
    log.lock_is_free.set()
    future.result(20)
    registrar.stop()


def test_a_detached_receiver_is_gone_and_may_be_attached_again(registrar: Registrar, log: MemoryBlockLog) -> None:
    leaving, other = attach(registrar, 1), attach(registrar, 2)
    submit(leaving, block(1)).result(20)
    registrar.detach(1)
    with pytest.raises(RuntimeError, match="was not registered: the process is ending"):
        leaving.reserve()
    leaving.wait_until_settled()
    submit(other, block(1, receiver_id=2)).result(20)
    again = registrar.attach(1, registered_through=RegisteredThrough(1), limit=10)
    assert submit(again, block(2)).result(20) == block(2)
    assert [item.sequence for item in log.chain(1)] == [1, 2]
    registrar.detach(3)


def test_waiting_blocks_of_a_detached_receiver_fail_and_are_not_sent_again(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    leaving, other = attach(registrar, 1), attach(registrar, 2)
    log.away = True
    futures = [submit(leaving, block(1)), submit(other, block(1, receiver_id=2))]
    eventually(lambda: log.calls)
    # Detach while the driver log is unavailable.
    registrar.detach(1)
    with pytest.raises(RuntimeError, match="was not registered: the process is ending"):
        futures[0].result(20)
    log.away = False
    advance_until(clock, futures[1].done)
    assert futures[1].result(60) == block(1, receiver_id=2)
    assert log.chain(1) == []


def test_a_detached_receiver_is_in_no_later_heartbeat(log: MemoryBlockLog, clock: ManualClock) -> None:
    told: list[ControlResponse] = []
    registrar = Registrar(log, clock=clock)
    registrar.attach(5, registered_through=RegisteredThrough(0), limit=1, on_response=told.append)
    registrar.start()
    eventually(lambda: told)
    registrar.detach(5)
    before = (len(told), log.heartbeats)
    advance_until(clock, lambda: log.heartbeats >= before[1] + 2)
    assert len(told) == before[0]
    registrar.stop()


def test_a_receiver_may_be_detached_before_the_start(log: MemoryBlockLog) -> None:
    registrar = Registrar(log)
    attach(registrar)
    registrar.detach(1)
    attach(registrar)
    registrar.start()
    registrar.stop()
    registrar.detach(1)


def test_many_small_receivers_share_calls(log: MemoryBlockLog, clock: ManualClock) -> None:
    registrar = Registrar(log, clock=clock)
    lanes = {receiver_id: attach(registrar, receiver_id) for receiver_id in range(1, 51)}
    registrar.start()
    submit(lanes[1], block(1)).result(20)
    # A call was just made: blocks that come now are gathered for the next call.
    futures = [submit(lanes[n], block(1, receiver_id=n)) for n in range(2, 51)]
    assert len(log.calls) == 1
    clock.advance(0.05)
    eventually(lambda: all(future.done() for future in futures))
    assert len(log.calls) == 2
    registrar.stop()


def linked(sequence: int) -> NewBlock:
    return replace(block(sequence), links=(OffsetLink("orders", "0", 0, sequence, sequence + 1),))


def test_after_an_offset_conflict_nothing_is_taken_until_the_receiver_continues(
    registrar: Registrar, log: MemoryBlockLog
) -> None:
    lane = attach(registrar)
    submit(lane, linked(1)).result(20)
    log.offset_conflicts = 1
    with pytest.raises(OffsetConflictError, match="the log is at 7"):
        submit(lane, linked(2)).result(20)
    with pytest.raises(OffsetConflictError):
        lane.reserve()
    assert lane.resume() == 1
    assert submit(lane, linked(2)).result(20) == linked(2)
    assert [item.sequence for item in log.chain(1)] == [1, 2]


def test_a_receiver_fenced_after_an_offset_conflict_does_not_continue(
    registrar: Registrar, log: MemoryBlockLog
) -> None:
    lane = attach(registrar)
    log.fence.add(1)
    with pytest.raises(ReceiverFencedError):
        submit(lane, linked(1)).result(20)
    with pytest.raises(ReceiverFencedError):
        lane.resume()


def test_a_heartbeat_finds_that_the_driver_log_lost_acknowledged_blocks(
    log: MemoryBlockLog, registrar: Registrar, clock: ManualClock
) -> None:
    """The receiver is idle: it adds no block that would find a gap."""
    told: list[LostCommitsError] = []
    lost = registrar.attach(1, registered_through=RegisteredThrough(0), limit=100, on_lost=told.append)
    other = attach(registrar, 2)
    for sequence in (1, 2):
        submit(lost, block(sequence)).result(20)
        submit(other, block(sequence, receiver_id=2)).result(20)
    log.tells_newest = True
    heartbeats = log.heartbeats
    advance_until(clock, lambda: log.heartbeats > heartbeats + 1)
    assert told == []
    log.chains[1] = [block(1)]
    advance_until(clock, lambda: told)
    assert "the newest of receiver 1 is sequence 1, and 2 was registered" in str(told[0])
    with pytest.raises(LostCommitsError):
        lost.reserve()
    # It is reported once, and the other receiver is not affected.
    heartbeats = log.heartbeats
    advance_until(clock, lambda: log.heartbeats > heartbeats + 1)
    assert len(told) == 1
    assert submit(other, block(3, receiver_id=2)).result(20).sequence == 3


def test_lost_segments_concern_only_their_receiver(
    registrar: Registrar, log: MemoryBlockLog, clock: ManualClock
) -> None:
    lost, other = attach(registrar, 1), attach(registrar, 2)
    log.away = True
    failing = submit(lost, block(1))
    going = submit(other, block(1, receiver_id=2))
    eventually(lambda: log.calls)

    def refuse(blocks: Sequence[NewBlock]) -> Exception | None:
        concerned = {item.receiver_id for item in blocks} & {1}
        return LostCommitsError("no row of a segment", concerned) if concerned else None

    log.refuse_call = refuse
    log.away = False
    advance_until(clock, going.done)
    assert going.result(60) == block(1, receiver_id=2)
    with pytest.raises(LostCommitsError):
        failing.result(20)


class ReattachingBlockLog(MemoryBlockLog):
    """A block log during whose heartbeat a receiver is detached and attached again."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def heartbeat(self, receiver_ids: Sequence[int]) -> list[ControlResponse]:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().heartbeat(receiver_ids)


def test_a_reattached_receiver_is_not_compared_with_what_its_predecessor_had_registered(clock: ManualClock) -> None:
    log = ReattachingBlockLog()
    registrar = Registrar(log, clock=clock)
    told: list[LostCommitsError] = []
    registrar.attach(1, registered_through=RegisteredThrough(5), limit=100)
    log.tells_newest = True
    log.chains[1] = [block(1)]

    def come_again() -> None:
        registrar.detach(1)
        registrar.attach(1, registered_through=RegisteredThrough(1), limit=100, on_lost=told.append)

    log.meanwhile = come_again
    registrar.start()
    try:
        heartbeats = log.heartbeats
        advance_until(clock, lambda: log.heartbeats > heartbeats + 2)
        assert told == []
    finally:
        registrar.stop()
