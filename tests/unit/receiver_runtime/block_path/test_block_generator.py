from __future__ import annotations

import threading
import tracemalloc
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.block_generator import BlockGenerator, _head_of
from receiver_runtime.block_path.generator_state import TRANSITIONS, GeneratorState, GeneratorStateError
from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.block_path.records import RecordTypeError
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.unit.receiver_runtime.block_path.recording_pusher import RecordingPusher, batches_of
from tests.unit.receiver_runtime.support import ManualClock, advance_until, eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from receiver_runtime.block_path.block import Block
    from receiver_runtime.block_path.block_handler import EncodedBlock
    from receiver_runtime.watching.clock import Clock

SCHEMA = pa.schema([("value", pa.string())])


@contextmanager
def generator(
    pusher: RecordingPusher,
    clock: Clock | None = None,
    *,
    queue_size: int = 10,
    max_block_bytes: int = 2**20,
    limiter: RateLimiter | None = None,
    interval: float = 0.2,
) -> Iterator[BlockGenerator]:
    made = BlockGenerator(
        pusher,
        SCHEMA,
        limiter=limiter or RateLimiter(),
        settings=ReceiverSettings.model_construct(
            block_interval=interval, block_queue_size=queue_size, max_block_bytes=max_block_bytes
        ),
        clock=clock,
    )
    made.start()
    try:
        yield made
    finally:
        pusher.gate.set()
        made.abort()


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], schema=SCHEMA)


def test_b01_the_states_are_walked_in_order_and_start_comes_once() -> None:
    assert list(GeneratorState) == [
        "Initialized",
        "Active",
        "StoppedAddingData",
        "StoppedGeneratingBlocks",
        "StoppedAll",
    ]
    made = BlockGenerator(
        RecordingPusher(), SCHEMA, limiter=RateLimiter(), settings=ReceiverSettings.model_construct(block_interval=0.01)
    )
    states = [made.state]
    made.start()
    states.append(made.state)
    assert states == [GeneratorState.INITIALIZED, GeneratorState.ACTIVE]
    with pytest.raises(GeneratorStateError, match="can't become"):
        made.start()
    made.stop()
    assert made.state is GeneratorState.STOPPED_ALL
    made.stop()
    with pytest.raises(GeneratorStateError):
        made.start()


def test_b01_the_table_has_every_state_and_the_last_is_final() -> None:
    assert set(TRANSITIONS) == set(GeneratorState)
    assert TRANSITIONS[GeneratorState.STOPPED_ALL] == frozenset()


@given(commands=st.lists(st.sampled_from(["start", "stop", "abort", "add", "bulk"]), max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_b01_any_order_of_calls_keeps_the_states_legal(commands: list[str]) -> None:
    pusher = RecordingPusher()
    made = BlockGenerator(
        pusher, SCHEMA, limiter=RateLimiter(), settings=ReceiverSettings.model_construct(block_interval=0.001)
    )
    added = 0
    aborted = False
    for command in commands:
        before = made.state
        try:
            match command:
                case "start":
                    made.start()
                case "stop":
                    made.stop()
                case "abort":
                    aborted = True
                    made.abort()
                case "add":
                    made.add_data("x")
                    added += 1
                case "bulk":
                    made.add_multiple_data(batch("y", "z"))
                    added += 2
        except GeneratorStateError:
            assert made.state is before
            assert (command == "start") == (command not in ("add", "bulk"))
            assert before is not (GeneratorState.INITIALIZED if command == "start" else GeneratorState.ACTIVE)
        after = made.state
        assert (
            after is before or after in TRANSITIONS[before] or (command, after) == ("stop", GeneratorState.STOPPED_ALL)
        )
    if made.state is GeneratorState.ACTIVE:
        made.stop()
    if not aborted:
        assert sum(block.records for block in pusher.pushed) == added


def test_b02_an_interval_must_be_more_than_0() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        ReceiverSettings(block_interval=0)


def test_b02_two_threads_200_ms_and_a_queue_of_ten_blocks() -> None:
    wanted = ReceiverSettings()
    assert (wanted.block_interval, wanted.block_queue_size) == (0.2, 10)
    before = set(threading.enumerate())
    pusher, clock = RecordingPusher(), ManualClock()
    pusher.gate.clear()
    with generator(pusher, clock) as made:
        assert len(set(threading.enumerate()) - before) == 2
        for n in range(12):
            made.add_data(str(n))
            # Wait until there is room for it: the first block may not have been taken from the queue yet.
            advance_until(clock, reaches(lambda: len(pusher.generated), n + 1), step=0.2)
        # One block is being pushed, ten wait, and one waits for the queue.
        eventually(lambda: made.waiting_blocks == 10)
        assert pusher.pushed == []


def test_b03_a_batch_is_wholly_in_one_block() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock, max_block_bytes=355) as made:
        made.add_multiple_data(batch(*["a" * 10] * 10))
        made.add_multiple_data(batch(*["b" * 10] * 25))
        made.add_multiple_data(batch("c", "d"))
        made.stop()
    assert [sorted(set(values)) for values in pusher.values] == [["a" * 10], ["b" * 10], ["c", "d"]]


def test_b03_what_is_larger_than_a_block_comes_in_pieces_that_fit() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    pusher.gate.set()
    values = ["n" * (7 * n % 90) for n in range(200)]
    values[40] = "L" * 5_000
    values[120] = "M" * 1_500
    with generator(pusher, clock, max_block_bytes=1000) as made:
        made.add_multiple_data(batch(*values))
        made.stop()
    assert pusher.all_values == values
    larger = [block for block in pusher.pushed if block.nbytes > 1000]
    assert [block.records for block in larger] == [1, 1]
    # Pieces fill their blocks: there are not many more blocks than the bytes need.
    assert len(pusher.pushed) <= 2 * sum(block.nbytes for block in pusher.pushed) // 1000


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=80), st.integers(64, 2_000))
def test_b03_pieces_are_the_batch_and_each_fits(sizes: list[int], most: int) -> None:
    rest = batch(*("x" * size for size in sizes))
    heads = []
    while rest.num_rows:
        heads.append(_head_of(rest, most))
        rest = rest.slice(heads[-1].num_rows)
    assert [len(value) for head in heads for value in head.column(0).to_pylist()] == sizes
    assert all(head.nbytes <= most or head.num_rows == 1 for head in heads)


def test_b03_single_records_and_batches_keep_their_order() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock) as made:
        made.add_data("1")
        made.add_data("2")
        made.add_multiple_data(batch("3", "4"))
        made.add_data("5")
        clock.advance(0.3)
        eventually(lambda: pusher.pushed)
    assert pusher.values == [["1", "2", "3", "4", "5"]]


def test_b03_adding_needs_an_active_generator() -> None:
    made = BlockGenerator(RecordingPusher(), SCHEMA, limiter=RateLimiter(), settings=ReceiverSettings())
    with pytest.raises(GeneratorStateError, match="Initialized"):
        made.add_data("x")
    made.start()
    made.stop()
    with pytest.raises(GeneratorStateError, match="StoppedAll"):
        made.add_multiple_data(batch("x"))


def test_a_record_of_the_wrong_type_is_refused_without_harm_to_others() -> None:
    pusher = RecordingPusher()
    with generator(pusher, ManualClock()) as made:
        made.add_data("before")
        with pytest.raises(RecordTypeError, match="value"):
            made.add_data(17)
        made.add_data("after")
        made.stop()
    assert pusher.values == [["before", "after"]]


def test_b04_empty_tick_makes_no_block() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock) as made:
        for _ in range(20):
            clock.advance(0.2)
        made.add_multiple_data(batch())
        made.add_data("x")
        clock.advance(0.2)
        eventually(lambda: pusher.pushed)
        made.stop()
    assert pusher.generated == [1]
    assert pusher.values == [["x"]]


def test_b04_a_tick_cuts_what_is_there() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock) as made:
        for n in range(3):
            made.add_data(str(n))
            clock.advance(0.2)
            eventually(reaches(lambda: len(pusher.pushed), n + 1))
    assert pusher.values == [["0"], ["1"], ["2"]]


def test_b05_blocks_are_pushed_in_order() -> None:
    pusher = RecordingPusher()
    with generator(pusher, interval=0.001) as made:
        for n in range(2000):
            made.add_data(str(n))
        made.stop()
    assert pusher.all_values == [str(n) for n in range(2000)]
    assert [block.number for block in pusher.pushed] == list(range(1, len(pusher.pushed) + 1))
    assert pusher.generated == [block.number for block in pusher.pushed]


def test_b06_stop_drains_buffer_and_queue() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    pusher.gate.clear()
    with generator(pusher, clock) as made:
        for n in range(5):
            made.add_data(str(n))
            clock.advance(0.2)
            eventually(reaches(lambda: len(pusher.generated), n + 1))
        made.add_data("last")
        stopper = threading.Thread(target=made.stop)
        stopper.start()
        eventually(lambda: made.state is GeneratorState.STOPPED_GENERATING_BLOCKS)
        assert pusher.pushed == []
        pusher.gate.set()
        stopper.join(20)
    assert pusher.values == [["0"], ["1"], ["2"], ["3"], ["4"], ["last"]]


def test_b07_w05_a_failing_push_is_reported_and_tried_again_in_order() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    pusher.failures = 3
    with generator(pusher, clock) as made:
        made.add_data("a")
        for n in range(3):
            # Advance in small steps: a failure is reported before its repetition is due.
            advance_until(clock, reaches(lambda: len(pusher.errors), n + 1))
            made.add_data("later")
        advance_until(clock, reaches(lambda: len(pusher.pushed), 1))
        made.stop()
    assert pusher.all_values == ["a", "later", "later", "later"]
    assert len(pusher.errors) == 3
    assert "the disk is full" in pusher.errors[0]


def test_b07_the_pause_between_tries_grows() -> None:
    clock = ManualClock()
    failed_at: list[float] = []

    class Failing(RecordingPusher):
        def report_failure(self, message: str, error: Exception) -> None:
            failed_at.append(clock.monotonic())

    pusher = Failing()
    pusher.failures = 10**6
    with generator(pusher, clock) as made:
        made.add_data("a")
        advance_until(clock, lambda: len(failed_at) == 7)
    pauses = [after - before for before, after in pairwise(failed_at)]
    assert all(pause >= 0.09 * 2**n for n, pause in enumerate(pauses))


def test_w05_w17_a_full_queue_stops_who_adds_and_memory_is_bounded() -> None:
    class Unencoding(RecordingPusher):
        """Encodes nothing ahead, so that blocks are held as large as they were added."""

        def encode(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
            raise MemoryError(f"no room for {len(batches)} batches")

    pusher = Unencoding()
    pusher.gate.clear()
    chunk = batch(*["x" * 100] * 10)
    added = [0]
    # No tick passes: it would cut a block that is not full.
    with generator(pusher, ManualClock(), queue_size=7, max_block_bytes=2 * chunk.nbytes) as made:

        def add() -> None:
            try:
                while True:
                    made.add_multiple_data(chunk)
                    added[0] += 1
            except GeneratorStateError:
                return

        adder = threading.Thread(target=add)
        adder.start()
        eventually(lambda: made.waiting_blocks == 2)
        # One block is being pushed; two wait, because the queue takes no more bytes; one waits for the queue; one is
        # being filled; then nothing moves.
        eventually(lambda: made._buffer.nbytes + chunk.nbytes > made._max_block_bytes)
        held = added[0]
        assert held * chunk.nbytes <= 7 * made._max_block_bytes
        assert made.waiting_blocks == 2
        assert not pusher.pushed
        pusher.gate.set()
        eventually(lambda: added[0] > held + 50)
        stopper = threading.Thread(target=made.stop)
        stopper.start()
        stopper.join(20)
        adder.join(20)
        assert not adder.is_alive()
    assert sum(block.records for block in pusher.pushed) == added[0] * 10


def test_w05_a_queue_takes_as_many_small_blocks_as_it_is_set_to() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    pusher.gate.clear()
    with generator(pusher, clock, queue_size=7) as made:
        for n in range(12):
            made.add_data(f"{n}")
            clock.advance(0.2)
            eventually(lambda: made._buffer.records == 0 or made.waiting_blocks == 7)
        eventually(lambda: made.waiting_blocks == 7)
        pusher.gate.set()
        made.stop()
    assert [int(value) for value in pusher.all_values] == list(range(12))


def test_a_block_is_cut_early_when_it_is_full() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock, max_block_bytes=1000) as made:
        for n in range(100):
            made.add_data(f"{n:>46}")
        # No tick has passed so far.
        eventually(lambda: sum(block.records for block in pusher.pushed) >= 80)
        made.stop()
    assert max(block.nbytes for block in pusher.pushed) <= 1000
    assert [int(value) for value in pusher.all_values] == list(range(100))


def test_an_abort_frees_every_waiting_caller_and_drops_held_data() -> None:
    pusher = RecordingPusher()
    pusher.failures = 10**6
    with generator(pusher, interval=0.001, queue_size=1, max_block_bytes=100) as made:
        failed = threading.Event()

        def add() -> None:
            try:
                while True:
                    made.add_data("x" * 40)
            except GeneratorStateError:
                failed.set()

        adder = threading.Thread(target=add)
        adder.start()
        eventually(lambda: made.waiting_blocks == 1 and pusher.errors)
        stopper = threading.Thread(target=made.stop)
        stopper.start()
        made.abort()
        stopper.join(20)
        adder.join(20)
        assert not stopper.is_alive()
        assert failed.is_set()
    assert made.state is GeneratorState.STOPPED_ALL
    assert made.waiting_blocks == 0


def test_small_chunks_become_one_batch_and_large_ones_are_not_copied() -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    large = batch(*["x" * 1000] * 400)
    with generator(pusher, clock, max_block_bytes=2**24) as made:
        for n in range(50):
            made.add_multiple_data(batch(str(n)))
        clock.advance(0.2)
        eventually(lambda: len(pusher.pushed) == 1)
        for _ in range(3):
            made.add_multiple_data(large)
        made.stop()
    assert [len(batches_of(block)) for block in pusher.pushed] == [1, 3]


def test_every_record_needs_a_permit_of_the_limiter() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, clock=clock)
    began = clock.monotonic()
    cut_at: list[float] = []

    class Timed(RecordingPusher):
        def choose_codec(self, block: Block) -> None:
            cut_at.append(clock.monotonic())

    pusher = Timed()
    with generator(pusher, clock, limiter=limiter) as made:
        limiter.acquire(1)
        adder = threading.Thread(target=made.add_multiple_data, args=(batch(*"abcde"),))
        adder.start()
        # It waits for the permits of all five before it adds the first of them.
        assert advance_until(clock, lambda: not adder.is_alive(), step=0.02) >= 0.49
        made.stop()
    assert min(cut_at) - began >= 0.49
    assert pusher.values == [["a", "b", "c", "d", "e"]]


def test_a_failed_cut_keeps_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    pusher, clock = RecordingPusher(), ManualClock()
    with generator(pusher, clock) as made:
        made.add_data("x")
        monkeypatch.setattr("receiver_runtime.block_path.block.to_batch", _out_of_memory)
        clock.advance(0.2)
        eventually(lambda: pusher.errors)
        monkeypatch.undo()
        made.stop()
    assert pusher.values == [["x"]]


def test_b03_a_callback_that_fails_is_reported_and_the_data_is_in() -> None:
    """The caller must not add the data again."""

    class Failing(RecordingPusher):
        def choose_codec(self, block: Block) -> None:
            raise RuntimeError("no")

        def report_failure(self, message: str, error: Exception) -> None:
            super().report_failure(message, error)
            raise RuntimeError("not even this")

    pusher = Failing()
    with generator(pusher, ManualClock()) as made:
        made.add_data("x")
        made.stop()
    assert pusher.values == [["x"]]
    assert pusher.errors == ["a block's codec could not be chosen: no"]


@pytest.mark.parametrize("name", ["push", "choose_codec"])
def test_b07_w05_a_thread_that_dies_is_told_and_nobody_adds_to_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pusher = RecordingPusher()
    monkeypatch.setattr(pusher, name, _die)
    with generator(pusher, interval=0.001) as made:
        made.add_data("x")
        eventually(lambda: pusher.deaths)
        assert made.state is GeneratorState.STOPPED_ALL
        with pytest.raises(GeneratorStateError):
            made.add_data("y")
        made.stop()


def _die(_: object) -> None:
    raise SystemExit


def test_w16_small_single_records_take_no_more_room_than_their_data() -> None:
    """As Python objects they would take ten times as much."""
    pusher, clock = RecordingPusher(), ManualClock()
    # Convert once before measuring: what pyarrow imports then is not memory of records.
    batch("x")
    with generator(pusher, clock, max_block_bytes=2**20) as made:
        tracemalloc.start()
        try:
            for n in range(100_000):
                made.add_data(f"{n:05d}")
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert made._buffer.records == 100_000
        assert held < 2**18
        assert peak < 2**19
        made.stop()
    assert pusher.all_values == [f"{n:05d}" for n in range(100_000)]


def _out_of_memory(*_: object) -> pa.RecordBatch:
    raise MemoryError
