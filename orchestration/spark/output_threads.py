"""Make the threads in which outputs of a batch run at the same time, in one Spark session.

PySpark gives each Python thread a thread of the JVM. What Spark keeps per thread (the job group of the run, by which it
is cancelled, tags, the scheduler's pool) is inherited from the thread that starts them. A tag of their own lets their
jobs be cancelled.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import inheritable_thread_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Result = TypeVar("Result")


class OutputThreads:
    """Give the threads on one session, classic or Connect, what they need; for ``attempt_outputs``."""

    def __init__(self, session: SparkSession) -> None:
        """Take the session that the threads share."""
        self._session: Any = session
        self._is_remote = type(session).__module__.startswith("pyspark.sql.connect")
        self._tag = f"forebay-outputs-{uuid.uuid4()}"

    def inherit(self, run: Callable[[], Result], *, output: str) -> Callable[[], Result]:
        """Return `run` with the local properties and tags of the calling thread, to be called in another thread."""

        def marked() -> Result:
            self._mark(output)
            return run()

        inherited: Callable[[], Result] = inheritable_thread_target(self._session)(marked)
        return inherited

    def stop(self) -> None:
        """Cancel the active jobs of all the threads."""
        # After an interrupt in a call to the JVM, this thread's connection may be unusable.
        with contextlib.suppress(Exception):
            if self._is_remote:
                self._session.interruptTag(self._tag)
            else:
                self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _mark(self, output: str) -> None:
        if self._is_remote:
            self._session.addTag(self._tag)
            return
        context = self._session.sparkContext
        context.addJobTag(self._tag)
        context.setJobDescription(f"output {output}")
        # A new thread of the JVM has no active session, and the user's function may ask for it.
        self._session._jvm.SparkSession.setActiveSession(self._session._jsparkSession)  # noqa: SLF001
