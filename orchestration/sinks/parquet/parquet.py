"""Write Parquet files by batch time, each batch exactly once.

Layout below PATH: every process that runs an attempt has an immutable directory `_attempts/TIME/attempt=N-TOKEN/`
(hidden to Spark and Arrow, which skip names that begin with `_` or `.`). The committed one is published as
`date=YYYY-MM-DD/hour=HH/batch_time=TIME/`, with date and hour in one zone (`parquet_zone`): its files are hard-linked
into a hidden directory, which atomically replaces the old one. An attempt that was not committed is never published, so
readers never see a zombie's files. A compacted hour has one directory (`parquet_hours`).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import (
    DAILY,
    HOURLY,
    DeliveryGuarantee,
    Sink,
    SinkError,
    Step,
    TableAddress,
    TargetCheck,
    Written,
    unchecked,
)
from orchestration.sinks.column_changes import checked_policy, declared_policy
from orchestration.sinks.declared_directory import check_directory, declared_directory, directory_place
from orchestration.sinks.directories import hidden_beside, recover, replace, sweep, sync
from orchestration.sinks.file_stores import LocalFiles
from orchestration.sinks.parquet.parquet_columns import (
    COLUMNS,
    as_bytes,
    fitted,
    grown,
    of_bytes,
    of_files,
    with_columns,
)
from orchestration.sinks.parquet.parquet_hours import batches_of, compacted_directory, rewrite_hour
from orchestration.sinks.parquet.parquet_objects import ParquetObjects
from orchestration.sinks.parquet.parquet_zone import TIMEZONE, UTC_FOLDERS, FolderZone, read_zone, span_of_hour
from orchestration.sinks.parquet_names import (
    ATTEMPTS,
    FILES,
    FOLDERS,
    attempt_directory,
    attempt_number,
    batch_stamp,
)
from orchestration.sinks.parquet_partitions import (
    FoldersOfValues,
    check_partitions,
    checked_partitions,
    partitions_of,
)
from orchestration.sinks.parquet_staging import ParquetStaging, Staged, empty_file, staged_files
from orchestration.sinks.refused_files import show
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import arrow_schema, check_names
from receiver_runtime.block_store.object_urls import url_fault
from receiver_runtime.block_store.roots import OBJECT_SCHEMES, without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError
from tracker_store.schema.batch_calendar import checked_zone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Check, Figures, OutputAttempt, Place, Upkeep
    from orchestration.sinks.column_changes import ColumnChanges, ColumnPolicy


#: How often a directory is listed that changes meanwhile.
_LISTINGS = 20
# How many of the newest batches are looked at for the folders that an output makes: those without rows have none.
_LOOKED_AT = 100
_DELTA_LOG = "_delta_log"  # the folder that makes a directory a Delta table


class ParquetSink(Sink):
    """Write an output as Parquet under `path`, partitioned by date, hour and batch time. Exactly once."""

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.EXACTLY_ONCE
    publishes: ClassVar[bool] = True

    def __init__(
        self,
        path: str | Path | Secret,
        *,
        compact: bool = False,
        partition_by: Sequence[str] | str = (),
        on_bad_rows: OnBadRows = "fail",
        columns: ColumnPolicy | None = None,
        timezone: str | None = None,
    ) -> None:
        """Declare the location of the files.

        Args:
            path: a directory, relative to the working directory of `forebay apply`; or `"s3://BUCKET/PREFIX"` if it
                contains no secret; or an `EnvVar("NAME")` that holds the whole URL.
            compact: rows get the column `_batch_time`, and the schedule `PIPELINE_upkeep` merges the batches of
                each hour that is over into one directory; on an object store, into one batch.
            partition_by: columns of text, whole numbers or dates. A batch's files lie in folders of their values,
                `COLUMN=VALUE/`, and lack them: readers take them from the folders, and read only those that they need.
            on_bad_rows: what happens to rows with a text that is not UTF-8, or with a value of `partition_by` that
                readers would take for another: "fail" fails the batch, and names them; "dead_letter" commits the
                others, and publishes the refused rows with the batch, as lines of JSON in `_refused_rows/`.
            columns: what happens to columns that no batch in `path` has, or that are narrower there: with "add", the
                default, readers see them as null, or widened, in the batches before; "refuse" refuses the batch.
            timezone: the zone of the folders `date=` and `hour=`, as `"Europe/Berlin"`; default: the pipeline's. A path
                keeps the zone of its first batch.

        Raises:
            DeclarationError: a value is invalid, or a secret is given as plain text; the message says how to fix it.
        """
        self._objects = _objects(path)
        # For an object store this is the URL without secrets, only for messages.
        self.path = (
            Path(self._objects.shown)
            if self._objects is not None
            else declared_directory(
                cast("str | Path", path), "ParquetSink", otherwise=", or s3://BUCKET/PREFIX as text"
            )
        )
        self.compact = compact
        self.partition_by = checked_partitions(partition_by, compact=compact)
        self.on_bad_rows: OnBadRows = checked_choice(on_bad_rows, "ParquetSink")
        self.columns = checked_policy(columns, "ParquetSink")
        try:
            self._own_timezone = None if timezone is None else checked_zone(timezone)
        except ValueError as error:
            message = f"ParquetSink: timezone: {error}"
            raise DeclarationError(message) from error
        self.timezone = self._own_timezone

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        path = str(self.path) if self._objects is None else str(self._objects.url)
        return {
            "kind": "parquet",
            "path": path,
            **({"compact": True} if self.compact else {}),
            **({"partition_by": list(self.partition_by)} if self.partition_by else {}),
            **declared_choice(self.on_bad_rows),
            **declared_policy(self.columns),
            **({} if self.timezone in (None, "UTC") else {"timezone": self.timezone}),
        }

    def in_timezone(self, timezone: str | None) -> None:
        """Name the folders in this zone, unless it has its own."""
        self.timezone = self._own_timezone or timezone

    def published_hour(self, batch_time: datetime) -> tuple[datetime, datetime]:
        """Return the span of the batch's folder of an hour: two hours, where the clock shows one twice."""
        zone = self._zone() if self._objects is None else self._objects.folder_zone(self.timezone)
        return span_of_hour(zone, batch_time)

    def _zone(self) -> FolderZone:
        """Return the zone of the folders that are there, or else of the first one."""
        # A file where the directory is to be is found, and named, by what looks at the directory.
        with suppress(FileNotFoundError, NotADirectoryError):
            return read_zone((self.path / TIMEZONE).read_bytes())
        if self.timezone in (None, "UTC") or next(self.path.glob("date=*"), None) is not None:
            return UTC_FOLDERS
        return FolderZone(self.timezone)

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the directory or prefix."""
        return directory_place(declaration["path"])

    def address(self) -> TableAddress:
        """Return the URI of the directory or prefix; a reference has none."""
        if self._objects is None:
            return TableAddress(uri=self.path.as_uri())
        shown = self._objects.shown
        return TableAddress(uri=shown if "://" in shown else None)

    def check_columns(self, schema: StructType, where: str) -> None:
        """Check for names of folders, and for what files don't keep."""
        check_names(schema, where, reserved=FOLDERS, folds_case=True)
        arrow_schema(schema, where)
        check_partitions(schema, self.partition_by, where)

    def check_target(self, schema: StructType | None = None) -> TargetCheck | None:
        """Check the directory, and its batches' folders and columns; an object store is not asked."""
        if self._objects is not None:
            return None
        self._check_folders("its batches", datetime.now(UTC))
        checked = check_directory(self.path)
        if schema is None or checked.health != "ok":
            return checked
        try:
            _, changes = self._fitted(schema, "the result")
        except SinkError as error:
            return TargetCheck("failed", str(error), "Change the result, or give the output another path.")
        return changed(checked, found=f"{checked.found}; its next batch {changes.shown()}") if changes else checked

    def _fitted(self, schema: StructType, where: str) -> tuple[pa.Schema, ColumnChanges]:
        return fitted(
            arrow_schema(schema, where),
            _known(self.path),
            self.columns,
            name=str(self.path),
            where=where,
            partition_by=self.partition_by,
        )

    def _check_folders(self, where: str, near: datetime) -> None:
        """Raise SinkError if published batches have other folders: no reader takes both kinds as one table.

        Nor is a Delta table a place for them: its `vacuum` deletes what its log does not name.
        """
        if (self.path / _DELTA_LOG).exists():
            raise SinkError(
                f"{where}: {self.path} is a Delta table, which deletes other files sooner or later: give the output a "
                "directory of its own, or use DeltaSink"
            )
        zone = self._zone()
        zone.check(self.timezone, self.path, where)
        file = _some_file(self.path, near, zone)
        if file is None:
            return
        there = partitions_of(file.parts)
        if there != self.partition_by:
            raise SinkError(
                f"{where}: the batches in {self.path} have folders of {', '.join(there) or 'no column'}, and "
                f"partition_by={list(self.partition_by)!r} would make others beside them, which readers refuse: keep "
                "it as it was, or give the output another path, and replay what it should have"
            )

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Write to a directory of this attempt in this process; every file and directory is synced on return."""
        self.check_columns(result.schema, attempt.name)
        if self._objects is not None:
            return self._objects.write(
                result, attempt, self.on_bad_rows, self.partition_by, self.columns, self.timezone
            )
        self._check_folders(attempt.name, attempt.batch_time)
        folder = attempt_directory(attempt.batch_time, attempt.attempt)
        staged = self._stage(result, folder, attempt)
        return Written(str(self.path / folder), staged.rows, staged.refused)

    def _stage(self, result: DataFrame, folder: str, attempt: OutputAttempt) -> Staged:
        """Let the tasks write, and list the files of the valid task attempts in the file FILES."""
        (schema, _), store = self._fitted(result.schema, attempt.name), LocalFiles(str(self.path))
        # With this process's umask: Spark's workers may have another one.
        (self.path / folder).mkdir(parents=True)
        staging = ParquetStaging(
            store,
            folder,
            schema.serialize().to_pybytes(),
            attempt.batch_time if self.compact else None,
            keeps_refused=self.on_bad_rows == "dead_letter",
            parting=FoldersOfValues(self.partition_by),
        )
        staged = staged_files(result, staging)
        files = staged.files
        if not files and not self.compact and not self.partition_by:
            # Readers of a directory without rows get its columns from there.
            files = [empty_file(store, folder, schema)]
        names = sorted(file.path.removeprefix(f"{folder}/") for file in files)
        store.put(f"{folder}/{FILES}", json.dumps(names).encode())
        return staged

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        """Link the files of `location` into place: readers see either the whole old result or the whole new one."""
        if self._objects is not None:
            self._objects.publish(
                location, batch_time=batch_time, check=check, reached=self.reached, timezone=self.timezone
            )
            return
        source, zone = Path(location), self._zone()
        target, stamp = self.path / zone.batch(batch_time), zone.stamp(batch_time)
        hour = target.parent
        recover(hour)
        sweep(target)
        try:
            files = _data_files(source)
            columns = _grown(self.path, files)
        except FileNotFoundError:
            # If this process has lost its lock, a newer attempt is published and has deleted these files.
            check()
            raise
        if columns is not None:
            check()
            _keep(self.path, columns)
        if zone != UTC_FOLDERS:
            _keep_zone(self.path, zone, check)
        if compacted_directory(hour, stamp).is_dir():
            rewrite_hour(hour, stamp, check=check, reached=self.reached, replaced=batch_time, by=files)
        elif not _has(target, source, files):
            hour.mkdir(parents=True, exist_ok=True)
            staged = hidden_beside(target)
            _link(files, source, staged)
            self.reached(Step.STAGED)
            replace(staged, target, check)
            self.reached(Step.COMMITTED)
        show(LocalFiles(str(self.path)), os.path.relpath(source, self.path), batch_time, check)
        # Other processes' results of this attempt, and those of older attempts, can no longer be committed.
        _forget(source.parent, attempt_number(source.name) or 0, but=source)

    def dataset(self, day: date | None = None) -> ds.Dataset:
        """Return the published batches as a pyarrow dataset: all, or those of one day, in the zone of the folders.

        If a batch is replaced during a read, the read may fail with FileNotFoundError: read again.
        """
        if self._objects is not None:
            return self._objects.dataset(day)
        import pyarrow.dataset as ds  # noqa: PLC0415  as below

        root = self.path if day is None else self.path / f"date={day.isoformat()}"
        for _ in range(_LISTINGS):
            # Arrow passes over what vanishes while it lists: a batch that is replaced then would have no rows.
            before = _directories(root)
            found = ds.dataset(root, format="parquet", partitioning="hive", partition_base_dir=str(self.path))
            if before is not None and _directories(root) == before:
                return with_columns(found, _known(self.path), str(self.path))
        raise FileNotFoundError(f"{root} was changed during each of {_LISTINGS} listings: read again")

    @property
    def upkeep_every(self) -> timedelta:  # type: ignore[override]  # depends on the declaration
        """Merge an hour soon after its end; what replays have replaced can wait."""
        return HOURLY if self.compact else DAILY

    def upkeep_hours(self) -> list[datetime]:
        """Return the hours with several directories or hidden leftovers; the driver log decides whether one is over."""
        if self._objects is not None:
            return self._objects.hours() if self.compact else []
        hidden = [left.with_name(left.name.split(".")[1]) for left in self.path.glob("date=*/.hour=*")]
        hidden += [left.parent for left in self.path.glob("date=*/hour=*/.batch_time=*")]
        several = [hour for hour in self.path.glob("date=*/hour=*") if self.compact and len(batches_of(hour)) > 1]
        zone = self._zone()
        return sorted(zone.time_of(f"{hour.parent.name}/{hour.name}") for hour in {*several, *hidden})

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge the batches of an hour that is over into one directory, and delete replaced directories.

        The files of the batches' attempts under `_attempts/` are deleted, with those of earlier attempts. Raises
        SinkError, without any change, if the files' columns don't fit together.
        """
        if turn.hour is None:
            return {}
        rows = (
            self._keep_hour(turn, turn.hour)
            if self._objects is None
            else self._objects.compact_hour(turn.hour, turn.committed, check=turn.check, reached=self.reached)
        )
        return {} if rows is None else {"hours": 1, "rows": rows}

    def _keep_hour(self, turn: Upkeep, time: datetime) -> int | None:
        """Look after an hour; return its rows, or None if it was merged already, or is not to be."""
        zone = self._zone()
        hour, stamp = self.path / zone.hour(time), zone.stamp(time)
        recover(hour)
        sweep(hour)
        for batch in hour.glob(".batch_time=*"):
            sweep(batch.with_name(batch.name[1:].rpartition(".")[0]))
        if not self.compact:
            return None
        rows = None
        if len(batches_of(hour)) > 1:
            rows = rewrite_hour(hour, stamp, check=turn.check, reached=self.reached)
        if compacted_directory(hour, stamp).is_dir():
            # Where the clock is set to and fro at midnight, the span of an hour has batches of another folder too.
            _forget_attempts(self.path, {at: n for at, n in turn.committed.items() if zone.stamp(at) == stamp})
        self.reached(Step.SWEPT)
        return rows


def _forget_attempts(path: Path, committed: Mapping[datetime, int]) -> None:
    for batch_time, attempt in committed.items():
        attempts = path / ATTEMPTS / batch_stamp(batch_time)
        _forget(attempts, attempt)
        with suppress(OSError):
            attempts.rmdir()


def _known(path: Path) -> pa.Schema | None:
    """Return the columns of all batches; None: not known."""
    try:
        return of_bytes((path / COLUMNS).read_bytes())
    except FileNotFoundError:
        return None


def _grown(path: Path, files: Sequence[Path]) -> pa.Schema | None:
    """Return the columns of all batches with those of an attempt's files; None: they are known."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not files:
        return None
    known = before = _known(path)
    if known is None:
        before = of_files(sorted(path.glob("date=*/hour=*/batch_time=*/**/*.parquet")))
    now = grown(before, pq.read_schema(files[0]).remove_metadata())
    return None if known is not None and now.equals(known) else now


def _keep(path: Path, columns: pa.Schema) -> None:
    # It may be new: the files of an attempt lie below the path that was declared when it began.
    path.mkdir(parents=True, exist_ok=True)
    staged = hidden_beside(path / COLUMNS)
    staged.write_bytes(as_bytes(columns))
    sync(staged)
    staged.rename(path / COLUMNS)
    sync(path)


def _directories(root: Path) -> set[tuple[str, int]] | None:
    """Return the directories of hours and batches below a root with their inodes: a replaced one has another.

    None: one vanished meanwhile.
    """
    found: set[tuple[str, int]] = set()
    waiting = [root]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(("date=", "hour=", "batch_time=")):
                        found.add((entry.path, entry.inode()))
                        if not entry.name.startswith("batch_time="):
                            waiting.append(Path(entry.path))
        except FileNotFoundError:
            return None
    return found


def _objects(path: str | Path | Secret) -> ParquetObjects | None:
    """Return the object store that `path` names; None for a directory. Raises DeclarationError."""
    if (isinstance(path, str) and "://" not in path) or isinstance(path, Path):
        return None
    if not isinstance(path, str):
        try:
            return ParquetObjects(Secret.of(path))
        except SecretError as error:
            message = f"ParquetSink: path: {error}"
            raise DeclarationError(message) from None
    parts = urlsplit(path)
    if parts.scheme not in OBJECT_SCHEMES or not parts.netloc:
        message = (
            f"ParquetSink: {without_secrets(path)!r} is neither a directory nor of an object store: write "
            f"SCHEME://BUCKET/PREFIX, with one of {', '.join(OBJECT_SCHEMES)}"
        )
        raise DeclarationError(message)
    if "@" in parts.netloc or SecretUrl(path).has_secret:
        message = (
            f"ParquetSink: {without_secrets(path)!r} has a user or a password in it: leave them to the environment "
            '(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), or give the whole URL by EnvVar("NAME")'
        )
        raise DeclarationError(message)
    if (why := url_fault(path)) is not None:
        message = f"ParquetSink: {why}"
        raise DeclarationError(message)
    return ParquetObjects(path)


def _keep_zone(path: Path, zone: FolderZone, check: Check) -> None:
    """Note the zone of a path's folders before the first one is there."""
    if (path / TIMEZONE).exists():
        return
    check()
    path.mkdir(parents=True, exist_ok=True)
    staged = hidden_beside(path / TIMEZONE)
    staged.write_text(f"{zone.name}\n", encoding="ascii")
    sync(staged)
    staged.rename(path / TIMEZONE)
    sync(path)


def _has(target: Path, source: Path, files: Sequence[Path]) -> bool:
    there = {entry.relative_to(target) for entry in target.rglob("*") if entry.is_file()}
    return target.is_dir() and there == {file.relative_to(source) for file in files}


def _link(files: Sequence[Path], source: Path, staged: Path) -> None:
    """Link the files of an attempt below a new directory, whose folders are synced on return."""
    staged.mkdir()
    folders = {staged}
    for file in files:
        linked = staged / file.relative_to(source)
        linked.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, linked)
        folders.update(folder for folder in linked.parents if folder.is_relative_to(staged))
    for folder in folders:
        sync(folder)


def _some_file(path: Path, near: datetime, zone: FolderZone) -> Path | None:
    """Return a file of a published batch near a time, else of one of the newest; None: they have none.

    The path is relative to the batch's directory. Lists the days only if the hour and the one before have no file.
    """
    batches = (batch for hour in _hours(path, near, zone) for batch in reversed(batches_of(hour)))
    files = (file.relative_to(batch) for batch in islice(batches, _LOOKED_AT) for file in batch.rglob("*.parquet"))
    return next(files, None)


def _hours(path: Path, near: datetime, zone: FolderZone) -> Iterator[Path]:
    for time in (near, near - timedelta(hours=1)):
        yield path / zone.hour(time)
    for day in sorted(path.glob("date=*"), reverse=True):
        yield from sorted(day.glob("hour=*"), reverse=True)


def _forget(attempts: Path, newest: int, *, but: Path | None = None) -> None:
    """Delete the directories of attempts up to `newest` at a batch, except `but`."""
    for directory in attempts.glob("attempt=*"):
        number = attempt_number(directory.name)
        if number is not None and number <= newest and directory != but:
            shutil.rmtree(directory, ignore_errors=True)


def _data_files(directory: Path) -> list[Path]:
    """Return the files of the valid task attempts of an attempt."""
    return [directory / name for name in json.loads((directory / FILES).read_text(encoding="utf-8"))]
