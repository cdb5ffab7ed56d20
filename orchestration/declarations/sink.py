"""Define the interface of a sink, which keeps an output's result and declares its delivery guarantee.

A sink does not commit on its own. For files the commit is the row in `output_commits`: `write` puts
them where no reader looks, the row commits them, and `publish` shows them. A transactional target (Postgres, Delta,
Iceberg) commits in `write`, under a key that contains the attempt; the row follows, and an attempt that finds an
earlier attempt's commit in the target (`committed`) only writes the row. A sink never writes to the driver log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from receiver_runtime.sources.plugins import load, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Check = Callable[[], None]
    #: What upkeep has done, as numbers by name: `{"files_merged": 60}`.
    Figures = Mapping[str, int]

#: The entry point group: the declaration's `kind` is the name of its class.
GROUP = "forebay.sinks"
HOURLY, DAILY = timedelta(hours=1), timedelta(days=1)


class SinkError(Exception):
    """This sink can't keep a result. The message names the output, the thing and the way out, and no secret."""


class TargetUnavailableError(SinkError):
    """This sink's target takes no result now: it can't be reached, lacks a secret or package, or is another output's.

    The batch is BLOCKED until it does; its other outputs run. `unreachable`: the beginning of the key of each `Place`
    that can't be reached either, as those in one database; outputs there are not tried in the same attempt.
    """

    unreachable: tuple[str, ...] = ()

    def __init__(self, *message: object, unreachable: Iterable[str] = ()) -> None:
        super().__init__(*message)
        self.unreachable = tuple(unreachable)


class TargetMissingError(TargetUnavailableError):
    """This sink's target does not exist yet. A batch that runs may still create it as it was declared before."""


class AttemptOutdatedError(SinkError):
    """This attempt changes nothing in the target: a newer attempt at the batch has committed there."""


class DeliveryGuarantee(StrEnum):
    """Say how often a batch's record is delivered, whatever process is killed, attempt repeated or batch replayed."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Step(StrEnum):
    """Name a step of a sink's work on an attempt, for `Sink.reached`."""

    PREPARED = "prepared"
    STAGED = "staged"
    IN_TRANSACTION = "in transaction"
    COMMITTED = "committed"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column of a result; `kind` is its type as Spark writes it.

    `sources`: the streams and columns from which Spark computes its values; None: not known.
    """

    name: str
    kind: str
    nullable: bool
    sources: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Say where people and other programs find a table, without secrets; None: it has no such name, or no URI."""

    name: str | None = None
    uri: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Describe an attempt's result: its location and its number of rows (None: the sink does not count).

    `refused` counts rows that the target can't hold, and that are kept aside. `columns` is what the run notes of the
    result, for people; a sink leaves it empty.
    """

    location: str
    rows: int | None
    refused: int = 0
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """Hold a batch's commit in a target, and the attempt that made it."""

    attempt: int
    written: Written


@dataclass(frozen=True, slots=True)
class OutputAttempt:
    """One attempt at one output of one batch, as passed to a sink.

    `runs` are the runs of the batch's attempts by number. They are needed because a target may hold a commit made with
    another driver log (before a restore from a backup, for example), with the same attempt number but another run.
    `began_at` is when this attempt was claimed, on the driver log's clock; None without a claim (in a test).

    `replaced` identifies the windows whose rows the result replaces; None: it replaces none. Its columns are some of
    those of the sink's key, with the types that the result has for them, and its rows may repeat. In the commit of the
    result the sink deletes each row of the target whose values in these columns equal those of a row of `replaced` (a
    null equals a null), whose batch is not after `newest_overridden`, and whose key is not in the result. It is given
    only to a sink that `replaces` these columns.

    `overrides_to`: the result also takes the place of rows of batches up to this one, because a replay forward is
    replacing their results too. Only merges use it, as `newest_overridden`; rows are written with `batch_time` as ever.
    """

    pipeline: str
    pipeline_id: int
    output: str
    batch_time: datetime
    attempt: int
    run_id: str
    runs: Mapping[int, str] = field(default_factory=dict)
    began_at: datetime | None = None
    replaced: DataFrame | None = field(default=None, compare=False, repr=False)
    overrides_to: datetime | None = None

    @property
    def newest_overridden(self) -> datetime:
        """Return the newest batch whose rows a merge replaces: it leaves the rows of later batches."""
        return self.batch_time if self.overrides_to is None else max(self.batch_time, self.overrides_to)

    @property
    def batch_id(self) -> int:
        """Return the batch time in milliseconds: equal for each attempt at the batch, higher for each later batch."""
        return round(self.batch_time.timestamp() * 1000)

    @property
    def name(self) -> str:
        """Return the output's name for messages."""
        return f"output {self.output!r} of pipeline {self.pipeline!r}"

    @property
    def application_id(self) -> str:
        """Return the id shared by all attempts at this output of this batch, for targets with versions per id."""
        return f"forebay/{self.pipeline}/{self.pipeline_id}/{self.output}/{self.batch_time.astimezone(UTC).isoformat()}"

    def knows(self, attempt: int, run_id: str) -> bool:
        """Return whether the current driver log has this attempt and run for the batch."""
        return self.runs.get(attempt) == run_id or (attempt, run_id) == (self.attempt, self.run_id)


@dataclass(frozen=True, slots=True)
class Place:
    """Name where a sink writes: `key` is equal for sinks that write to one place; `shown` is for people.

    A key that begins with another one is of a place within that one.
    """

    key: tuple[str, ...]
    shown: str


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """Say whether a target can be written to, what was found, and how to fix it; neither text holds a secret.

    A warning is for what batches may survive, or what can't be known from here.
    """

    health: Literal["ok", "warning", "failed"]
    found: str
    way_out: str = ""


def checked_result(result: object, where: str) -> DataFrame:
    """Return what an output's function returned, if a sink can keep it; `where` names the output. Raises SinkError."""
    # Check for a method that sinks call, because Spark's classic and Connect DataFrames are different classes.
    if not hasattr(result, "mapInArrow"):
        got = "nothing (None)" if result is None else f"a {type(result).__module__}.{type(result).__qualname__}"
        raise SinkError(
            f"{where} returned {got}, and its sink needs a Spark DataFrame: end the function with "
            "`return frame` (spark.createDataFrame(...) makes one of a pandas frame; for an output with effects of "
            "its own take ForeachBatchSink(fn), which is given the frame)"
        )
    frame = cast("DataFrame", result)
    if frame.isStreaming is True:
        raise SinkError(
            f"{where} returned a streaming DataFrame: a batch's result is computed and done; read its inputs, "
            "which are no streams, or run the query beside the pipeline"
        )
    return frame


def unchecked() -> None:
    """Check nothing: no other process publishes."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """One turn of upkeep at an output's target, and what the driver log says of the attempts there.

    `hour`: the hour to look after, which is over; None: the whole target. `committed`: the attempts of that hour's
    batches, all published. `oldest_attempt`: each attempt that the driver log still waits for began at this time or
    later; None: not known. `check` is called before each step that others see, and raises if this process may no longer
    take it. `has_time` returns whether to begin a further step.
    """

    pipeline: str
    output: str
    hour: datetime | None = None
    committed: Mapping[datetime, int] = field(default_factory=dict)
    oldest_attempt: datetime | None = None
    check: Check = unchecked
    has_time: Callable[[], bool] = lambda: True

    @property
    def name(self) -> str:
        """Return the output's name for messages."""
        return f"output {self.output!r} of pipeline {self.pipeline!r}"


class Sink(ABC):
    """Keep an output's result once per batch time: the base class of sinks."""

    guarantee: ClassVar[DeliveryGuarantee]
    #: Whether readers see a committed result only after `publish`, which is then called under its own lock.
    publishes: ClassVar[bool] = False
    #: Whether the target has its own commits, which decide (`committed`).
    commits: ClassVar[bool] = False
    #: How often `upkeep` is due: HOURLY, DAILY, or None for never.
    upkeep_every: timedelta | None = None

    @abstractmethod
    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes, with secrets as references.

        Its `kind` is the name under which a package registers the class in the entry point group `forebay.sinks`.
        """

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place | None:  # noqa: ARG003  subclasses need it
        """Return where a sink of this declaration writes, because two outputs at one place would replace each other.

        The declaration may be an older one from the driver log. Never access the target. None: any number of outputs
        may have this declaration.
        """
        return None

    def address(self) -> TableAddress | None:
        """Return where the table is; None: the sink keeps none. Never access the target."""
        return None

    def in_timezone(self, timezone: str | None) -> None:  # noqa: B027  most sinks name nothing by local time
        """Take the time zone of its pipeline for what it names by the time of day. Called when it is declared."""

    def published_hour(self, batch_time: datetime) -> tuple[datetime, datetime]:
        """Return the span of time whose batches readers see together with this one's: by default, its hour in UTC.

        Only one process at a time changes what readers see of it. It is named by its begin, as in `upkeep_hours`.
        """
        begin = batch_time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return begin, begin + HOURLY

    def load(self) -> None:  # noqa: B027  most sinks need no further package
        """Import what writing needs. Raises SinkError, which names the missing package and how to install it."""

    def check_columns(self, schema: StructType, where: str) -> None:  # noqa: B027  a sink may take any
        """Raise SinkError for a result's columns that `write` would refuse whatever the target has; `where` names it.

        It accesses no target. `write` calls it too, or checks the same.
        """

    def check_target(self, schema: StructType | None = None) -> TargetCheck | None:  # noqa: ARG002  subclasses need it
        """Return whether this user could write to the target from here, without changing it; None: not known.

        `schema`: the result's columns, to be compared with those of the target; None: they are not known.
        """
        return None

    def check_writer(self, pipeline: str, output: str) -> TargetCheck | None:  # noqa: ARG002  subclasses need it
        """Return a failure if the target records another output as its writer, which `write` refuses.

        An output that was renamed is another one. `write` raises TargetUnavailableError then, so that batches wait.
        None: it may write; a warning: the target can't be asked, which keeps nothing from being applied. Changes
        nothing.
        """
        return None

    def replaces(self, columns: Sequence[str]) -> bool:  # noqa: ARG002  subclasses need it
        """Return whether the sink, as it is declared, can replace the rows of windows by `OutputAttempt.replaced`.

        `columns`: those that would identify the windows.
        """
        return False

    def step_after(self, before: Mapping[str, Any]) -> str | None:  # noqa: ARG002  subclasses need it
        """Return what the owner must change in the target because the declaration was `before`; None: nothing.

        It may look at the target: callers wait 12 s for all targets together. Raises TargetUnavailableError if that
        can't be reached just now, and TargetMissingError if it does not exist, and would need a step if a batch of the
        declaration before created it; both are tried again, the second only while there is such a batch. A change that
        needs a step waits for `forebay apply`.
        """
        return None

    def committed(self, attempt: OutputAttempt) -> Committed | None:  # noqa: ARG002  subclasses need it
        """Return what an attempt at this batch has committed in the target, for a later attempt to adopt.

        None if the target has no commits of its own, or none of this batch.
        """
        return None

    @abstractmethod
    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Store an attempt's result durably: where no reader looks, or by the target's own commit."""

    def publish(  # noqa: B027  a target with its own commits needs no publishing
        self, location: str, *, batch_time: datetime, check: Check = unchecked
    ) -> None:
        """Show the committed result at `location` to readers, in place of the earlier one. Idempotent.

        `check` is called before each step that readers see, and raises if this process may no longer publish.
        """

    @classmethod
    def may_publish(cls) -> bool:
        """Return whether a sink of this class publishes, by this declaration or by the one before it was changed."""
        return cls.publish is not Sink.publish

    def upkeep_hours(self) -> Sequence[datetime | None]:
        """Return what needs `upkeep`: hours, oldest first, each for a turn of its own; None is the whole target."""
        return [None]

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge small files, and delete what nothing needs any more; return what was done, nothing if it was nothing.

        No reader, and no attempt that the driver log waits for, may notice. Called by one process at a time: for an
        hour under the lock of `publish`, and only once its batches are over. A turn may end early, and the next one
        goes on.
        """
        raise NotImplementedError(f"{type(self).__name__}.upkeep_every is set, and the class has no upkeep: {turn}")

    def reached(self, step: Step) -> None:  # noqa: B027
        """Do nothing; tests override it to stop or kill the process at a step."""


def class_of(kind: str) -> type[Sink]:
    """Import the class of a kind. Raises PluginError."""
    return load(GROUP, kind, Sink)  # type: ignore[type-abstract]  # a bound; `load` makes no object


def place_of(declaration: Mapping[str, Any]) -> Place | None:
    """Return where a declared sink writes; None if it has no place or is not installed. Raises PluginError."""
    kind = declaration.get("kind", "")
    return class_of(kind).place(declaration) if kind in registered(GROUP) else None
