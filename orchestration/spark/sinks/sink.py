"""What a sink is: it keeps an output's result, and says what it guarantees.

The commit is not a sink's alone. For files it is the row in `output_commits` (ARCHITECTURE.md): `write` leaves them
where nobody looks, the row makes them count, and `publish` shows them. A transactional target (Postgres, Delta,
Iceberg) commits in `write`, under a key of its own that holds the attempt; the row follows, and an attempt that finds
the target's commit of an earlier one (`committed`) only writes the row. A sink never writes to the driver log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame

    Check = Callable[[], None]


class SinkError(Exception):
    """A sink can't keep a result. The message names the output, the thing and the way out, and no secret."""


class AttemptOutdatedError(SinkError):
    """A newer attempt at this batch has committed in the target: this one changes nothing there."""


class Guarantee(StrEnum):
    """How often a record of a batch comes out, whatever is killed, tried again or replayed."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Step(StrEnum):
    """How far a sink has come with an attempt, for `Sink.reached`."""

    PREPARED = "prepared"
    STAGED = "staged"
    IN_TRANSACTION = "in transaction"
    COMMITTED = "committed"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True)
class Written:
    """An attempt's result: where it lies, and how many rows it has (None: the sink does not count)."""

    location: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a target has of a batch, and by which attempt."""

    attempt: int
    written: Written


@dataclass(frozen=True, slots=True)
class OutputAttempt:
    """One attempt at one output of one batch, as a sink is told of it.

    `runs` are the runs of the batch's attempts, by number: a target may hold a commit of another driver log (one that
    was restored from a backup, say), which has the number of one of these and another run. `began_at` is when this one
    was claimed, by the driver log's clock; None where nobody claims (a test).
    """

    pipeline: str
    pipeline_id: int
    output: str
    batch_time: datetime
    attempt: int
    run_id: str
    runs: Mapping[int, str] = field(default_factory=dict)
    began_at: datetime | None = None

    @property
    def batch_id(self) -> int:
        """The batch time in milliseconds: the same for each attempt at the batch, and higher for each later batch."""
        return round(self.batch_time.timestamp() * 1000)

    @property
    def name(self) -> str:
        """As people are to read it."""
        return f"output {self.output!r} of pipeline {self.pipeline!r}"

    @property
    def application_id(self) -> str:
        """What the attempts at this output of this batch have in common, for targets that count versions of one."""
        return f"forebay/{self.pipeline}/{self.pipeline_id}/{self.output}/{self.batch_time.astimezone(UTC).isoformat()}"

    def knows(self, attempt: int, run_id: str) -> bool:
        """Whether this attempt of this run is one of the batch, by the driver log that we run on."""
        return self.runs.get(attempt) == run_id or (attempt, run_id) == (self.attempt, self.run_id)


def unchecked() -> None:
    """Nobody else publishes."""


class Sink(ABC):
    """Keeps an output's result, once per batch time."""

    guarantee: ClassVar[Guarantee]
    #: Whether readers see a committed result only after `publish`, which is then done under a lock of its own.
    publishes: ClassVar[bool] = False
    #: Whether the target has commits of its own, which decide (`committed`).
    commits: ClassVar[bool] = False

    @abstractmethod
    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes of it; secrets as references."""

    def committed(self, attempt: OutputAttempt) -> Committed | None:  # noqa: ARG002  what others need
        """What an attempt at this batch has committed in the target, for a later attempt to take over.

        None where the target has no commits of its own, or none of this batch.
        """
        return None

    @abstractmethod
    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Keep an attempt's result, durable on return: where nobody looks, or by the target's own commit."""

    def publish(  # noqa: B027  a target that commits is done
        self, location: str, *, batch_time: datetime, check: Check = unchecked
    ) -> None:
        """Show the committed result at `location` to readers, in place of what was there. Idempotent.

        `check` is called before each step that readers see, and raises where this process may not take it any more.
        """

    def reached(self, step: Step) -> None:  # noqa: B027
        """Nothing: a test's sink stops or dies here."""
