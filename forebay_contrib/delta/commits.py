"""Make the commits of a DeltaSink: what each mode adds to a table and removes from it, in one entry of its log.

A commit that adds no column and finds the batch's earlier rows in files of their own names files alone. Another one
goes through deltalake's writer, which reads the staged files again. Owns what a commit says of its attempt.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Literal

from forebay_contrib.delta.retention import DEFAULTS
from forebay_contrib.delta.tables import columns_of
from forebay_contrib.delta.windows import Gone, no_newer, quoted
from orchestration.declarations.sink import Committed, Written
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import changed_schema
from orchestration.sinks.file_table import batch_folder
from orchestration.sinks.parquet_partitions import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from orchestration.declarations.sink import OutputAttempt
    from orchestration.sinks.column_changes import ColumnChanges
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import StagedFile

# How many commits of the history are searched for one of an earlier attempt, most often one of the last: each is read.
_HISTORIES = (10, 100, 1000)
# The newest pipeline of "overwrite", by its id, and below it, as /ID, its newest batch in microseconds since 1970: a
# batch without rows leaves no other trace.
_NEWEST = "forebay/newest"
_TIME_BITS = 44  # milliseconds since 1970, until the year 2527
# Where an attempt's files are: `batch_folder`, and its own below it.
_OF_A_BATCH = re.compile(r"(?:^|/)\d+-(\d{8}T\d{6}(?:\.\d{6})?Z)/attempt\d+-[0-9a-f]{8}/")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Commit:
    """Hold what one try of a commit takes. `token` is its own, by which it is found if its answer was lost.

    `newest`: whether to record the batch as the newest one. `windows`: the identities of those that a merge replaces.
    """

    store: FileStore
    files: Sequence[StagedFile]
    attempt: OutputAttempt
    written: Written
    token: str
    newest: bool = False
    windows: pa.Table | None = None

    def append(self, table: Any, result: pa.Schema, changes: ColumnChanges, *, is_first: bool) -> None:  # noqa: ANN401
        """Add the batch's rows in the place of those that it has; `result`: the files' columns, with the batch time.

        `is_first`: no attempt at the batch has committed before.
        """
        attempt = self.attempt
        # A replay replaces the batch's rows also if the output had another name when they were written.
        has_earlier = attempt.attempt > 1 or not is_first
        earlier = _files_with(table, attempt) if has_earlier else []
        own = [name for name in earlier if name.startswith(f"{batch_folder(attempt)}/")]
        if len(own) == len(earlier) and not changes.added:
            self._name_files(table, [*self._additions(), *_removals(own)], "append")
        else:
            # The batch's rows may be in files with other rows since OPTIMIZE, which are rewritten without them.
            self._write(table, result, changes, _is_of(attempt) if earlier else None)

    def overwrite(self, table: Any, result: pa.Schema, changes: ColumnChanges) -> None:  # noqa: ANN401
        """Replace all rows, except if a newer batch has written them: then only record the attempt."""
        if not is_newest(table, self.attempt):
            self._name_files(table, [], "append")
        elif changes.added:
            self._write(table, result, changes, "")
        else:
            self._name_files(table, self._additions(), "overwrite")

    def merge(
        self,
        table: Any,  # noqa: ANN401
        result: pa.Schema,
        changes: ColumnChanges,
        key: Sequence[str],
        cleared: Sequence[str],
    ) -> bool:
        """Keep the newest batch's row for each key; return False, with the columns added, if it is to be tried again.

        `cleared`: columns of the table that a replaced row loses.
        deltalake's merge gives the table another identity if it adds columns, so they are added before.
        """
        import pyarrow as pa  # noqa: PLC0415
        from deltalake import CommitProperties, write_deltalake  # noqa: PLC0415

        if changes.added:
            whole = changed_schema(result, columns_of(table), changes)
            once = CommitProperties(max_commit_retries=0)
            write_deltalake(table, whole.empty_table(), mode="append", schema_mode="merge", commit_properties=once)
            return False
        before = table.version()
        whole = pa.schema([columns_of(table).field(name) for name in result.names])
        values = {quoted(name): _source(name) for name in whole.names}
        # A row without a batch time is another writer's, and stays, as in a PostgresSink.
        newest = self.attempt.newest_overridden
        is_older = f"target.{no_newer(newest)}"
        with self._rows(whole) as read:
            gone = Gone() if self.windows is None else Gone.of(table, self.windows, key, newest, read)
            is_same = " AND ".join(f"({_target(name)} {gone.equality} {_source(name)})" for name in key)
            properties = self._properties()
            merged = table.merge(
                gone.behind(read()), is_same, source_alias="source", target_alias="target", commit_properties=properties
            )
            if (mark := gone.mark(whole.names)) is not None:
                merged = merged.when_matched_delete(f"{_source(mark)} AND {is_older}")
            nulls = {quoted(name): "NULL" for name in cleared}
            merged = merged.when_matched_update({**values, **nulls}, is_older)
            merged = merged.when_not_matched_insert(values, None if mark is None else f"NOT {_source(mark)}")
            merged.when_not_matched_by_source_delete(f"target.{_is_of(self.attempt)}").execute()
        if table.version() == before:
            # A merge that changes no row makes no commit.
            self._name_files(table, [], "append")
        return True

    def create(
        self,
        target: str,
        schema: pa.Schema,
        partition_by: Sequence[str],
        description: str,
        options: dict[str, str] | None,
    ) -> None:
        """Make the table with the batch's rows."""
        from deltalake import Schema  # noqa: PLC0415
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        create_table_with_add_actions(
            target,
            Schema.from_arrow(schema),
            self._additions(),
            mode="error",
            partition_by=list(partition_by),
            description=description,
            configuration=DEFAULTS,
            storage_options=options,
            commit_properties=self._properties(),
        )

    def is_in(self, table: Any, after: int | None) -> bool:  # noqa: ANN401
        """Return whether a version of the table after `after` (None: any) is this try."""
        newer = [] if table is None else table.history(table.version() - (-1 if after is None else after))
        return any(commit.get("forebay_commit") == self.token for commit in newer)

    def _name_files(self, table: Any, actions: Sequence[Any], mode: str) -> None:  # noqa: ANN401
        table.create_write_transaction(
            list(actions),
            mode=mode,
            schema=table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=self._properties(),
        )

    def _write(self, table: Any, result: pa.Schema, changes: ColumnChanges, replaced: str | None) -> None:  # noqa: ANN401
        """Write the rows again, in the place of those of which `replaced` is true (empty: all), and add columns."""
        from deltalake import write_deltalake  # noqa: PLC0415

        whole, properties = changed_schema(result, columns_of(table), changes), self._properties()
        schema_mode: Literal["merge"] | None = "merge" if changes.added else None
        with self._rows(whole) as read:
            if replaced is None:
                write_deltalake(table, read(), mode="append", schema_mode=schema_mode, commit_properties=properties)
                return
            write_deltalake(
                table,
                read(),
                mode="overwrite",
                predicate=replaced or None,
                schema_mode=schema_mode,
                commit_properties=properties,
            )

    @contextmanager
    def _rows(self, whole: pa.Schema) -> Iterator[Callable[[], pa.RecordBatchReader]]:
        """Give what reads the files with all columns: those of partitions from the log, and null for missing ones.

        From local copies: deltalake reads them on a thread on which its own client of an object store can't wait.
        """
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="forebay-delta-") as folder:
            copies = [Path(folder, str(number)) for number in range(len(self.files))]
            for file, copy in zip(self.files, copies, strict=True):
                with self.store.open(file.path) as source, copy.open("wb") as target:
                    shutil.copyfileobj(source, target)

            def batches() -> Iterator[pa.RecordBatch]:
                for file, copy in zip(self.files, copies, strict=True):
                    for batch in pq.ParquetFile(copy).iter_batches():
                        yield _with_all(batch, whole, values_of(file.part))

            yield lambda: pa.RecordBatchReader.from_batches(whole, batches())

    def _additions(self) -> list[Any]:
        from deltalake.transaction import AddAction  # noqa: PLC0415

        return [
            AddAction(
                file.path,
                file.size,
                values_of(file.part),
                round(time() * 1000),
                data_change=True,
                stats=rows_alone(file.rows),
            )
            for file in self.files
        ]

    def _properties(self) -> Any:  # noqa: ANN401
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        attempt, written = self.attempt, self.written
        # The time lets a token expire, as the table's properties say.
        transactions = [Transaction(attempt.application_id, attempt.attempt, round(time() * 1000))]
        if self.newest:
            # These never expire.
            transactions += [
                Transaction(_NEWEST, attempt.pipeline_id),
                Transaction(
                    f"{_NEWEST}/{attempt.pipeline_id}", (attempt.batch_time - _EPOCH) // timedelta(microseconds=1)
                ),
            ]
        return CommitProperties(
            app_transactions=transactions,
            max_commit_retries=0,
            custom_metadata={
                "forebay_application": attempt.application_id,
                "forebay_attempt": str(attempt.attempt),
                "forebay_run": attempt.run_id,
                "forebay_rows": str(written.rows),
                "forebay_refused": str(written.refused),
                "forebay_location": written.location,
                "forebay_commit": self.token,
            },
        )


def _with_all(batch: pa.RecordBatch, whole: pa.Schema, values: Mapping[str, str | None]) -> pa.RecordBatch:
    """Return the rows with all columns; `values`: those of the partition, as the log has them."""
    import pyarrow as pa  # noqa: PLC0415

    columns = []
    for field in whole:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        elif (value := values.get(field.name)) is not None:
            columns.append(pa.array([value] * batch.num_rows, pa.string()).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.record_batch(columns, schema=whole)


def committed_in(table: Any, attempt: OutputAttempt) -> Committed | None:  # noqa: ANN401
    """Return the newest attempt at this batch in a table (None: there is none), if the driver log knows its run."""
    version = None if table is None else table.transaction_version(attempt.application_id)
    if table is None or version is None:
        return None
    for most in _HISTORIES:
        for commit in table.history(most):
            if commit.get("forebay_application") == attempt.application_id:
                if int(commit["forebay_attempt"]) != version or not attempt.knows(version, commit["forebay_run"]):
                    return None
                location, refused = commit["forebay_location"], int(commit["forebay_refused"])
                return Committed(version, Written(location, int(commit["forebay_rows"]), refused))
    return None


def is_newest(table: Any, attempt: OutputAttempt) -> bool:  # noqa: ANN401
    """Return whether no newer batch has overwritten the table."""
    import pyarrow as pa  # noqa: PLC0415

    pipeline_id = table.transaction_version(_NEWEST)
    if pipeline_id is not None:
        newest = _EPOCH + timedelta(microseconds=table.transaction_version(f"{_NEWEST}/{pipeline_id}"))
        # A pipeline that was removed and added again has another id.
        return bool((attempt.pipeline_id, attempt.batch_time) >= (pipeline_id, newest))
    # Another mode wrote the table: by its rows.
    times = [times_of(action)[1] for action in pa.table(table.get_add_actions(flatten=True)).to_pylist()]
    return all(attempt.batch_time >= most for most in times if most is not None)


def rows_alone(rows: int) -> str:
    """Return the statistics of a file that the sink wrote.

    deltalake's dataset takes a column without bounds, beside one that has them, for one without values: a reader's
    filter on it would find no row of the file.
    """
    return json.dumps({"numRecords": rows})


def times_of(action: Mapping[str, Any]) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last batch time in a file, by its statistics, or by its path if the sink wrote it."""
    least, most = action.get(f"min.{BATCH_TIME}"), action.get(f"max.{BATCH_TIME}")
    found = _OF_A_BATCH.search(action["path"])
    if (least is None or most is None) and found is not None:
        least = most = datetime.strptime(found[1], f"%Y%m%dT%H%M%S{'.%f' if '.' in found[1] else ''}Z").replace(
            tzinfo=UTC
        )
    return least, most


def _is_of(attempt: OutputAttempt) -> str:
    return f"{BATCH_TIME} = '{attempt.batch_time.astimezone(UTC).isoformat()}'"


def _source(column: str) -> str:
    return f"source.{quoted(column)}"


def _target(column: str) -> str:
    return f"target.{quoted(column)}"


def _files_with(table: Any, attempt: OutputAttempt) -> list[str]:  # noqa: ANN401
    """Return the table's files that contain, or according to their statistics may contain, rows of the batch."""
    import pyarrow as pa  # noqa: PLC0415

    found = []
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        least, most = times_of(action)
        # Statistics are rounded down to milliseconds.
        floor = attempt.batch_time.replace(microsecond=attempt.batch_time.microsecond // 1000 * 1000)
        if least is None or most is None or (least <= attempt.batch_time and floor <= most):
            found.append(action["path"])
    return found


def _removals(paths: Sequence[str]) -> list[Any]:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return [RemoveAction(path, True, round(time() * 1000)) for path in paths]  # noqa: FBT003  it takes no keywords
