"""Write Parquet files by batch time, each batch exactly once.

Layout below PATH: every process that runs an attempt has an immutable directory `_attempts/TIME/attempt=N-TOKEN/`
(hidden to Spark and Arrow, which skip names that begin with `_` or `.`). The committed one is published as
`date=YYYY-MM-DD/hour=HH/batch_time=TIME/`: its files are hard-linked into a hidden directory, which atomically replaces
the old one. An attempt that was not committed is never published, so readers never see a zombie's files. A compacted
hour has one directory (`parquet_hours`).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

from orchestration.declarations.pipeline import DeclarationError
from orchestration.declarations.sink import (
    DAILY,
    HOURLY,
    DeliveryGuarantee,
    Sink,
    SinkError,
    Step,
    TableAddress,
    Written,
    unchecked,
)
from orchestration.sinks.declared_directory import check_directory, declared_directory, directory_place
from orchestration.sinks.directories import hidden_beside, recover, replace, sweep, sync
from orchestration.sinks.parquet.parquet_hours import batches_of, compacted_directory, rewrite_hour
from orchestration.sinks.parquet.parquet_objects import ParquetObjects
from orchestration.sinks.parquet_names import (
    ATTEMPTS,
    FILES,
    FOLDERS,
    attempt_directory,
    attempt_number,
    batch_directory,
    batch_stamp,
)
from orchestration.sinks.parquet_partitions import check_partitions, checked_partitions, partitions_of
from orchestration.sinks.parquet_staging import Staged, empty_file, staged_files
from orchestration.sinks.refused_files import show
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import arrow_schema, check_names
from receiver_runtime.block_store.object_urls import url_fault
from receiver_runtime.block_store.roots import OBJECT_SCHEMES, without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Check, Figures, OutputAttempt, Place, TargetCheck, Upkeep


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

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        path = str(self.path) if self._objects is None else str(self._objects.url)
        return {
            "kind": "parquet",
            "path": path,
            **({"compact": True} if self.compact else {}),
            **({"partition_by": list(self.partition_by)} if self.partition_by else {}),
            **declared_choice(self.on_bad_rows),
        }

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

    def check_target(self, schema: StructType | None = None) -> TargetCheck | None:  # noqa: ARG002  each batch has its own
        """Check the directory, and that its batches have the same folders; an object store is not asked."""
        if self._objects is not None:
            return None
        self._check_folders("its batches", datetime.now(UTC))
        return check_directory(self.path)

    def _check_folders(self, where: str, near: datetime) -> None:
        """Raise SinkError if published batches have other folders: no reader takes both kinds as one table.

        Nor is a Delta table a place for them: its `vacuum` deletes what its log does not name.
        """
        if (self.path / _DELTA_LOG).exists():
            raise SinkError(
                f"{where}: {self.path} is a Delta table, which deletes other files sooner or later: give the output a "
                "directory of its own, or use DeltaSink"
            )
        file = _some_file(self.path, near)
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
            return self._objects.write(result, attempt, self.on_bad_rows, self.partition_by)
        self._check_folders(attempt.name, attempt.batch_time)
        directory = self.path / attempt_directory(attempt.batch_time, attempt.attempt)
        staged = self._stage(result, directory, attempt)
        for made in (directory, *directory.parents):
            sync(made)
            if made == self.path:
                break
        return Written(str(directory), staged.rows, staged.refused)

    def _stage(self, result: DataFrame, directory: Path, attempt: OutputAttempt) -> Staged:
        """Let the tasks write, and list the files of the valid task attempts in the file FILES."""
        schema = arrow_schema(result.schema, attempt.name)
        directory.mkdir(parents=True)
        time = attempt.batch_time if self.compact else None
        staged = staged_files(result, directory, schema, time, self.on_bad_rows, self.partition_by)
        files = staged.files
        if not files and not self.compact and not self.partition_by:
            # Readers of a directory without rows get its columns from there.
            files = [empty_file(directory, schema)]
        named = directory / FILES
        names = sorted(str(Path(file.path).relative_to(directory)) for file in files)
        named.write_text(json.dumps(names), encoding="utf-8")
        sync(named)
        return staged

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        """Link the files of `location` into place: readers see either the whole old result or the whole new one."""
        if self._objects is not None:
            self._objects.publish(location, batch_time=batch_time, check=check, reached=self.reached)
            return
        source = Path(location)
        target = self.path / batch_directory(batch_time)
        hour = target.parent
        recover(hour)
        sweep(target)
        try:
            files = _data_files(source)
        except FileNotFoundError:
            # If this process has lost its lock, a newer attempt is published and has deleted these files.
            check()
            raise
        if compacted_directory(hour, _hour_stamp(batch_time)).is_dir():
            rewrite_hour(
                hour, _hour_stamp(batch_time), check=check, reached=self.reached, replaced=batch_time, by=files
            )
        elif not _has(target, source, files):
            hour.mkdir(parents=True, exist_ok=True)
            staged = hidden_beside(target)
            _link(files, source, staged)
            self.reached(Step.STAGED)
            replace(staged, target, check)
            self.reached(Step.COMMITTED)
        show(source, self.path, batch_time, check)
        # Other processes' results of this attempt, and those of older attempts, can no longer be committed.
        _forget(source.parent, attempt_number(source.name) or 0, but=source)

    def dataset(self, day: date | None = None) -> ds.Dataset:
        """Return the published batches as a pyarrow dataset: all, or those of one day in UTC.

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
                return found
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
        return sorted(
            datetime.strptime(f"{hour.parent.name} {hour.name} +0000", "date=%Y-%m-%d hour=%H %z")
            for hour in {*several, *hidden}
        )

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
        hour = (self.path / batch_directory(time)).parent
        recover(hour)
        sweep(hour)
        for batch in hour.glob(".batch_time=*"):
            sweep(batch.with_name(batch.name[1:].rpartition(".")[0]))
        if not self.compact:
            return None
        rows = None
        if len(batches_of(hour)) > 1:
            rows = rewrite_hour(hour, _hour_stamp(time), check=turn.check, reached=self.reached)
        if compacted_directory(hour, _hour_stamp(time)).is_dir():
            _forget_attempts(self.path, turn.committed)
        self.reached(Step.SWEPT)
        return rows


def _forget_attempts(path: Path, committed: Mapping[datetime, int]) -> None:
    for batch_time, attempt in committed.items():
        attempts = path / ATTEMPTS / batch_stamp(batch_time)
        _forget(attempts, attempt)
        with suppress(OSError):
            attempts.rmdir()


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


def _hour_stamp(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y%m%dT%H}"


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


def _some_file(path: Path, near: datetime) -> Path | None:
    """Return a file of a published batch near a time, else of one of the newest; None: they have none.

    The path is relative to the batch's directory. Lists the days only if the hour and the one before have no file.
    """
    batches = (batch for hour in _hours(path, near) for batch in reversed(batches_of(hour)))
    files = (file.relative_to(batch) for batch in islice(batches, _LOOKED_AT) for file in batch.rglob("*.parquet"))
    return next(files, None)


def _hours(path: Path, near: datetime) -> Iterator[Path]:
    for time in (near, near - timedelta(hours=1)):
        yield (path / batch_directory(time)).parent
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
