"""Check that each output of an attempt runs whatever another one did, and what stops the others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from orchestration.batches.attempt_failure import Failure, failure_of
from orchestration.batches.attempt_outputs import (
    AttemptOutputs,
    FailedOutput,
    OutputResult,
    OutputsFailedError,
    running_outputs,
)
from orchestration.batches.unavailable_store import BLOCK_STORE
from orchestration.declarations.sink import TargetUnavailableError
from orchestration.spark.output_threads import OutputThreads, Result
from receiver_runtime.block_store.frames.errors import BlockKeyError, StoreUnavailableError
from tests.support.polling import eventually
from tracker_store.connection.errors import AttemptSupersededError, DriverLogUnavailableError
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestration.declarations.pipeline import Output

AT_ONCE = [1, 2, 5]


@dataclass(frozen=True)
class Named:
    """Stands for an output."""

    name: str


class InThreads(OutputThreads):
    """Threads that inherit nothing; `stopped` is set when they are asked to stop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def inherit(self, run: Callable[[], Result], *, output: str) -> Callable[[], Result]:
        return run

    def stop(self) -> None:
        self.stopped.set()


@dataclass
class Attempt:
    """An attempt whose outputs do what `does` says; it notes what was run and reported."""

    does: dict[str, Callable[[], object]]
    needs: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    threads: InThreads = field(default_factory=InThreads)
    ran: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self, at_once: int = 1) -> list[str]:
        outputs = AttemptOutputs(
            outputs=[cast("Output", Named(name)) for name in self.does],
            run=self._run,
            needs=self._needs,
            judge=self._judge,
            on_committed=lambda result: self.committed.append(result.output),
            on_failed=self._note,
        )
        return [result.output for result in outputs.run_all(self.threads, at_once=at_once)]

    def _run(self, output: Output) -> OutputResult:
        self.ran.append(output.name)
        self.does[output.name]()
        return OutputResult(output.name, 1, "/out", 7)

    def _needs(self, output: Output) -> tuple[tuple[str, ...], ...]:
        return self.needs.get(output.name, (BLOCK_STORE,))

    def _judge(self, error: BaseException) -> Failure:
        return failure_of(error, lambda: None)

    def _note(self, failed: FailedOutput) -> None:
        self.failed.append(failed.output)


def raising(error: BaseException) -> Callable[[], object]:
    def does() -> object:
        raise error

    return does


def fine() -> None:
    """Do nothing."""


class SparkError(Exception):
    """Stands for PySpark's errors."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"
AWAY = StoreUnavailableError("/blocks", "there is no such directory")
POISON = "ValueError: no number: 'x'"


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_m02_an_output_that_fails_holds_up_no_other(at_once: int) -> None:
    attempt = Attempt({"a": raising(ValueError("no number: 'x'")), "b": fine, "c": raising(KeyError("k")), "d": fine})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run(at_once)
    assert sorted(attempt.ran) == ["a", "b", "c", "d"]
    assert (sorted(attempt.committed), sorted(attempt.failed)) == (["b", "d"], ["a", "c"])
    assert raised.value.failure.kind is AttemptFailure.FAILED
    for said in ("2 of 4 outputs failed: ", f"a: {POISON}", "c: KeyError: 'k'"):
        assert said in str(raised.value).partition("\n")[0]
    assert raised.value.__cause__ in (raised.value.failed[0].error, raised.value.failed[1].error)


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_all_results_are_returned_in_order(at_once: int) -> None:
    attempt = Attempt(dict.fromkeys("abcdef", fine))
    assert attempt.run(at_once) == list("abcdef")
    assert sorted(attempt.committed) == list("abcdef")


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_no_outputs_are_no_failure(at_once: int) -> None:
    assert Attempt({}).run(at_once) == []


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("error", [ValueError("x"), AttemptSupersededError("newer")], ids=repr)
def test_an_only_output_raises_its_own_error(at_once: int, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        Attempt({"a": raising(error)}).run(at_once)
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [
        DriverLogUnavailableError("no server"),
        AttemptSupersededError("the batch is RUNNING at attempt 2"),
        SparkError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group run SQLSTATE: XXKDA"),
    ],
    ids=repr,
)
def test_an_attempt_that_is_over_begins_no_other_output(error: Exception) -> None:
    attempt = Attempt({"a": fine, "b": raising(error), "c": fine})
    with pytest.raises(OutputsFailedError, match="not run: c"):
        attempt.run()
    assert (attempt.ran, attempt.committed) == (["a", "b"], ["a"])


def test_an_output_that_kills_its_python_workers_holds_up_no_other() -> None:
    died = SparkError("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
    attempt = Attempt({"a": raising(died), "b": fine})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run()
    assert attempt.committed == ["b"]
    assert raised.value.failure.kind is AttemptFailure.LOST


@pytest.mark.parametrize("at_once", [1, 2])
def test_without_the_block_store_only_outputs_that_read_no_blocks_are_tried(at_once: int) -> None:
    attempt = Attempt({"a": raising(AWAY), "b": raising(AWAY), "c": fine, "d": fine}, needs={"d": ()})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run(at_once)
    assert sorted(attempt.ran) == [*"ab"[:at_once], "d"]
    assert attempt.committed == ["d"]
    assert "c" in str(raised.value).partition("not run: ")[2]
    assert raised.value.failure.kind is AttemptFailure.BLOCKED


@pytest.mark.parametrize("at_once", [1, 2])
def test_without_a_target_only_outputs_that_need_the_same_one_are_not_tried(at_once: int) -> None:
    database = ("postgres", "env:TARGET_URL")
    away = TargetUnavailableError("no connection to the target", unreachable=database)
    places = {"a": (*database, "a"), "b": ("postgres", "env:TARGET"), "c": (*database, "c"), "d": ("directory", "/d")}
    attempt: Attempt

    def until_a_has_failed() -> None:
        eventually(lambda: attempt.failed == ["a"], "a fails")

    attempt = Attempt(
        {"a": raising(away), "b": until_a_has_failed, "c": fine, "d": fine},
        needs={name: (BLOCK_STORE, place) for name, place in places.items()},
    )
    with pytest.raises(OutputsFailedError, match=r"1 of 4 outputs failed \(not run: c\): a: no .* target$") as raised:
        attempt.run(at_once)
    assert sorted(attempt.committed) == ["b", "d"]
    assert raised.value.failure.kind is AttemptFailure.BLOCKED


@dataclass
class OwnError(TargetUnavailableError):
    """An error of a sink in a package of others, which calls no `__init__` but its own."""

    host: str


@pytest.mark.parametrize(
    "error",
    [
        TargetUnavailableError("TARGET_URL is not set"),
        TargetUnavailableError("refused", unreachable=["mydb", "db1"]),
        TargetUnavailableError(),
        OwnError("db1"),
        BlockKeyError("00aa", "no key"),
    ],
)
def test_what_one_output_lacks_holds_up_no_other(error: Exception) -> None:
    attempt = Attempt({"a": raising(error), "b": fine})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run()
    assert (attempt.committed, raised.value.failure.kind) == (["b"], AttemptFailure.BLOCKED)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([ValueError("x"), AWAY], AttemptFailure.BLOCKED),
        ([ValueError("x"), DriverLogUnavailableError("no server")], AttemptFailure.LOST),
        ([SparkError("Python worker exited unexpectedly"), AWAY], AttemptFailure.BLOCKED),
        ([SparkError("Python worker exited unexpectedly"), ValueError("x")], AttemptFailure.LOST),
        ([ValueError("x"), SystemExit(1)], AttemptFailure.FAILED),
    ],
)
def test_an_attempt_counts_no_more_than_its_failure_that_counts_least(
    errors: list[BaseException], kind: AttemptFailure
) -> None:
    """Check this because an output must have all of `max_attempts`, whatever happened to another one."""
    attempt = Attempt({str(number): raising(error) for number, error in enumerate(errors)})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run()
    assert raised.value.failure.kind is kind
    assert all(type(error).__name__ in str(raised.value) or error is AWAY for error in errors)


@pytest.mark.parametrize("words", [0, 100])
def test_each_failure_is_named_on_the_first_line_and_all_errors_fit(words: int) -> None:
    long = f"first line of {{0}}{' and so on' * words}\nwhat follows of {{0}}" + "x" * 5_000
    attempt = Attempt({name: raising(ValueError(long.format(name))) for name in "abc"})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run()
    message = str(raised.value)
    first, *others = message.split("\n")
    assert all(f"{name}: ValueError: first line of {name}" in first for name in "abc")
    assert len(message) <= 2_000
    assert [line for line in others if line.startswith("c: ValueError: first line of c")] != []
    assert words or "what follows of c" in message


def test_of_many_failures_as_many_errors_are_kept_as_there_is_room_for() -> None:
    attempt = Attempt({f"output_{n}": raising(ValueError(f"no {n}\n" + "x" * 5_000)) for n in range(50)})
    with pytest.raises(OutputsFailedError) as raised:
        attempt.run()
    message = str(raised.value)
    assert len(message) <= 2_000
    assert all(f"output_{n}: ValueError: no {n}" in message.partition("\n")[0] for n in range(50))


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_an_interrupt_ends_it_at_once(at_once: int) -> None:
    """Check with an interrupt that comes while the first result is reported, in the thread that waits."""
    attempt = Attempt({"a": fine, "b": fine, "c": fine})

    def interrupted(_: OutputResult) -> None:
        raise KeyboardInterrupt

    outputs = AttemptOutputs(
        outputs=[cast("Output", Named(name)) for name in attempt.does],
        run=attempt._run,
        needs=lambda _: [],
        judge=attempt._judge,
        on_committed=interrupted,
        on_failed=attempt._note,
    )
    with pytest.raises(KeyboardInterrupt):
        outputs.run_all(attempt.threads, at_once=at_once)
    assert len(attempt.ran) <= at_once


def test_outputs_run_at_the_same_time_and_no_more_than_allowed() -> None:
    lock, now, most = threading.Lock(), [0], [0]
    together = threading.Barrier(2, timeout=30)

    def does() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait(60)
        with lock:
            now[0] -= 1

    attempt = Attempt(dict.fromkeys("abcd", does))
    assert attempt.run(2) == list("abcd")
    assert most == [2]


def test_results_are_reported_by_the_calling_thread_while_others_still_run() -> None:
    reported, caller = threading.Event(), []
    attempt = Attempt({"slow": lambda: reported.wait(30), "fast": fine})

    def note(result: OutputResult) -> None:
        caller.append(threading.current_thread())
        if result.output == "fast":
            reported.set()

    outputs = AttemptOutputs(
        outputs=[cast("Output", Named(name)) for name in attempt.does],
        run=attempt._run,
        needs=lambda _: [],
        judge=attempt._judge,
        on_committed=note,
        on_failed=attempt._note,
    )
    outputs.run_all(attempt.threads, at_once=2)
    assert reported.is_set()
    assert set(caller) == {threading.current_thread()}


def test_an_attempt_that_is_over_stops_the_outputs_that_run_and_waits_for_them() -> None:
    attempt: Attempt
    ended: list[str] = []

    def until_stopped() -> None:
        assert attempt.threads.stopped.wait(30)
        ended.append("b")
        raise SparkError("[SPARK_JOB_CANCELLED] Job 4 cancelled")

    def until_both_run() -> None:
        eventually(lambda: "b" in attempt.ran, "b runs")
        raise AttemptSupersededError("newer")

    attempt = Attempt({"a": until_both_run, "b": until_stopped, "c": fine})
    with pytest.raises(OutputsFailedError, match="not run: b, c") as raised:
        attempt.run(2)
    assert ended == ["b"]
    assert [failed.output for failed in raised.value.failed] == ["a"]


def test_what_an_output_committed_while_it_was_stopped_counts() -> None:
    attempt: Attempt

    def until_stopped() -> None:
        assert attempt.threads.stopped.wait(30)

    def until_both_run() -> None:
        eventually(lambda: "b" in attempt.ran, "b runs")
        raise AttemptSupersededError("newer")

    attempt = Attempt({"a": until_both_run, "b": until_stopped})
    with pytest.raises(OutputsFailedError):
        attempt.run(2)
    assert attempt.committed == ["b"]


def test_an_interrupted_attempt_does_not_wait_long_for_a_users_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.batches.attempt_outputs.STOP_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("orchestration.batches.attempt_outputs.STOP_SECONDS", 0.05)
    for_ever = threading.Event()
    attempt = Attempt({"a": raising(ValueError("x")), "b": lambda: for_ever.wait(60)})

    def interrupted(_: FailedOutput) -> None:
        eventually(lambda: "b" in attempt.ran, "b runs")
        raise KeyboardInterrupt

    outputs = AttemptOutputs(
        outputs=[cast("Output", Named(name)) for name in attempt.does],
        run=attempt._run,
        needs=lambda _: [],
        judge=attempt._judge,
        on_committed=cast("Any", None),
        on_failed=interrupted,
    )
    with pytest.raises(KeyboardInterrupt):
        outputs.run_all(attempt.threads, at_once=2)
    assert attempt.threads.stopped.is_set()
    for_ever.set()


def test_an_attempt_that_is_over_does_not_wait_for_ever_for_a_users_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because its failure would never be recorded, and the pipeline would stand still."""
    monkeypatch.setattr("orchestration.batches.attempt_outputs.STOP_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("orchestration.batches.attempt_outputs.OVER_SECONDS", 0.05)
    for_ever = threading.Event()

    def unavailable() -> None:
        eventually(lambda: "b" in attempt.ran, "b runs")
        raise DriverLogUnavailableError("gone")

    attempt = Attempt({"a": unavailable, "b": lambda: for_ever.wait(60), "c": fine})
    try:
        with pytest.raises(OutputsFailedError, match="not run: b, c"):
            attempt.run(2)
        assert not for_ever.is_set()
        assert attempt.threads.stopped.is_set()
        assert running_outputs() == ["b"]
    finally:
        for_ever.set()
    eventually(lambda: not running_outputs(), "b ends")
    assert attempt.committed == []
