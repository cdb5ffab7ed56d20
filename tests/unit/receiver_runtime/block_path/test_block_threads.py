"""Check the threads that block generators share: few normally, more when one hangs, and blocks always stay in order."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_generator import BlockGenerator
from receiver_runtime.block_path.generator_state import GeneratorState
from receiver_runtime.block_path.load.block_threads import BlockThreads
from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.unit.receiver_runtime.block_path.recording_pusher import RecordingPusher
from tests.unit.receiver_runtime.support import ManualClock, advance_until, eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from receiver_runtime.block_path.block import Block

SCHEMA = pa.schema([("value", pa.string())])


@contextmanager
def threads(clock: ManualClock | None = None) -> Iterator[BlockThreads]:
    made = BlockThreads(clock=clock)
    try:
        yield made
    finally:
        made.close()


def push_threads(shared: BlockThreads) -> int:
    """Count the existing push threads, busy or idle."""
    with shared._lock:
        return shared._pushing.busy + len(shared._pushing.idle)


@contextmanager
def generators(
    shared: BlockThreads, count: int, clock: ManualClock | None = None, *, interval: float = 0.005
) -> Iterator[list[tuple[BlockGenerator, RecordingPusher]]]:
    with ExitStack() as stack:
        made = []
        for n in range(count):
            pusher = RecordingPusher()
            generator = BlockGenerator(
                pusher,
                SCHEMA,
                limiter=RateLimiter(),
                settings=ReceiverSettings.model_construct(block_interval=interval),
                threads=shared,
                clock=clock,
                name=f"receiver {n}",
            )
            generator.start()
            stack.callback(generator.abort)
            stack.callback(pusher.gate.set)
            made.append((generator, pusher))
        yield made


def test_b02_many_generators_share_one_timer_and_few_push_threads() -> None:
    before = set(threading.enumerate())
    with threads() as shared, generators(shared, 100) as made:
        for round_number in range(3):
            for generator, _ in made:
                generator.add_data(str(round_number))
            eventually(reaches(lambda: min(len(pusher.pushed) for _, pusher in made), round_number + 1))
        # Without sharing, there would be 200 threads; here, a slow disk may add a few.
        assert len(set(threading.enumerate()) - before) <= 1 + 16
        assert [pusher.all_values for _, pusher in made] == [["0", "1", "2"]] * 100


def test_b05_blocks_of_each_generator_are_pushed_in_order_and_one_at_a_time() -> None:
    with threads() as shared, generators(shared, 20, interval=0.001) as made:
        for n in range(200):
            for generator, _ in made:
                generator.add_data(str(n))
        for generator, _ in made:
            generator.stop()
        for _, pusher in made:
            assert pusher.all_values == [str(n) for n in range(200)]
            assert pusher.most_at_once == 1
            assert [block.number for block in pusher.pushed] == list(range(1, len(pusher.pushed) + 1))


def test_w05_pushes_that_hang_hold_up_no_other_receiver() -> None:
    with threads() as shared, generators(shared, 40) as made:
        hanging, well = made[:30], made[30:]
        for generator, pusher in hanging:
            pusher.gate.clear()
            generator.add_data("hangs")
        eventually(lambda: sum(pusher.begun for _, pusher in hanging) >= 2)
        for generator, _ in well:
            generator.add_data("x")
        eventually(lambda: all(pusher.all_values == ["x"] for _, pusher in well))
        assert not any(pusher.pushed for _, pusher in hanging)
        for _, pusher in hanging:
            pusher.gate.set()
        eventually(lambda: all(pusher.all_values == ["hangs"] for _, pusher in hanging))


def test_w05_a_push_that_is_tried_again_holds_no_thread_meanwhile() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 4, clock, interval=0.2) as made:
        for generator, pusher in made[:3]:
            pusher.failures = 10**6
            generator.add_data("fails")
        clock.advance(0.25)
        eventually(lambda: all(pusher.errors for _, pusher in made[:3]))
        # The clock stands still: no push is repeated, and there are two push threads.
        made[3][0].add_data("x")
        made[3][0].stop()
        assert made[3][1].all_values == ["x"]
        assert push_threads(shared) == 2


def test_b06_a_stop_drains_one_generator_and_leaves_the_others_active() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 3, clock, interval=0.2) as made:
        for generator, _ in made:
            generator.add_data("x")
        made[0][0].stop()
        assert made[0][1].all_values == ["x"]
        made[1][0].abort()
        assert made[1][0].state is GeneratorState.STOPPED_ALL
        assert made[2][0].state is GeneratorState.ACTIVE
        clock.advance(0.25)
        eventually(lambda: made[2][1].all_values == ["x"])
        assert made[1][1].all_values == []


def test_a_large_block_is_not_cut_on_the_shared_timer() -> None:
    names: list[str] = []

    class Watching(RecordingPusher):
        def choose_codec(self, block: Block) -> None:
            names.append(threading.current_thread().name)

    with threads() as shared:
        pusher = Watching()
        generator = BlockGenerator(
            pusher,
            SCHEMA,
            limiter=RateLimiter(),
            settings=ReceiverSettings.model_construct(block_interval=0.01),
            threads=shared,
        )
        generator.start()
        generator.add_multiple_data(pa.record_batch([pa.array(["x" * 100_000])], schema=SCHEMA))
        eventually(lambda: len(pusher.pushed) == 1)
        generator.add_multiple_data(pa.record_batch([pa.array(["x"])], schema=SCHEMA))
        eventually(lambda: len(pusher.pushed) == 2)
        generator.stop()
    assert names == ["receivers block push", "receivers block timer"]


def test_an_idle_generator_calls_on_idle_after_a_second() -> None:
    clock = ManualClock()
    with threads(clock) as shared, generators(shared, 2, clock, interval=0.2) as made:
        for _ in range(7):
            clock.advance(0.2)
        eventually(lambda: all(pusher.idle for _, pusher in made))


def test_add_if_free_refuses_data_that_would_have_to_wait() -> None:
    pusher = RecordingPusher()
    limiter = RateLimiter(10)
    generator = BlockGenerator(
        pusher,
        SCHEMA,
        limiter=limiter,
        settings=ReceiverSettings.model_construct(block_interval=60, max_block_bytes=100),
    )
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
    assert pusher.all_values == ["x", "x"]


class DyingClock(ManualClock):
    """A clock that raises on threads with `name` in their name, while `failures` are left.

    Generators take `steady`, which has the same time, so that the failures are those of the threads' own code.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.steady = ManualClock()
        self.failures = 0

    def monotonic(self) -> float:
        if self.failures and self._name in threading.current_thread().name:
            self.failures -= 1
            raise MemoryError
        return self.steady.monotonic()

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        self.steady.wait_on(condition, seconds)

    def advance(self, seconds: float) -> None:
        self.steady.advance(seconds)


@pytest.mark.parametrize("error", [SystemExit(1), MemoryError(), KeyboardInterrupt()])
def test_an_error_that_escapes_a_call_is_counted_and_reported_and_ends_no_thread(error: BaseException) -> None:
    def die() -> None:
        raise error

    # Threads of another test may still be ending.
    others = set(threading.enumerate())
    with threads() as shared:
        shared.attach()
        eventually(lambda: push_threads(shared) == 2)
        before = {thread for thread in threading.enumerate() if "block" in thread.name} - others
        assert before
        told: list[BaseException] = []
        for _ in range(10):
            shared.submit(die, on_death=told.append)
            shared.at(0.0, die, on_death=told.append)
        eventually(reaches(lambda: len(told), 20))
        assert set(told) == {error}
        done = threading.Semaphore(0)
        shared.submit(done.release)
        shared.at(0.0, done.release)
        assert done.acquire(timeout=60)
        assert done.acquire(timeout=60)
        eventually(lambda: shared.deaths == 20)
        assert {thread for thread in threading.enumerate() if "block" in thread.name} >= before
        assert push_threads(shared) == 2


def test_a_failing_death_callback_delays_no_other_call() -> None:
    def die(error: BaseException | None = None) -> None:
        raise SystemExit from error

    with threads() as shared:
        shared.attach()
        shared.submit(die, on_death=die)
        shared.at(0.0, die, on_death=die)
        eventually(lambda: shared.deaths == 4)
        done = threading.Event()
        shared.at(0.0, lambda: shared.submit(done.set))
        assert done.wait(60)


@pytest.mark.parametrize("role", ["timer", "push"])
def test_a_thread_that_fails_itself_is_counted_and_replaced(role: str) -> None:
    clock = DyingClock(f"block {role}")
    with threads(clock) as shared, generators(shared, 3, clock.steady) as made:
        for number in range(5):
            clock.failures = 3
            for generator, _ in made:
                generator.add_data(str(number))
            advance_until(clock, lambda: clock.failures == 0)
        values = [str(number) for number in range(5)]
        advance_until(clock, lambda: all(pusher.all_values == values for _, pusher in made))
        # Another failure may still be in progress.
        eventually(reaches(lambda: shared.deaths, 15))
        assert not any(pusher.errors or pusher.deaths for _, pusher in made)


def test_a_failed_tick_is_reported_to_its_generator_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a receiver without a tick would stay for ever and push nothing."""

    def die() -> None:
        raise OSError(28, "No space left on device")

    with threads() as shared, generators(shared, 2) as made:
        (first, told), (second, pusher) = made
        monkeypatch.setattr(first._cutter, "ask_for_cut", die)
        monkeypatch.setattr(first._cutter, "_run", die)
        first.add_data("x")
        eventually(lambda: [str(error) for error in told.deaths] == ["[Errno 28] No space left on device"])
        assert first.state is GeneratorState.STOPPED_ALL
        second.add_data("y")
        eventually(lambda: pusher.all_values == ["y"])


def test_work_waits_only_until_the_system_can_start_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with threads(clock) as shared:
        shared.attach()
        eventually(lambda: push_threads(shared) == 2)
        gate, begun, done = threading.Event(), threading.Semaphore(0), threading.Event()

        def hang() -> None:
            begun.release()
            gate.wait(60)

        for _ in range(2):
            shared.submit(hang)
        for _ in range(2):
            assert begun.acquire(timeout=60)
        shared.attach()
        shared.attach()
        failures = 3
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            nonlocal failures
            if failures and "block push" in thread.name:
                failures -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        shared.submit(done.set)
        advance_until(clock, done.is_set)
        assert failures == 0
        gate.set()
