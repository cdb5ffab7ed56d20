"""Judges why an attempt at a batch failed, by its error: FAILED (data or code), BLOCKED or LOST.

An attempt is BLOCKED when the block store or a sink's target could not be reached, or the key of an encrypted block is
missing here; or when another version of an output's state came into force than the one that it had read (an earlier
batch was replayed meanwhile, or a replay forward began): the next attempt reads that one.
An attempt is LOST when what it ran on failed: the driver log was unavailable, Spark's job was cancelled, or the JVM,
an executor or a Python worker ended. The next attempt may well succeed, so a lost one uses none of `max_attempts`.
A batch that itself kills its process each time (by the memory that it takes) is bounded by `max_lost_attempts`.

An error is that of one output, and the attempt's other outputs run all the same, unless it `ends_attempt`: nothing that
they did could be committed, or Spark is gone, or the run is cancelled.

The first line of what is recorded ends with the root cause's own line; the whole error follows.

Owns the judgement, and records nothing. Where no error was seen (the process is gone, or was interrupted), the
tracker and the batch sensor record LOST themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.batches.unavailable_store import causes, unavailable_store
from tracker_store.connection.errors import TRANSIENT, AttemptSupersededError, StateMovedError
from tracker_store.long_texts import stored
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Callable

# How many characters of an error the driver log keeps. An event has room for 2,000: what a batch's reason says before
# the error, such as which outputs are committed, must not push out its end.
LONGEST = 1_800
_ENDED = "Spark, or a process of it, ended"
# How PySpark's errors say that a process of Spark ended, but not Spark itself.
_PROCESS_DIED = re.compile(
    # Executors: Spark counts only those that it thinks a task killed, and it has already retried that task.
    r"most recent failure: [^\n]*: ExecutorLostFailure |Python worker exited unexpectedly"
)
# How they say that nothing more can be computed, or committed.
_SPARK_ENDED = re.compile(
    "|".join(
        [
            # The run was cancelled, or its Spark session was stopped while it computed.
            r"SPARK_JOB_CANCELLED|OPERATION_CANCELED",
            r"Job \d+ cancelled (?:part of cancelled job group|because SparkContext was shut down)",
            # A Connect server that doesn't answer.
            r"StatusCode\.UNAVAILABLE",
            # A Spark task's error comes as the text of its Python stack.
            *(rf"\b{kind.__name__}: " for kind in TRANSIENT),
        ]
    )
)
_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
# How Spark ends the first line of its own errors: what stands before it is what people need.
_SQLSTATE = re.compile(r" SQLSTATE: \w{5};?$")
# The whole message of a Py4JError when the JVM didn't answer; when it did, Java's stack follows.
_NO_ANSWER = re.compile(r"An error occurred while calling [^\n]*\Z")


@dataclass(frozen=True, slots=True)
class Failure:
    """Hold what is recorded in the driver log about a failure, and which other outputs need not be tried.

    `ends_attempt`: none of them. `unreachable`: not those that need this place, as ``unavailable_store`` names it.
    """

    kind: AttemptFailure
    message: str
    ends_attempt: bool = False
    unreachable: tuple[str, ...] = ()


def failure_of(error: BaseException, spark_ended: Callable[[], str | None]) -> Failure:
    """Judge the error of an output or attempt; `spark_ended` returns how the run's Spark ended, None while it lives."""
    if (away := unavailable_store(error)) is not None:
        return Failure(AttemptFailure.BLOCKED, stored(away.message, LONGEST), unreachable=away.place)
    message = _headed(error)
    if any(isinstance(cause, TRANSIENT) for cause in causes(error)):
        return _lost("the driver log was unavailable", message, ends_attempt=True)
    if any(isinstance(cause, StateMovedError) for cause in causes(error)):
        return Failure(AttemptFailure.BLOCKED, stored(message, LONGEST))
    of_spark = [cause for cause in causes(error) if type(cause).__module__.partition(".")[0] in ("pyspark", "py4j")]
    if of_spark:
        how = _ENDED if any(_spark_ended(cause) for cause in of_spark) else spark_ended()
        if how is not None:
            return _lost(how, message, ends_attempt=True)
    if any(_PROCESS_DIED.search(str(cause)) for cause in of_spark):
        return _lost(_ENDED, message, ends_attempt=False)
    # A newer attempt holds the batch: nothing of this one can be committed any more.
    ends_attempt = isinstance(error, AttemptSupersededError)
    return Failure(AttemptFailure.FAILED, stored(message, LONGEST), ends_attempt)


def _headed(error: BaseException) -> str:
    """Return the error's text, its first line with the root cause's own line at its end."""
    first, _, rest = f"{type(error).__name__}: {error}".partition("\n")
    first = _SQLSTATE.sub("", first)
    root = _root_of_text(rest)
    if root is None:
        *_, deepest = causes(error)
        root = f"{type(deepest).__name__}: {deepest}".partition("\n")[0]
    root = _SQLSTATE.sub("", root)
    # A cause that the message repeats says nothing more.
    if (root.partition(": ")[2] or root) not in first:
        first = f"{first.rstrip(':;. ')}: {root}"
    return f"{first}\n{rest}" if rest else first


def _root_of_text(text: str) -> str | None:
    """Return the line of the innermost error that a text of stacks names: Java's causes, then Python's tracebacks."""
    causes = _CAUSED_BY.findall(text)
    if causes:
        return str(causes[-1]).strip()
    lines = text.rpartition(_TRACEBACK)[2].splitlines() if _TRACEBACK in text else []
    # The error's line follows its stack, which is indented.
    return next((line for line in lines if line.strip() and not line.startswith((" ", "\t"))), None)


def _lost(why: str, message: str, *, ends_attempt: bool) -> Failure:
    return Failure(AttemptFailure.LOST, stored(f"{why}: {message}", LONGEST), ends_attempt)


def _spark_ended(error: BaseException) -> bool:
    name, text = type(error).__name__, str(error)
    return (
        name == "Py4JNetworkError"
        or (name == "Py4JError" and _NO_ANSWER.match(text) is not None)
        or _SPARK_ENDED.search(text) is not None
    )
