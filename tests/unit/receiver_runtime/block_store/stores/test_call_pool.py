"""Check that calls that hang hold a bounded number of threads, and that callers don't wait for them."""

from __future__ import annotations

import threading

import pytest

from receiver_runtime.block_store.stores import call_pool
from receiver_runtime.block_store.stores.call_pool import CallPool, CallsHangError
from tests.unit.receiver_runtime.support import eventually


def fail() -> None:
    raise ValueError("its own")


def test_a_call_returns_and_raises_as_its_function_does() -> None:
    pool = CallPool("store", limit=1)
    assert pool.call(lambda: 1, 10) == 1
    with pytest.raises(ValueError, match="its own"):
        pool.call(fail, 10)
    assert pool.threads == 1


def test_a_hanging_call_is_given_up_and_later_ones_are_refused_until_it_is_answered() -> None:
    pool = CallPool("store", limit=1)
    began, answer = threading.Event(), threading.Event()

    def hang() -> bool:
        began.set()
        return answer.wait(60)

    call = pool.submit(hang)
    # Only a call that has begun can hang.
    assert began.wait(60)
    with pytest.raises(TimeoutError, match=r"store: no answer in 0\.01 s"):
        pool.wait(call, 0.01)
    with pytest.raises(CallsHangError, match="1 earlier calls"):
        pool.call(lambda: 1, 10)
    answer.set()
    eventually(lambda: not pool._given_up)
    assert pool.call(lambda: 2, 10) == 2
    assert pool.threads == 1


def test_a_call_given_up_before_it_began_is_never_made() -> None:
    pool = CallPool("store", limit=1)
    answer, made = threading.Event(), []
    first = pool.submit(answer.wait)
    second = pool.submit(lambda: made.append(1))
    with pytest.raises(TimeoutError):
        pool.wait(second, 0)
    answer.set()
    assert pool.wait(first, 10)
    pool.call(lambda: None, 10)
    assert made == []


def test_with_one_thread_calls_are_made_in_order() -> None:
    pool = CallPool("store", limit=1)
    made: list[int] = []
    futures = [pool.submit(lambda n=n: made.append(n)) for n in range(100)]  # type: ignore[misc]
    pool.wait(futures[-1], 10)
    assert made == list(range(100))


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_pool, "_IDLE_SECONDS", 0.01)
    pool = CallPool("store", limit=3)
    barrier = threading.Barrier(3)
    futures = [pool.submit(barrier.wait) for _ in range(3)]
    for future in futures:
        pool.wait(future, 10)
    eventually(lambda: pool.threads == 0)
    assert pool.call(lambda: 1, 10) == 1
