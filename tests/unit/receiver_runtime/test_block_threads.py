"""The threads that block generators share: few while all goes well, more when one hangs, and nobody's order changes."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_generator import Block, BlockGenerator, GeneratorState
from receiver_runtime.block_threads import BlockThreads
from receiver_runtime.rate_limiter import RateLimiter
from tests.unit.receiver_runtime.support import ManualClock, eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("value", pa.string())])


class Listener:
    """Keeps the blocks; pushes wait while `gate` is shut and fail while `failures` are left."""

    def __init__(self) -> None:
        self.pushed: list[Block] = []
        self.begun = 0
        self.idle = 0
        self.errors: list[str] = []
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = 0
        self.most_at_once = 0

    def on_add_data(self, data: object, metadata: object) -> None:
        pass

    def on_generate_block(self, block: Block) -> None:
        pass

    def on_push_block(self, block: Block) -> None:
        self.begun += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.gate.wait(30)
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            self.pushed.append(block)
        finally:
            self.at_once -= 1

    def on_idle(self) -> None:
        self.idle += 1

    def on_error(self, message: str, error: Exception) -> None:
        self.errors.append(f"{message}: {error}")

    def on_thread_death(self, error: BaseException) -> None:
        self.errors.append(str(error))

    @property
    def values(self) -> list[str]:
        return [value for block in self.pushed for batch in block.batches for value in batch.column(0).to_pylist()]


@contextmanager
def threads(clock: ManualClock | None = None) -> Iterator[BlockThreads]:
    made = BlockThreads(clock=clock)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def generators(
    shared: BlockThreads, count: int, clock: ManualClock | None = None, *, interval: float = 0.005
) -> Iterator[list[tuple[BlockGenerator, Listener]]]:
    with ExitStack() as stack:
        made = []
        for n in range(count):
            listener = Listener()
            generator = BlockGenerator(
                listener,
                SCHEMA,
                limiter=RateLimiter(),
                block_interval=interval,
                threads=shared,
                clock=clock,
                name=f"receiver {n}",
            )
            generator.start()
            stack.callback(generator.abort)
            stack.callback(listener.gate.set)
            made.append((generator, listener))
        yield made


def test_b02_many_generators_share_one_timer_and_few_push_threads() -> None:
    before = set(threading.enumerate())
    with threads() as shared, generators(shared, 100) as made:
        for round_number in range(3):
            for generator, _ in made:
                generator.add_data(str(round_number))
            eventually(reaches(lambda: min(len(listener.pushed) for _, listener in made), round_number + 1))
        # One a generator would be 200; a slow disk may ask for some.
        assert len(set(threading.enumerate()) - before) <= 1 + 16
        assert [listener.values for _, listener in made] == [["0", "1", "2"]] * 100


def test_b05_blocks_of_each_generator_are_pushed_in_order_and_one_at_a_time() -> None:
    with threads() as shared, generators(shared, 20, interval=0.001) as made:
        for n in range(200):
            for generator, _ in made:
                generator.add_data(str(n))
        for generator, _ in made:
            generator.stop()
        for _, listener in made:
            assert listener.values == [str(n) for n in range(200)]
            assert listener.most_at_once == 1
            assert [block.number for block in listener.pushed] == list(range(1, len(listener.pushed) + 1))


def test_w05_pushes_that_hang_hold_up_no_other_receiver() -> None:
    with threads() as shared, generators(shared, 40) as made:
        hanging, well = made[:30], made[30:]
        for generator, listener in hanging:
            listener.gate.clear()
            generator.add_data("hangs")
        eventually(lambda: sum(listener.begun for _, listener in hanging) >= 2)
        for generator, _ in well:
            generator.add_data("x")
        eventually(lambda: all(listener.values == ["x"] for _, listener in well))
        assert not any(listener.pushed for _, listener in hanging)
        for _, listener in hanging:
            listener.gate.set()
        eventually(lambda: all(listener.values == ["hangs"] for _, listener in hanging))


def test_w05_a_push_that_is_tried_again_holds_no_thread_meanwhile() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 4, clock, interval=0.2) as made:
        for generator, listener in made[:3]:
            listener.failures = 10**6
            generator.add_data("fails")
        clock.advance(0.25)
        eventually(lambda: all(listener.errors for _, listener in made[:3]))
        # The clock stands still: nothing is tried again, and there are two push threads.
        made[3][0].add_data("x")
        made[3][0].stop()
        assert made[3][1].values == ["x"]
        assert shared.push_threads == 2


def test_b06_a_stop_drains_one_generator_and_leaves_the_others_active() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 3, clock, interval=0.2) as made:
        for generator, _ in made:
            generator.add_data("x")
        made[0][0].stop()
        assert made[0][1].values == ["x"]
        made[1][0].abort()
        assert made[1][0].state is GeneratorState.STOPPED_ALL
        assert made[2][0].state is GeneratorState.ACTIVE
        clock.advance(0.25)
        eventually(lambda: made[2][1].values == ["x"])
        assert made[1][1].values == []


def test_a_large_block_is_not_cut_on_the_shared_timer() -> None:
    names: list[str] = []

    class Watching(Listener):
        def on_generate_block(self, block: Block) -> None:
            names.append(threading.current_thread().name)

    with threads() as shared:
        listener = Watching()
        generator = BlockGenerator(listener, SCHEMA, limiter=RateLimiter(), block_interval=0.01, threads=shared)
        generator.start()
        generator.add_multiple_data(["x" * 100_000])
        eventually(lambda: len(listener.pushed) == 1)
        generator.add_multiple_data(["x"])
        eventually(lambda: len(listener.pushed) == 2)
        generator.stop()
    assert names == ["receivers block push", "receivers block timer"]


def test_who_pushes_nothing_for_a_second_keeps_house() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 2, clock, interval=0.2) as made:
        for _ in range(7):
            clock.advance(0.2)
        eventually(lambda: all(listener.idle for _, listener in made))


def test_data_that_would_have_to_wait_is_not_added() -> None:
    listener = Listener()
    limiter = RateLimiter(10)
    generator = BlockGenerator(listener, SCHEMA, limiter=limiter, block_interval=60, max_block_bytes=100)
    few = pa.record_batch([pa.array(["x"])], schema=SCHEMA)
    generator.start()
    try:
        assert generator.add_if_free(few)
        assert not generator.add_if_free(pa.record_batch([pa.array(["x" * 100])], schema=SCHEMA))
        assert not generator.add_if_free(pa.record_batch([pa.array([""] * 9)], schema=SCHEMA))
        limiter.update_rate(0)
        assert generator.add_if_free(few)
        generator.stop()
    finally:
        generator.abort()
    assert listener.values == ["x", "x"]
