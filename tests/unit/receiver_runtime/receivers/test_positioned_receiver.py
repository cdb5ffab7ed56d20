"""Check ``PositionedReceiver``: what comes out, which positions are registered with it, and which misuse is refused.

The source is a list of numbers: the record at position n is n. So what is registered must be 0, 1, 2 and so on, each
once, whatever fails.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from receiver_runtime.block_path.records import RecordTypeError
from receiver_runtime.receivers.position_buffer import PositionError
from receiver_runtime.receivers.positioned_receiver import Fetched, PositionedReceiver
from receiver_runtime.receivers.positioned_run import SOURCE
from receiver_runtime.sources.source import SourceRule
from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.watching.exit_codes import ExitCode
from tests.unit.receiver_runtime.memory_positions import MemoryPositions
from tests.unit.receiver_runtime.rig import Rig, in_thread, rig, running
from tests.unit.receiver_runtime.support import ManualClock, MemoryBlockLog, advance_until, eventually, reaches
from tracker_store.blocks.blocks import ORIGIN
from tracker_store.connection.errors import EmptyBlockError, ReceiverFencedError
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SECONDS = 30.0


class Numbers(PositionedReceiver):
    """Fetch the numbers below ``end`` from a source that fails, hangs and lies on demand."""

    columns = (("value", "int64"),)
    poll_interval = 0.005

    def __init__(self, *, end: int = 0, page: int = 3) -> None:
        # There is no super().__init__() on purpose, and the names are some that a user may choose.
        self._lock, self._run, self._thread = "a user's", "a user's", "a user's"
        self.end, self.page = end, page
        self.asked: list[int] = []
        self.failures: list[BaseException] = []
        self.registered: list[int] = []
        self.on_registering: Callable[[int], None] = lambda _: None
        self.answer: Callable[[int], Any] = self.answer_numbers

    def fetch(self, position: int) -> Fetched | None:
        self.asked.append(position)
        if self.failures:
            raise self.failures.pop(0)
        answer: Fetched | None = self.answer(position)
        return answer

    def answer_numbers(self, position: int) -> Fetched | None:
        upto = min(position + self.page, self.end)
        return Fetched(list(range(position, upto)), upto) if upto > position else None

    def on_registered(self, position: int) -> None:
        self.registered.append(position)
        self.on_registering(position)


class ByHand(PositionedReceiver):
    """Leave storing to the test; ``read`` waits to be stopped."""

    columns = (("value", "int64"),)

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.registered: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def read(self, position: int) -> None:
        self.reads.append(position)
        while not self.wait(_SECONDS):
            pass

    def on_registered(self, position: int) -> None:
        self.registered.append(position)
        assert self.may_go_on.wait(_SECONDS)


@contextmanager
def positioned(
    root: Path,
    receiver: PositionedReceiver,
    **settings: Any,  # noqa: ANN401  of the rig
) -> Iterator[tuple[Rig, MemoryPositions]]:
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    with rig(root, receiver, log=log, positions=positions, **settings) as made:
        yield made, positions
        made.stop()
        # What was registered continues without a gap or a repeat, and the positions with it.
        links = positions.links()
        assert all(one.to_offset == two.from_offset for one, two in pairwise(links))
        assert {(link.source, link.kind, link.generation) for link in links} <= {(SOURCE, LinkKind.BLOCK, 0)}
        assert all(len(block.links) == 1 for block in log.chain(1))


@contextmanager
def by_hand(root: Path, **settings: Any) -> Iterator[tuple[ByHand, Rig, MemoryPositions]]:  # noqa: ANN401  of the rig
    receiver = ByHand()
    with positioned(root, receiver, **settings) as (made, positions):
        eventually(lambda: receiver.reads == [0], "the start")
        yield receiver, made, positions


def numbers(made: Rig) -> list[int]:
    return [int(value) for value in made.values()]


def reasons(made: Rig) -> list[str]:
    return [f"{message}: {detail}" for _, message, detail in made.reporter.events]


# -- fetch -------------------------------------------------------------------------------------------------------------


def test_pages_are_fetched_from_the_position_behind_the_last_and_registered_with_it(tmp_path: Path) -> None:
    receiver = Numbers(end=10)
    with positioned(tmp_path, receiver) as (made, positions):
        eventually(lambda: numbers(made) == list(range(10)), "the first records")
        receiver.end = 14
        eventually(lambda: numbers(made) == list(range(14)), "the records that came later")
        assert positions.origins == {"all": 0}
        assert positions.links()[-1].to_offset == 14
        assert made.reporter.reasons[-1] == "connected to Numbers, from position 0"
    assert receiver.asked[:5] == [0, 3, 6, 9, 10]


def test_the_next_process_begins_where_the_driver_log_is_and_says_so_first(tmp_path: Path) -> None:
    receiver = Numbers(end=14)
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    positions.origins["all"] = 8
    # An exception here would restart it: the start of a partition that was read is not asked for again.
    receiver.start_position = lambda: 1 // 0  # type: ignore[method-assign]
    with rig(tmp_path, receiver, log=log, positions=positions) as made:
        eventually(lambda: numbers(made) == list(range(8, 14)), "the records from there on")
        assert made.stop().drained
    assert receiver.asked[0] == 8
    assert receiver.registered[0] == 8
    assert receiver.registered[-1] == 14


def test_each_start_says_what_is_registered_before_it_reads(tmp_path: Path) -> None:
    receiver = Numbers(end=3)
    said: list[tuple[str, int]] = []
    receiver.on_registering = lambda position: said.append(("registered", position))

    def answer(position: int) -> Fetched | None:
        said.append(("asked", position))
        return receiver.answer_numbers(position)

    receiver.answer = answer
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: numbers(made) == [0, 1, 2], "the records")
        receiver.failures = [ConnectionError("no route")]
        eventually(lambda: said.count(("registered", 3)) > 1, "the next start")
    assert said[:2] == [("registered", 0), ("asked", 0)]


def test_a_source_begins_where_the_class_says_the_first_time(tmp_path: Path) -> None:
    receiver = Numbers(end=14)
    receiver.start_position = lambda: 11  # type: ignore[method-assign]
    with positioned(tmp_path, receiver) as (made, positions):
        eventually(lambda: numbers(made) == [11, 12, 13], "the records from there on")
        assert positions.origins == {"all": 11}


def test_a_fetch_that_fails_is_made_again_from_the_registered_position(tmp_path: Path) -> None:
    receiver = Numbers(end=10)
    receiver.failures = [ConnectionError("no route"), ConnectionError("no route")]
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: numbers(made) == list(range(10)), "the first records")
        receiver.failures = [TimeoutError("too slow")]
        receiver.end = 20
        eventually(lambda: numbers(made) == list(range(20)), "the records after the failure")
        assert "reading failed: ConnectionError: no route" in reasons(made)
        assert "reading failed: TimeoutError: too slow" in reasons(made)


def test_a_page_without_records_moves_the_position_with_the_records_that_follow(tmp_path: Path) -> None:
    receiver = Numbers()
    answers = {0: Fetched([], 5), 5: Fetched([5, 6], 7), 7: Fetched([], 9)}
    receiver.answer = answers.get
    with positioned(tmp_path, receiver) as (made, positions):
        eventually(lambda: 9 in receiver.asked, "the empty page behind the records")
        eventually(lambda: numbers(made) == [5, 6], "the records")
        [link] = positions.links()
        # The empty page behind them goes in with them, if it came in the same interval.
        assert (link.from_offset, link.to_offset) in ((0, 7), (0, 9))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (([1], 2), "TypeError: fetch returned ([1], 2): return Fetched(records, position), or None if nothing is new"),
        (Fetched([1, 2], 4), "PositionError: 2 records of partition 'all' came with position 4, where they begin"),
        (Fetched([1], 3), "PositionError: position 3 of partition 'all' goes back, it was at 4"),
        (Fetched([], 3), "PositionError: position 3 of partition 'all' goes back, it was at 4"),
        (Fetched([1], "5"), "PositionError: '5' is no position, which is a whole number from 0 to"),  # type: ignore[arg-type]
        (Fetched([1], 5.0), "PositionError: 5.0 is no position"),  # type: ignore[arg-type]
        (Fetched([1], position=True), "PositionError: True is no position"),
        (Fetched([1], -1), "PositionError: -1 is no position, which is from 0 to 9223372036854775807"),
        (Fetched([1], 2**63), "PositionError: 9223372036854775808 is no position"),
        (Fetched(["one"], 5), "RecordTypeError: column 'value' is int64"),
    ],
)
def test_an_answer_that_can_not_be_right_stores_nothing_and_says_why(
    tmp_path: Path, answer: object, reason: str
) -> None:
    receiver = Numbers()
    receiver.start_position = lambda: 4  # type: ignore[method-assign]
    receiver.answer = lambda _: answer
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: any(f"reading failed: {reason}" in one for one in reasons(made)), reason)
        assert made.log.chain(1) == []
        receiver.answer = receiver.answer_numbers
        receiver.end = 6
        eventually(lambda: numbers(made) == [4, 5], "the right answer")


def test_numbers_that_are_no_ints_are_positions_too(tmp_path: Path) -> None:
    receiver = Numbers(end=3)
    receiver.answer = lambda position: Fetched([1], pa.scalar(7).as_py()) if position < 7 else None
    with positioned(tmp_path, receiver) as (made, positions):
        eventually(lambda: made.log.chain(1), "a block")
        assert positions.links()[0].to_offset == 7


def test_records_may_be_arrow_data_with_several_chunks(tmp_path: Path) -> None:
    receiver = Numbers()
    one = pa.record_batch([pa.array([0, 1], pa.int64())], names=["value"])
    table = pa.Table.from_batches([one, pa.record_batch([pa.array([2], pa.int64())], names=["value"])])
    receiver.answer = {0: Fetched(table, 3), 3: Fetched(one.slice(1), 4)}.get
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: numbers(made) == [0, 1, 2, 1], "the records")


# -- buffered records, and blocks of one's own -------------------------------------------------------------------------


def test_s09_b03_buffered_records_are_one_block_with_the_position_behind_them(tmp_path: Path) -> None:
    with by_hand(tmp_path, block_interval="60s") as (receiver, made, positions):
        for position in range(1, 5):
            receiver.store_buffered([position - 1], position)
        receiver.store(4, 5)
        assert made.log.chain(1) == []
        receiver.store([5, 6], 9)
        assert [block.records for block in made.log.chain(1)] == [5, 2]
        assert [(link.from_offset, link.to_offset) for link in positions.links()] == [(0, 5), (5, 9)]
        assert numbers(made) == list(range(7))
        eventually(lambda: receiver.registered == [0, 5, 9], "the calls")


def test_s09_a_block_is_cut_at_each_interval(tmp_path: Path) -> None:
    with by_hand(tmp_path, block_interval="20ms") as (receiver, made, _):
        for number in range(3):
            receiver.store_buffered([number], number + 1)
            eventually(reaches(lambda: receiver.registered[-1], number + 1), "the call")
        assert numbers(made) == [0, 1, 2]


def test_s09_w03_the_callback_comes_when_the_block_is_registered_and_not_before(tmp_path: Path) -> None:
    with by_hand(tmp_path) as (receiver, made, _):
        made.log.away = True
        calls = len(made.log.calls)
        receiver.store_buffered([0], 1)
        eventually(lambda: len(made.log.calls) > calls, "an attempt to register")
        assert receiver.registered == [0]
        made.log.away = False
        eventually(lambda: receiver.registered == [0, 1], "the call")


def test_b03_a_callback_that_fails_is_reported_and_the_data_is_in(tmp_path: Path) -> None:
    receiver = Numbers(end=3)
    receiver.on_registering = lambda position: print(1 // (position - 3))  # noqa: T201
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: "on_registered failed, receiving goes on: ZeroDivisionError" in "".join(reasons(made)))
        receiver.end = 6
        eventually(lambda: receiver.registered[-1] == 6, "the calls after it")
        assert numbers(made) == list(range(6))
    assert receiver.asked.count(0) == 1, "the receiver was not restarted"


def test_s09_a_block_of_its_own_has_nothing_before_and_nothing_after_it(tmp_path: Path) -> None:
    with by_hand(tmp_path, block_interval="60s") as (receiver, made, positions):
        receiver.may_go_on.clear()
        receiver.store([0], 1)
        # The hand-over thread is in the callback, so what is stored now waits in the buffer.
        storing, errors = in_thread(lambda: receiver.store([1], 2))
        run = receiver._positioned_run
        assert run is not None
        eventually(lambda: run.buffer.position == 2, "the block in the buffer")
        adding, more_errors = in_thread(lambda: receiver.store_buffered([2], 3))
        adding.join(0.2)
        assert adding.is_alive(), "it waits for the next block"
        receiver.may_go_on.set()
        storing.join(_SECONDS)
        adding.join(_SECONDS)
        assert errors == more_errors == []
        made.stop()
        assert [(link.from_offset, link.to_offset) for link in positions.links()] == [(0, 1), (1, 2), (2, 3)]


def test_s09_a_block_of_its_own_that_is_refused_raises(tmp_path: Path) -> None:
    with by_hand(tmp_path) as (receiver, made, _):
        receiver.store([0], 1)
        made.log.fence.add(1)
        with pytest.raises(ReceiverFencedError):
            receiver.store([1], 2)
        assert made.end().exit_code is ExitCode.FENCED
        assert numbers(made) == [0]


def test_h05_a_block_without_records_is_refused_and_the_position_alone_goes_on(tmp_path: Path) -> None:
    with by_hand(tmp_path) as (receiver, made, positions):
        kinds: list[object] = [[], iter(()), pa.table({"value": pa.array([], pa.int64())})]
        for nothing in kinds:
            with pytest.raises(
                EmptyBlockError, match=r"ByHand stored many .* at position 3, and there were 0 \(store_b"
            ):
                receiver.store(nothing, 3)
        receiver.store_buffered([], 3)
        receiver.store([3], 4)
        assert [(link.from_offset, link.to_offset) for link in positions.links()] == [(0, 4)]
        assert numbers(made) == [3]


def test_records_without_a_position_or_with_a_wrong_one_are_refused(tmp_path: Path) -> None:
    receiver = ByHand()
    with pytest.raises(RuntimeError, match="No ReceiverSupervisor has been attached"):
        receiver.store_buffered([1], 1)
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: receiver.reads == [0], "the start")
        for store in (receiver.store, receiver.store_buffered):
            name = store.__name__
            with pytest.raises(PositionError, match=rf"{name} of ByHand got no position: {name}\(records, position\)"):
                store([1])
        receiver.store([0], 5)
        for wrong in (4, 5):
            with pytest.raises(PositionError, match=f"position {wrong}"):
                receiver.store_buffered([1], wrong)
            with pytest.raises(PositionError, match=f"position {wrong}"):
                receiver.store([1], wrong)
        with pytest.raises(RecordTypeError, match="'value' is int64"):
            receiver.store("one", 6)
        receiver.store([5], 6)
        assert numbers(made) == [0, 5]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_w01_after_a_conflict_everything_is_read_again_from_the_driver_log(tmp_path: Path) -> None:
    receiver = Numbers(end=20)
    with positioned(tmp_path, receiver) as (made, _):
        made.log.offset_conflicts = 3
        eventually(lambda: numbers(made) == list(range(20)), "each record once")
        assert "RuntimeError: another receiver of the stream reads the partition 'all' too" in "".join(reasons(made))
        assert "(receivers=1), or give each receiver of the stream a `partition` of its own" in "".join(reasons(made))


def test_w01_what_the_disk_does_not_take_is_read_again(tmp_path: Path) -> None:
    receiver = Numbers(end=10)
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: numbers(made) == list(range(10)), "the first records")
        made.files.sync_faults = 7
        receiver.end = 20
        eventually(lambda: numbers(made) == list(range(20)), "each record once")
        assert any(one.startswith("handing over failed: WriteAheadLogError") for one in reasons(made))


def test_after_a_failure_reading_begins_when_the_blocks_in_flight_are_answered(tmp_path: Path) -> None:
    with by_hand(tmp_path) as (receiver, made, _):
        made.log.away = True
        receiver.store_buffered([0], 1)
        eventually(lambda: made.log.calls, "an attempt to register")
        made.files.sync_faults = 9
        receiver.store_buffered([1], 2)
        eventually(lambda: receiver.wait(0), "the failure")
        calls = len(made.log.calls)
        eventually(lambda: len(made.log.calls) > calls + 2, "some time")
        assert receiver.reads == [0]
        made.files.sync_faults = 0
        made.log.away = False
        eventually(lambda: receiver.reads == [0, 1], "the next start")
        assert numbers(made) == [0]
        assert "another receiver of the stream" not in "".join(reasons(made))


def test_w02_a_lost_answer_doubles_nothing(tmp_path: Path) -> None:
    receiver = Numbers(end=30)
    with positioned(tmp_path, receiver) as (made, _):
        made.log.lose_answers = 5
        eventually(lambda: numbers(made) == list(range(30)), "each record once")


def test_reading_waits_while_nothing_is_registered(tmp_path: Path) -> None:
    receiver = Numbers(page=100)
    with positioned(tmp_path, receiver, max_block_bytes="1KiB", block_queue_size=2) as (made, _):
        eventually(lambda: receiver.asked, "the start")
        made.log.away = True
        receiver.end = 10**9
        # Two blocks wait to be registered, one to be handed over, one page is in the buffer, one waits for room.
        eventually(lambda: len(set(receiver.asked)) >= 5, "a full buffer")
        calls = len(made.log.calls)
        eventually(lambda: len(made.log.calls) > calls + 3, "some time")
        assert len(set(receiver.asked)) <= 5
        receiver.end = receiver.asked[-1] + 100
        made.log.away = False
        eventually(lambda: numbers(made) == list(range(receiver.end)), "each record once")


def test_s09_c02_the_rate_limit_holds_reading_up(tmp_path: Path) -> None:
    receiver = Numbers(end=10**6, page=1)
    clock = ManualClock()
    with positioned(tmp_path, receiver, clock=clock, receiver_max_rate=10) as (made, _):
        began = clock.monotonic()
        advance_until(clock, lambda: made.log.chain(1)[19:], step=0.01)
        passed = clock.monotonic() - began
        assert len(numbers(made)) <= passed * 10 + 2
        assert len(receiver.asked) <= len(numbers(made)) + 5
        receiver.end = 0


def test_s09_s04_a_stop_registers_everything_that_was_stored_and_says_so(tmp_path: Path) -> None:
    with by_hand(tmp_path, block_interval="60s") as (receiver, made, positions):
        for number in range(1000):
            receiver.store_buffered([number], number + 1)
        assert made.stop().drained
        assert numbers(made) == list(range(1000))
        assert positions.links()[-1].to_offset == 1000
        assert receiver.registered == [0, 1000]


class StoresOne(ByHand):
    """Store one record as a block, then wait to be stopped."""

    def read(self, position: int) -> None:
        self.store([position], position + 1)
        super().read(position)


def test_s04_a_read_that_waits_for_the_driver_log_does_not_hang(tmp_path: Path) -> None:
    receiver, clock = StoresOne(), ManualClock()
    receiver.may_go_on.clear()
    with positioned(tmp_path, receiver, clock=clock, receiver_stop_timeout="5s") as (made, _):
        eventually(lambda: receiver.registered == [0], "the call before it reads")
        made.log.away = True
        receiver.may_go_on.set()
        run = receiver._positioned_run
        assert run is not None
        eventually(lambda: run.buffer.position == 1, "the block in the buffer")
        made.supervisor.lifecycle.stop("now")
        eventually(receiver.is_stopped)
        # Wait three times as long as an on_stop may take. Then stop the clock: the rest depends on the machine's speed.
        over = clock.monotonic() + 15
        advance_until(clock, lambda: clock.monotonic() > over, step=0.1)
        assert not made.endings
        made.log.away = False
        assert made.end() == Ending(ExitCode.STOPPED, "now", drained=True)
        assert not [message for _, message, _ in made.reporter.events if "on_stop" in message]
        assert numbers(made) == [0]


def test_a_stop_does_not_wait_for_a_position_that_does_not_come(tmp_path: Path) -> None:
    receiver = Numbers(end=10)
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    positions.may_answer.clear()
    with running(tmp_path, receiver, log=log, positions=positions, receiver_stop_timeout="300s") as made:
        assert made.stop().drained
        positions.may_answer.set()
    assert receiver.asked == []


def test_a_read_that_returns_is_called_again(tmp_path: Path) -> None:
    class Short(ByHand):
        def read(self, position: int) -> None:
            self.reads.append(position)
            self.store_buffered([position], position + 1)

    receiver = Short()
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: len(receiver.reads) > 2, "the calls")
        assert "RuntimeError: `read` returned and the receiver was not stopped" in "".join(reasons(made))
    assert numbers(made) == list(range(len(numbers(made))))


def test_threads_that_still_store_after_the_end_are_refused(tmp_path: Path) -> None:
    with by_hand(tmp_path) as (receiver, made, _):
        made.stop()
        with pytest.raises(RuntimeError, match="takes no records before `read` is called"):
            receiver.store_buffered([1], 1)
        with pytest.raises(RuntimeError, match="takes no records before `read` is called"):
            receiver.store([1], 1)
        assert receiver.wait(_SECONDS)


# -- the class ---------------------------------------------------------------------------------------------------------


def test_a_class_that_reads_nothing_is_refused_where_it_is_defined() -> None:
    with pytest.raises(
        TypeError, match=r"Idle reads nothing: write fetch\(self, position\), or read\(self, position\)"
    ):

        class Idle(PositionedReceiver):
            columns = (("value", "int64"),)


def test_a_class_with_another_source_rule_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match="Twice has source_rule = sent_again: leave it out"):

        class Twice(Numbers):
            source_rule = SourceRule.SENT_AGAIN


def test_an_object_with_another_source_rule_reads_nothing(tmp_path: Path) -> None:
    receiver = Numbers(end=1)
    receiver.source_rule = SourceRule.NOT_SENT_AGAIN
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: "Numbers has source_rule = not_sent_again: leave it out" in "".join(reasons(made)))
        assert receiver.asked == []


def test_a_partition_needs_a_name(tmp_path: Path) -> None:
    receiver = Numbers(end=1)
    receiver.partition = ""
    with positioned(tmp_path, receiver) as (made, _):
        eventually(lambda: "partition = '' of Numbers: give a text that is not empty" in "".join(reasons(made)))
        receiver.partition = "eu"
        eventually(lambda: numbers(made) == [0], "the record")


def test_each_partition_has_its_own_position(tmp_path: Path) -> None:
    receiver = Numbers(end=2)
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    positions.origins = {"other": 1}
    with rig(tmp_path, receiver, log=log, positions=positions) as made:
        eventually(lambda: numbers(made) == [0, 1], "the records")
    assert positions.origins == {"other": 1, "all": 0}
    assert {link.partition for link in positions.links()} == {"all"}
    assert ORIGIN not in {link.from_offset for link in positions.links()}
