"""Store a ParquetSink on an object store, which can't rename: a batch consists of the files that its `_SUCCESS` names.

Spark's tasks write with pyarrow to `_attempts/TIME/attempt=N-TOKEN/`, because Spark itself writes to S3 only with
Hadoop's jars.
Publishing copies the committed attempt's files to `date=…/hour=…/batch_time=…/`, each under a name with the attempt's
number, then atomically replaces the object `_SUCCESS` by one that names the attempt and its files, and then deletes an
earlier attempt's files there. A reader of the files that `_SUCCESS` names sees the whole result of one attempt. A
compacted hour consists of the files that its own `_SUCCESS` names (`parquet_object_hours`).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError, Step, TargetUnavailableError, Written
from orchestration.sinks.file_stores import ObjectFiles
from orchestration.sinks.parquet.parquet_columns import (
    COLUMNS,
    as_bytes,
    fitted,
    grown,
    of_bytes,
    of_files,
    with_columns,
)
from orchestration.sinks.parquet.parquet_object_hours import SUCCESS, ObjectHour, dead_batches, hours_with_work, mark
from orchestration.sinks.parquet.parquet_zone import TIMEZONE, UTC_FOLDERS, FolderZone, read_zone
from orchestration.sinks.parquet_names import (
    ATTEMPTS,
    FILES,
    attempt_directory,
    attempt_number,
    batch_stamp,
)
from orchestration.sinks.parquet_partitions import FoldersOfValues
from orchestration.sinks.parquet_staging import ParquetStaging, staged_files
from orchestration.sinks.refused_files import show
from orchestration.sinks.table_columns import arrow_schema
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.block_store.stores.objects import open_objects
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import date, datetime

    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Check, OutputAttempt
    from orchestration.sinks.column_changes import ColumnPolicy
    from orchestration.sinks.refused_rows import OnBadRows
    from receiver_runtime.block_store.stores.objects import Objects

__all__ = ["SUCCESS", "ParquetObjects"]

# Bytes to read from a list of names: larger than any such list, so that it is read whole.
_WHOLE = 1 << 30


@dataclass(frozen=True, slots=True)
class ParquetObjects:
    """Keep one output's results as objects; `url` is a reference if it contains a secret."""

    url: str | Secret

    @property
    def shown(self) -> str:
        """Return the URL without secrets, for messages."""
        return without_secrets(self.url) if isinstance(self.url, str) else str(self.url)

    def write(
        self,
        result: DataFrame,
        attempt: OutputAttempt,
        on_bad_rows: OnBadRows,
        partition_by: tuple[str, ...],
        policy: ColumnPolicy | None,
        timezone: str | None = None,
    ) -> Written:
        """Let the tasks write objects of this attempt, and list the valid ones."""
        key = attempt_directory(attempt.batch_time, attempt.attempt)
        schema = arrow_schema(result.schema, attempt.name)
        with self._failures(attempt.name):
            objects = self._open()
            _zone(objects, timezone).check(timezone, self.shown, attempt.name)
            known = _known(objects)
            schema, _ = fitted(schema, known, policy, name=self.shown, where=attempt.name, partition_by=partition_by)
            store = ObjectFiles(self._resolved())
            staging = ParquetStaging(
                store,
                key,
                schema.serialize().to_pybytes(),
                attempt.batch_time,
                keeps_refused=on_bad_rows == "dead_letter",
                parting=FoldersOfValues(partition_by),
            )
            staged = staged_files(result, staging)
            names = sorted(file.path.removeprefix(f"{key}/") for file in staged.files)
            store.put(f"{key}/{FILES}", json.dumps(names).encode())
        return Written(f"{store.place}/{key}", staged.rows, staged.refused)

    def publish(
        self,
        location: str,
        *,
        batch_time: datetime,
        check: Check,
        reached: Callable[[Step], None],
        timezone: str | None = None,
    ) -> None:
        """Copy the files, name them in `_SUCCESS`, and delete the earlier ones; repeated, do only the missing steps."""
        attempts, name = f"{ATTEMPTS}/{batch_stamp(batch_time)}", location.rpartition("/")[2]
        number = attempt_number(name)
        if number is None:
            raise SinkError(f"publishing {location}: ParquetSink {self.shown}: it is no attempt's directory")
        source = f"{attempts}/{name}"
        with self._failures(f"publishing {location}"):
            objects = self._open()
            kept_zone = _named_zone(objects)
            zone = kept_zone or _first_zone(objects, timezone)
            target = zone.batch(batch_time)
            hour, stamp = ObjectHour(objects, batch_time, zone), batch_stamp(batch_time)
            compacted = hour.compacted()
            if compacted is not None and compacted.batches.get(stamp) == number:
                return
            try:
                names = json.loads(objects.get(f"{source}/{FILES}", 0, _WHOLE))
            except BlockStoreError:
                # If this process has lost its lock, a newer attempt is published and has deleted these files.
                check()
                raise
            sizes = dict(objects.sizes(attempts))
            show(ObjectFiles(self._resolved()), source, batch_time, check)
            if names:
                check()
                _note_columns(objects, f"{source}/{names[0]}")
            if compacted is not None and stamp in compacted.batches:
                files = [f"{source}/{file}" for file in names]
                hour.replace(compacted, batch_time, stamp, number, files, check=check, reached=reached)
                _forget(objects, sizes, attempts, number, but=name)
                return
            if kept_zone is None and zone != UTC_FOLDERS:
                check()
                objects.put(TIMEZONE, [zone.name.encode()])
            there = dict(objects.sizes(target))
            copies = {f"{target}/{_of_attempt(number, name)}": f"{source}/{name}" for name in names}
            for copy, original in copies.items():
                if there.get(copy) != sizes.get(original):
                    objects.copy(original, copy)
            reached(Step.STAGED)
            check()
            listing = {"attempt": number, "files": sorted(copy.removeprefix(f"{target}/") for copy in copies)}
            objects.put(f"{target}/{SUCCESS}", [json.dumps(listing).encode()])
            reached(Step.COMMITTED)
            check()
            for key in there.keys() - copies.keys() - {f"{target}/{SUCCESS}"}:
                objects.remove(key)
            _forget(objects, sizes, attempts, number, but=name)
            reached(Step.SWEPT)

    def folder_zone(self, timezone: str | None) -> FolderZone:
        """Return the zone of the folders that are there, or else that of the first one."""
        with self._failures("looking for the zone of the folders"):
            return _zone(self._open(), timezone)

    def hours(self) -> list[datetime]:
        """Return the hours that need upkeep, oldest first."""
        with self._failures("looking for hours to compact"):
            objects = self._open()
            return hours_with_work([key for key, _ in objects.sizes("")], _zone(objects, None))

    def compact_hour(
        self, time: datetime, committed: Mapping[datetime, int], *, check: Check, reached: Callable[[Step], None]
    ) -> int | None:
        """Merge the batches of an hour that is over, as ParquetSink's method does."""
        with self._failures(f"compacting the hour of {time.isoformat()}"):
            objects = self._open()
            zone = _zone(objects, None)
            hour = ObjectHour(objects, time, zone)
            rows = hour.compact(check=check, reached=reached)
            compacted = hour.compacted()
            for batch_time, attempt in committed.items():
                stamp = batch_stamp(batch_time)
                if compacted is None or stamp not in compacted.batches:
                    continue
                attempts = f"{ATTEMPTS}/{stamp}"
                there = dict(objects.sizes(attempts))
                if compacted.batches[stamp] < attempt:
                    # Another process, paused between its last check and its put, has restored an older attempt's rows.
                    files = _files_of(objects, there, attempts, attempt)
                    hour.replace(compacted, batch_time, stamp, attempt, files, check=check, reached=reached)
                    compacted = hour.compacted()
                _forget(objects, there, attempts, attempt)
            reached(Step.SWEPT)
            return rows

    def dataset(self, day: date | None) -> ds.Dataset:
        """Return the files that the `_SUCCESS` of their batch names, of all days or one."""
        import pyarrow as pa  # noqa: PLC0415  declaring a sink needs no Arrow
        import pyarrow.dataset as ds  # noqa: PLC0415

        with self._failures("reading what is published"):
            objects = self._open()
            below = "" if day is None else f"date={day.isoformat()}"
            marks = [
                key for key, _ in objects.sizes(below) if key.startswith("date=") and key.rpartition("/")[2] == SUCCESS
            ]
            said = {key.rpartition("/")[0]: mark(objects, key) for key in marks}
            dead = dead_batches(said)
            files = [f"{folder}/{name}" for folder, of in said.items() if folder not in dead for name in of["files"]]
            filesystem, root = objects.place("")
            if not files:
                return ds.dataset(pa.table({}))
            found = ds.dataset(
                [objects.place(file)[1] for file in files],
                filesystem=filesystem,
                format="parquet",
                partitioning="hive",
                partition_base_dir=root,
            )
            return with_columns(found, _known(objects), root)

    def _resolved(self) -> str:
        return self.url if isinstance(self.url, str) else self.url.resolve()

    def _open(self) -> Objects:
        return open_objects(self._resolved())

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """Turn failures into a SinkError that says what failed and contains no secret."""
        try:
            yield
        except (SecretError, BlockStoreError, OSError) as error:
            kind = TargetUnavailableError if isinstance(error, SecretError) else SinkError
            # pyarrow repeats the address of a request, which may be signed; the cause would be printed.
            said = str(error) if isinstance(error, SecretError) else SecretUrl(self._resolved()).scrub(str(error))
            raise kind(f"{doing}: ParquetSink {self.shown}: {said}") from None


def _zone(objects: Objects, timezone: str | None) -> FolderZone:
    """Return the zone of the folders that are there, or else that of the first one, `timezone`."""
    return _named_zone(objects) or _first_zone(objects, timezone)


def _named_zone(objects: Objects) -> FolderZone | None:
    try:
        return read_zone(objects.get(TIMEZONE, 0, _WHOLE))
    except FileNotFoundError:
        return None


def _first_zone(objects: Objects, timezone: str | None) -> FolderZone:
    if timezone in (None, "UTC") or any(key.startswith("date=") for key, _ in objects.sizes("")):
        return UTC_FOLDERS
    return FolderZone(timezone)


def _known(objects: Objects) -> pa.Schema | None:
    """Return the columns of all batches; None: not known."""
    try:
        return of_bytes(objects.get(COLUMNS, 0, _WHOLE))
    except FileNotFoundError:
        return None


def _note_columns(objects: Objects, file: str) -> None:
    """Add the columns of an attempt's file to those of all batches."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    known = before = _known(objects)
    filesystem, path = objects.place(file)
    if known is None:
        keys = [key for key, _ in objects.sizes("") if key.startswith("date=") and key.endswith(".parquet")]
        before = of_files([objects.place(key)[1] for key in keys], filesystem)
    now = grown(before, pq.read_schema(path, filesystem=filesystem).remove_metadata())
    if known is None or not now.equals(known):
        objects.put(COLUMNS, [as_bytes(now)])


def _of_attempt(number: int, name: str) -> str:
    """Return the published name of an attempt's file, in the folder of its values if it has one."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}attempt{number}-{file}"


def _files_of(objects: Objects, keys: Iterable[str], attempts: str, attempt: int) -> list[str]:
    """Return the valid files of a published attempt: only one process's result of it is left."""
    folders = {key.rpartition("/")[0] for key in keys if key.endswith(f"/{FILES}")}
    found = [folder for folder in folders if attempt_number(folder.removeprefix(f"{attempts}/")) == attempt]
    if len(found) != 1:
        raise SinkError(
            f"{attempts} has {len(found)} results of attempt {attempt}, and the hour shows an older one's: replay the "
            "batch"
        )
    return [f"{found[0]}/{name}" for name in json.loads(objects.get(f"{found[0]}/{FILES}", 0, _WHOLE))]


def _forget(objects: Objects, keys: Iterable[str], attempts: str, newest: int, *, but: str = "") -> None:
    """Delete results that can't be committed any more: those of attempts up to `newest`, except the folder `but`."""
    for key in keys:
        folder = key.removeprefix(f"{attempts}/").partition("/")[0]
        number = attempt_number(folder)
        if folder != but and number is not None and number <= newest:
            objects.remove(key)
