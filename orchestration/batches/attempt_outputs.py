"""Runs the outputs of one attempt at a batch: each of them, whatever another one did, in order or in threads.

An output that fails holds up no other. The exceptions are failures of the attempt itself: it was superseded or
cancelled, the driver log is unavailable, Spark ended (``attempt_failure``). Then no further output begins, and those
that run are told to stop. If the block store or a target can't be reached, the outputs that need the same one are not
tried for nothing: each would wait for a connection again.

This module decides which output runs next, and what their failures mean for the attempt. It never writes to the driver
log: the caller computes and commits an output, and is told of each result and failure, in its own thread.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import structlog

from orchestration.batches.attempt_failure import LONGEST, Failure
from tracker_store.long_texts import one_line, stored
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from orchestration.declarations.pipeline import Output
    from orchestration.declarations.sink import Column
    from orchestration.spark.output_threads import OutputThreads

# Seconds between requests to stop the outputs that still run: one may have been between two of its Spark jobs.
STOP_AGAIN_SECONDS = 0.2
# How long an interrupted run waits for them: after that its process ends, and so do its threads.
STOP_SECONDS = 5.0
# How long an attempt that is over waits for them before it reports its failure. Spark's jobs end within seconds; a
# user's function that waits for something else may never end.
OVER_SECONDS = 30.0
# Least characters of an output's error on the first line of an attempt's error. Few outputs have more: half of what is
# stored is for all of them.
_LEAST_LINE = 200
# The kind of an attempt's failure is the first of these that one of its outputs has: the one that counts least.
_PRECEDENCE = (AttemptFailure.BLOCKED, AttemptFailure.LOST, AttemptFailure.FAILED)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OutputResult:
    """Hold the committed result of one output after the run; `attempt` may be an earlier one that had committed it.

    `lost_records`, in `lost_blocks`, count the whole batch: see ``lost_blocks``. `seconds` is how long the output took
    from its start until readers see it; None if it was committed before. `committed_by` is the run that committed it
    before (empty if that is not known any more); None if this call did. `refused`: rows that this call put aside.
    `columns`: those of the table that this call wrote to; none if it wrote nothing, or to no table. `state`: what this
    call has changed in the output's state.
    """

    output: str
    attempt: int
    location: str
    rows: int | None
    lost_blocks: int = 0
    lost_records: int = 0
    seconds: float | None = None
    committed_by: str | None = None
    refused: int = 0
    columns: tuple[Column, ...] = ()
    state: ChangedState | None = None


@dataclass(frozen=True, slots=True)
class ChangedState:
    """Count what a batch made of a state; `keys`, all that have a value, is None if it is not known.

    Of an output by event time also how many records were `late`, and the `watermark` after the batch, if there is one.
    """

    changed: int
    deleted: int
    keys: int | None
    bytes: int
    watermark: datetime | None = None
    late: int | None = None


@dataclass(frozen=True, slots=True)
class FailedOutput:
    """Hold the failure of one output in an attempt, its error and what that means."""

    output: str
    error: BaseException
    failure: Failure


class OutputsFailedError(Exception):
    """Outputs of a batch failed; those that are committed stay, and only the others are tried again."""

    def __init__(self, total: int, failed: Sequence[FailedOutput], not_run: Sequence[str]) -> None:
        """Take the failures of some of `total` outputs, and the outputs that were not run to their end."""
        self.failed = failed
        self.failure = _combined(total, failed, not_run)
        super().__init__(self.failure.message)


def _combined(total: int, failed: Sequence[FailedOutput], not_run: Sequence[str]) -> Failure:
    """Return the attempt's failure: its first line names each output that failed, then come their whole errors."""
    kind = next(kind for kind in _PRECEDENCE if any(each.failure.kind is kind for each in failed))
    longest = max(_LEAST_LINE, LONGEST // 2 // len(failed))
    lines = [f"{each.output}: {one_line(each.failure.message, longest)}" for each in failed]
    # The line ends with an error: what is shown of a long one keeps the root cause there.
    others = f" (not run: {', '.join(not_run)})" if not_run else ""
    line = f"{len(failed)} of {total} outputs failed{others}: {'; '.join(lines)}"
    whole = [f"{each.output}: {each.failure.message}" for each in failed if each.failure.message not in line]
    # Each has the same part of the room that the line leaves; if that is too little, the last ones have none.
    room = max(0, LONGEST - len(line))
    whole = whole[: room // _LEAST_LINE]
    share = room // max(1, len(whole)) - 1
    return Failure(
        kind,
        stored("\n".join([line, *(stored(text, share) for text in whole)]), LONGEST),
        ends_attempt=any(each.failure.ends_attempt for each in failed),
    )


@dataclass(frozen=True, slots=True)
class AttemptOutputs:
    """Hold the outputs of one attempt, and what to do with each; `run_all` runs them.

    Attributes:
        outputs: in the order in which they begin.
        run: computes and commits an output, and returns its result; called in a thread if there are any.
        needs: returns the places that an output needs: BLOCK_STORE, the key of its sink's place.
        judge: returns what an output's error means.
        on_committed: called with each result, at once, by the thread that called `run_all`; must not raise.
        on_failed: the same for each failure.
    """

    outputs: Sequence[Output]
    run: Callable[[Output], OutputResult]
    needs: Callable[[Output], Iterable[tuple[str, ...]]]
    judge: Callable[[BaseException], Failure]
    on_committed: Callable[[OutputResult], None]
    on_failed: Callable[[FailedOutput], None]

    def run_all(self, threads: OutputThreads | None = None, *, at_once: int = 1) -> list[OutputResult]:
        """Run every output, `at_once` of them at the same time if there are `threads`; return the results.

        Raises OutputsFailedError, or the error itself if there is only one output. An interrupt of the calling thread
        ends it at once.
        """
        progress = _AttemptProgress(self)
        if threads is None or at_once == 1:
            for output in progress.to_run():
                try:
                    result = self.run(output)
                except (Exception, SystemExit) as error:  # noqa: BLE001  the user's function may raise anything
                    progress.has_failed(output, error)
                else:
                    progress.is_committed(result)
        else:
            _ThreadedRun(progress, threads).run(at_once)
        return progress.results()


class _OutputThread(threading.Thread):
    """Run one output in a thread. A daemon: a process that is told to end can't wait for a user's function."""

    def __init__(self, output: str, work: Callable[[], None]) -> None:
        super().__init__(target=work, name=f"output {output}", daemon=True)
        self.output = output


def running_outputs() -> list[str]:
    """Return the outputs that run in threads of this process, by name.

    If no attempt runs, a past one gave up waiting for them. They can't commit anything, but this process should end.
    """
    return sorted(thread.output for thread in threading.enumerate() if isinstance(thread, _OutputThread))


class _AttemptProgress:
    """Track which outputs are committed, have failed or may still begin; used by one thread."""

    def __init__(self, outputs: AttemptOutputs) -> None:
        self.outputs = outputs
        self._results: dict[str, OutputResult] = {}
        self._failed: list[FailedOutput] = []
        self.is_over = False
        # The beginnings of the keys of what could not be reached.
        self._unreachable: set[tuple[str, ...]] = set()

    def to_run(self) -> Iterator[Output]:
        """Give the next output, as long as the attempt goes on."""
        for output in self.outputs.outputs:
            if self.is_over:
                return
            if not self._needs_unreachable(output):
                yield output

    def _needs_unreachable(self, output: Output) -> bool:
        if not self._unreachable:
            return False
        return any(key[: len(place)] == place for key in self.outputs.needs(output) for place in self._unreachable)

    def is_committed(self, result: OutputResult) -> None:
        self._results[result.output] = result
        self.outputs.on_committed(result)

    def has_failed(self, output: Output, error: BaseException) -> None:
        failed = FailedOutput(output.name, error, self.outputs.judge(error))
        self._failed.append(failed)
        self.is_over = self.is_over or failed.failure.ends_attempt
        if failed.failure.unreachable:
            self._unreachable.add(failed.failure.unreachable)
        if len(self.outputs.outputs) > 1:
            # Only the first error is raised, with its stack.
            log.warning("an output failed", output=output.name, failure=failed.failure.kind.value, exc_info=error)
        self.outputs.on_failed(failed)

    def results(self) -> list[OutputResult]:
        names = [output.name for output in self.outputs.outputs]
        if not self._failed:
            return [self._results[name] for name in names]
        first = self._failed[0].error
        if len(names) == 1:
            raise first
        ended = {*self._results, *(failed.output for failed in self._failed)}
        raise OutputsFailedError(len(names), self._failed, [name for name in names if name not in ended]) from first


_Ended = tuple["Output", "OutputResult | None", "BaseException | None"]


class _ThreadedRun:
    """Outputs that run in threads. They only compute and commit; the thread that made this decides and reports."""

    def __init__(self, progress: _AttemptProgress, threads: OutputThreads) -> None:
        self._progress = progress
        self._threads = threads
        self._running = 0
        self._ended: SimpleQueue[_Ended] = SimpleQueue()

    def run(self, at_once: int) -> None:
        """Run all; on an interrupt, stop them and raise it."""
        try:
            for output in self._progress.to_run():
                self._start(output)
                if self._running == at_once:
                    self._wait()
            while self._running and not self._progress.is_over:
                self._wait()
            # What the others compute can't be committed any more, but another batch should not begin beside them.
            self._stop_all(OVER_SECONDS)
        except BaseException:
            self._stop_all(STOP_SECONDS)
            raise

    def _start(self, output: Output) -> None:
        run = self._threads.inherit(partial(self._progress.outputs.run, output), output=output.name)

        def work() -> None:
            try:
                result = run()
            except BaseException as error:  # noqa: BLE001  nothing else would report it
                self._ended.put((output, None, error))
            else:
                self._ended.put((output, result, None))

        _OutputThread(output.name, work).start()
        self._running += 1

    def _wait(self) -> None:
        """Wait until an output ends."""
        output, result, error = self._ended.get()
        self._running -= 1
        if result is not None:
            self._progress.is_committed(result)
        elif error is not None:
            self._progress.has_failed(output, error)

    def _stop_all(self, seconds: float) -> None:
        """Stop what runs: Spark's jobs end now, but Python code may go on until the process ends."""
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            self._stop()
        if self._running:
            log.warning("outputs are still running, and end with this process", outputs=running_outputs())

    def _stop(self) -> None:
        """Ask the outputs to stop, and wait for a moment until one ends. What it has committed meanwhile counts."""
        self._threads.stop()
        try:
            _, result, _ = self._ended.get(timeout=STOP_AGAIN_SECONDS)
        except Empty:
            return
        self._running -= 1
        if result is not None:
            self._progress.is_committed(result)
