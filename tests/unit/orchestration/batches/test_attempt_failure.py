"""Check what an attempt's error says: its data or code failed, a store is unavailable, or what it ran on ended."""

from __future__ import annotations

import pytest

from orchestration.batches.attempt_failure import LONGEST, failure_of
from receiver_runtime.block_store.frames.errors import BlockAlteredError, BlockKeyError, StoreUnavailableError
from tracker_store.connection.errors import (
    AttemptSupersededError,
    DriverLogUnavailableError,
    OutcomeUnknownError,
    StateMovedError,
)
from tracker_store.schema.states import AttemptFailure


class Py4JError(Exception):
    """Stands for the error that the gateway raises."""


class Py4JNetworkError(Py4JError):
    """Stands for the gateway's network error."""


class SparkError(Exception):
    """Stands for PySpark's errors: their text contains the stack of the task or the JVM."""


for kind in (Py4JError, Py4JNetworkError):
    kind.__module__ = "py4j.protocol"
SparkError.__module__ = "pyspark.errors.exceptions.captured"

# The texts are those of PySpark 4.
TASK = (
    "An error occurred while calling o66.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 1 in stage 0.0 failed 4 times, most recent failure: Lost task 1.3 in stage 0.0 (TID 1) "
    "(10.0.0.2 executor 3): "
)
NO_ANSWER = Py4JError("An error occurred while calling o123.parquet")
REFUSED = ConnectionRefusedError(111, "Connection refused")
REFUSED.__context__ = NO_ANSWER


def no_end() -> str | None:
    """Report that Spark is alive."""
    return None


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("the output failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        DriverLogUnavailableError("no server"),
        OutcomeUnknownError("the connection was lost"),
        caused_by(DriverLogUnavailableError("no server")),
        SparkError("Traceback:\ntracker_store.errors.DriverLogUnavailableError: no server"),
        Py4JNetworkError("Answer from Java side is empty"),
        NO_ANSWER,
        REFUSED,
        SparkError(TASK + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider"),
        SparkError(TASK + "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: x"),
        SparkError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group run SQLSTATE: XXKDA"),
        SparkError("org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"),
        SparkError('status = StatusCode.UNAVAILABLE details = "failed to connect to all addresses"'),
    ],
    ids=repr,
)
def test_an_attempt_is_lost_if_what_it_ran_on_ended(error: BaseException) -> None:
    failure = failure_of(error, no_end)
    assert failure.kind is AttemptFailure.LOST
    assert type(error).__name__ in failure.message


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        SystemExit(1),
        # An unavailable target is the output's problem: its address may be wrong.
        ConnectionRefusedError(111, "Connection refused"),
        AttemptSupersededError("the batch is COMPLETED"),
        SparkError("BlockCorruptError: block 7 is corrupt"),
        SparkError(TASK + 'File "x.py", line 1\nValueError: ExecutorLostFailure (is what a record says)'),
        RuntimeError("Python worker exited unexpectedly"),
        Py4JError(
            "An error occurred while calling o1.foo. Trace:\npy4j.Py4JException: Method foo([]) does not exist\n"
        ),
    ],
    ids=repr,
)
def test_data_and_code_fail_the_attempt(error: BaseException) -> None:
    failure = failure_of(error, no_end)
    assert failure.kind is AttemptFailure.FAILED
    assert failure.message == f"{type(error).__name__}: {error}"


def test_a_spark_error_is_a_loss_if_spark_has_ended() -> None:
    ended = "its JVM has ended, with code -9"
    assert failure_of(SparkError("some text"), lambda: ended).kind is AttemptFailure.LOST
    assert failure_of(SparkError("some text"), lambda: ended).message == f"{ended}: SparkError: some text"
    assert failure_of(ValueError("bad"), lambda: ended).kind is AttemptFailure.FAILED, "it was not Spark's"


def test_an_unavailable_store_blocks_the_attempt_whatever_else_ended() -> None:
    away = StoreUnavailableError("/blocks", "there is no such directory")
    failure = failure_of(caused_by(away), lambda: "its JVM has ended")
    assert (failure.kind, failure.message) == (AttemptFailure.BLOCKED, str(away))


def test_another_version_of_the_state_blocks_the_attempt_and_no_other_output() -> None:
    failure = failure_of(caused_by(StateMovedError("batch 12:00 read another")), no_end)
    assert (failure.kind, failure.ends_attempt, failure.unreachable) == (AttemptFailure.BLOCKED, False, ())
    assert "batch 12:00 read another" in failure.message


def test_a_missing_key_blocks_the_attempt_and_an_altered_block_fails_it() -> None:
    failure = failure_of(caused_by(BlockKeyError("00aa", "no key 00aa")), lambda: "its JVM has ended")
    assert (failure.kind, failure.message) == (AttemptFailure.BLOCKED, "no key 00aa")
    assert failure_of(BlockAlteredError("/blocks/1", 0, "00aa"), no_end).kind is AttemptFailure.FAILED


def test_the_length_of_a_kept_error_is_bounded() -> None:
    for error in (ValueError("x" * 9_000), SparkError("SPARK_JOB_CANCELLED" + "x" * 9_000)):
        assert len(failure_of(error, no_end).message) == LONGEST


PYTHON_WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "pipe.py", line 9, in parse
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "pipe.py", line 10, in parse
    return int(value)
           ^^^^^^^^^^
ValueError: invalid literal: 'line 000049'
"""
JAVA = """An error occurred while calling o61.save.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.X.y(X.scala:1)
Caused by: java.lang.IllegalStateException: one
\tat a.B.c(B.java:2)
Caused by: java.io.IOException: No space left on device
\t... 12 more
"""


def _caused(message: str, cause: BaseException) -> BaseException:
    error = RuntimeError(message)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (ValueError("no such column"), "ValueError: no such column"),
        (ValueError("no such column;\n'Project [a]"), "ValueError: no such column;"),
        (SparkError("[NO] `itm` is no column. SQLSTATE: 42703;\n'Project [a]"), "SparkError: [NO] `itm` is no column."),
        (
            RuntimeError(PYTHON_WORKER),
            "RuntimeError: An exception was thrown from the Python worker: ValueError: invalid literal: 'line 000049'",
        ),
        (
            RuntimeError(JAVA),
            "RuntimeError: An error occurred while calling o61.save: java.io.IOException: No space left on device",
        ),
        (
            _caused("the table can't be written", OSError(28, "No space left on device")),
            "RuntimeError: the table can't be written: OSError: [Errno 28] No space left on device",
        ),
        (
            _caused("gone: the key is missing", LookupError("the key is missing")),
            "RuntimeError: gone: the key is missing",
        ),
    ],
    ids=[
        "plain",
        "with a plan",
        "with a state of SQL",
        "Spark's Python worker",
        "Java",
        "a cause",
        "a cause that it repeats",
    ],
)
def test_the_first_line_ends_with_the_root_causes_own(error: BaseException, first: str) -> None:
    message = failure_of(error, lambda: None).message
    assert message.partition("\n")[0] == first
    # The rest is the whole error.
    assert message.partition("\n")[2] == str(error).partition("\n")[2]
