"""What tables of files share (Delta, Iceberg): tasks write files, one commit names them, and is tried again.

Owns where an attempt's files lie and what is done when another's commit came first. What a commit is, and how a table
knows an attempt, is each format's.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.spark.sinks.parquet_names import batch_stamp
from orchestration.spark.sinks.parquet_staging import staged_files
from orchestration.spark.sinks.sink import AttemptOutdatedError, Guarantee, Sink, SinkError, Step, Written
from orchestration.spark.sinks.table_columns import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from orchestration.spark.sinks.parquet_staging import StagedFile
    from orchestration.spark.sinks.sink import OutputAttempt

#: How often a commit is tried again when another's came first.
_TRIES = 20


class FileTableSink(Sink):
    """See the module. A child knows its format."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    commits: ClassVar[bool] = True
    #: For people.
    format: ClassVar[str]
    #: Whether the format lacks small integers, and takes the next larger.
    widens: ClassVar[bool] = False

    @property
    @abstractmethod
    def target(self) -> str:
        """The table, as its owner named it."""

    @abstractmethod
    def _connect(self, attempt: OutputAttempt) -> Any:  # noqa: ANN401  a format's own
        """What the table is reached by during one write. Raises SinkError: a package is missing, or it is away."""

    @abstractmethod
    def _prepare(self, connection: Any, schema: pa.Schema, attempt: OutputAttempt) -> Path:  # noqa: ANN401
        """The directory of the table's files. Raises SinkError where the columns don't fit the table's."""

    @abstractmethod
    def _try_commit(
        self,
        connection: Any,  # noqa: ANN401
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
    ) -> bool:
        """Commit on what is there now; False where another's commit came first. Raises AttemptOutdatedError."""

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Have the tasks write files, and commit them to the table."""
        connection = self._connect(attempt)
        schema = arrow_schema(result.schema, attempt.name, widens=self.widens)
        directory = self._prepare(connection, schema, attempt)
        self.reached(Step.PREPARED)
        own = directory / batch_folder(attempt) / f"attempt{attempt.attempt}-{secrets.token_hex(4)}"
        files = staged_files(result, own, schema, attempt)
        self.reached(Step.STAGED)
        self._commit(connection, files, schema, attempt)
        self.reached(Step.COMMITTED)
        return Written(self.target, sum(file.rows for file in files))

    def _commit(
        self,
        connection: Any,  # noqa: ANN401
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
    ) -> None:
        for _ in range(_TRIES):
            if self._try_commit(connection, files, schema, attempt):
                return
        raise SinkError(
            f"{attempt.name}: {_TRIES} commits to the {self.format} table {self.target} came too late for another's: "
            "run what else writes to it at another time"
        )

    def outdated(self, attempt: OutputAttempt, newer: int) -> AttemptOutdatedError:
        """What is raised where the table has a newer attempt at the batch, or this one."""
        return AttemptOutdatedError(
            f"{attempt.name}: the {self.format} table {self.target} has attempt {newer} at the batch of "
            f"{attempt.batch_time.isoformat()}: attempt {attempt.attempt} changed nothing"
        )


def batch_folder(attempt: OutputAttempt) -> str:
    """Below the table's directory: of all attempts at a batch of an output."""
    return f"{attempt.pipeline}.{attempt.output}/{attempt.pipeline_id}-{batch_stamp(attempt.batch_time)}"
