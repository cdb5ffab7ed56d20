"""Look after an Iceberg table: merge small files, expire snapshots, and delete what no snapshot needs any more.

A turn drops the tokens of snapshots that expired long ago, and notes a time from before which they all were. An attempt
that began before that time is refused, and if nothing says who committed a batch that is older, it replaces what may be
there (`commits.has_forgotten`). Files are deleted only after that commit, and only those from before that time:
none that an attempt wrote which may still commit. No attempt that the driver log waits for began before it. And only
those that an earlier turn found, too: none of a snapshot that expired a moment ago, which may still be read.

pyiceberg has no rewrite of files: one overwrite removes the small ones and adds the merged one. It is made on the table
as it is then: pyiceberg's own retries would fail because of each batch that came meanwhile. If another writer has
replaced one of the small files, their merge is dropped.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from forebay_contrib.iceberg.commits import FORGOTTEN, tokens_in, tokens_of, without_retries
from forebay_contrib.iceberg.data_files import (
    DataFiles,
    are_renamed_within,
    columns_by_id,
    name_of,
    opened,
    unless_changed,
)
from forebay_contrib.iceberg.expiry import KEPT, expirable, expire, may_expire, milliseconds
from forebay_contrib.iceberg.files import place_of, store_of
from forebay_contrib.iceberg.partitions import PartitionedRows
from orchestration.sinks.directories import remove_empty
from orchestration.sinks.file_stores import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from orchestration.declarations.sink import Figures, Upkeep
    from orchestration.sinks.file_stores import FileStore

#: How far clocks of hosts and of the driver log may differ.
SKEW = timedelta(minutes=10)
# How many snapshots or old tokens are worth a commit that expires them.
_WORTH = 20
# Refused rows that an attempt has put aside stay until they are published.
_UNPUBLISHED = timedelta(days=2)
# How many files below a size, in bytes, are worth one commit: files go from the first size to the second, and a row is
# written again twice.
_TIERS = ((8 << 20, 8), (128 << 20, 16))
_LARGEST = 128 << 20
# Beside an output's files: those that nothing needed in the turn before.
_NOTED = "_unneeded.json"
# How the names of a table's metadata end.
_METADATA = (".avro", ".metadata.json")
_ROWS_OF_GROUP = 1 << 17
# How many times a merge is committed, because batches may come first.
_TRIES = 10

log = structlog.get_logger(__name__)


def look_after(table: Table, turn: Upkeep) -> Figures:
    """Give a table its turn. Of a table that somebody else made, only small files are merged."""
    done: Counter[str] = Counter()
    for size, least in _TIERS:
        if turn.has_time():
            done += _merged(table, turn, size, least)
    if turn.has_time() and may_expire(table.refresh()):
        expired = _forgotten(table, turn)
        done += Counter(snapshots_expired=expired or 0)
        done += _swept(table, turn, is_due=expired is not None)
    return {name: number for name, number in done.items() if number}


def _merged(table: Table, turn: Upkeep, size: int, least: int) -> Counter[str]:
    """Merge files below a size, if one partition has enough of them, in one commit."""
    merges: list[tuple[list[DataFile], DataFile]] = []
    store = store_of(table, place_of(table), turn.name)
    written = DataFiles(table, table.schema(), PartitionedRows.of(table.spec(), table.schema(), None), store)
    for files in _small_files(table, size, least):
        if not turn.has_time():
            break
        turn.check()
        try:
            merges.append(_rewritten(written, turn, files))
        except _UnequalColumnsError as error:
            log.info("files were not merged", table=table.name(), reason=str(error))
    return _committed(table, turn, written, merges) if merges else Counter()


def _committed(
    table: Table, turn: Upkeep, written: DataFiles, merges: list[tuple[list[DataFile], DataFile]]
) -> Counter[str]:
    """Commit the merges whose files the table still has."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException  # noqa: PLC0415

    for _ in range(_TRIES):
        turn.check()
        table.refresh()
        there = _there(table, written)
        changed = [made for files, made in merges if not there.issuperset(map(name_of, files))]
        merges = [(files, made) for files, made in merges if made not in changed]
        if changed:
            log.info("small files were not merged, because the table changed", table=table.name())
            written.forget(changed, [])
        removed = [file for files, _ in merges for file in files]
        if not merges:
            return Counter()
        transaction = without_retries(table)
        try:
            properties = {"forebay.upkeep": "merged"}
            with transaction.update_snapshot(snapshot_properties=properties).overwrite() as overwrite:
                for file in removed:
                    overwrite.delete_data_file(file)
                for _, file in merges:
                    overwrite.append_data_file(file)
            transaction.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            log.info("another commit came first", table=table.name(), error=str(error))
        else:
            return Counter(files_merged=len(removed), files_made=len(merges))
    written.forget([made for _, made in merges], [])
    table.refresh()
    return Counter()


def _there(table: Table, written: DataFiles) -> set[str]:
    """Return the files that a merge may remove: those with all their rows, if the table is parted as it was."""
    if table.spec().spec_id != written.parting.spec_id:
        return set()
    return {name_of(task.file) for task in table.scan().plan_files() if not task.delete_files}


def _small_files(table: Table, size: int, least: int) -> Iterator[list[DataFile]]:
    """Return the files to merge: each list is of one partition, and becomes one file."""
    from pyiceberg.manifest import FileFormat  # noqa: PLC0415

    by_partition: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        # Files of another spec or format, or with deleted rows, stay as their writers made them.
        is_plain = file.spec_id == table.spec().spec_id and file.file_format == FileFormat.PARQUET
        if file.file_size_in_bytes < size and is_plain and not task.delete_files:
            by_partition[tuple(file.partition[at] for at in range(len(file.partition)))].append(file)
    for files in by_partition.values():
        if len(files) >= least:
            yield from _bins(files)


def _bins(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Return lists of at least two files, none larger than a file should be."""
    part: list[DataFile] = []
    for file in sorted(files, key=lambda file: file.file_size_in_bytes):
        if part and sum(one.file_size_in_bytes for one in part) + file.file_size_in_bytes > _LARGEST:
            yield part
            part = []
        part.append(file)
    if len(part) > 1:
        yield part


class _UnequalColumnsError(Exception):
    """Files have columns that can't be those of one file."""


def _rewritten(written: DataFiles, turn: Upkeep, files: Sequence[DataFile]) -> tuple[list[DataFile], DataFile]:
    """Write the rows of files of one partition to a new one, which has the table's present columns.

    Return the files whose columns can be those, and the new one.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    columns = schema_to_pyarrow(written.schema)
    partition = tuple(files[0].partition[at] for at in range(len(files[0].partition)))
    taken: list[DataFile] = []
    rows = _groups(_rows(written.table, files, columns, taken))
    made = written.written(rows, columns, f"{turn.pipeline}.{turn.output}/merged", partition)
    if len(taken) < 2:  # noqa: PLR2004  one alone stays as it is
        written.forget([made], [])
        raise _UnequalColumnsError("the others have other columns within a column, or lack a required one")
    return taken, made


def _rows(table: Table, files: Iterable[DataFile], columns: pa.Schema, taken: list[DataFile]) -> Iterator[pa.Table]:
    """Yield the rows of the files whose columns can be these, and add these files to `taken`."""
    import pyarrow as pa  # noqa: PLC0415

    ids = {field.name: field.field_id for field in table.schema().fields}
    for file in files:
        with table.io.new_input(name_of(file)).open() as stream:
            parquet = opened(stream)
            names = columns_by_id(parquet.schema_arrow, table)
            is_short = any(not field.nullable and ids[field.name] not in names for field in columns)
            if is_short or are_renamed_within(parquet.schema_arrow, table):
                continue
            taken.append(file)
            for batch in parquet.iter_batches():
                found = [_column(batch, names.get(ids[field.name]), field) for field in columns]
                yield pa.Table.from_arrays(found, schema=columns)


def _column(batch: pa.RecordBatch, name: str | None, field: pa.Field) -> pa.Array:
    """Return a column of the table from a batch of a file, which may lack it (None)."""
    import pyarrow as pa  # noqa: PLC0415

    if name is None:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(name)
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _UnequalColumnsError(f"column {field.name} is {column.type} and {field.type}: {error}") from error


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Return rows in larger pieces: each that is written is a row group."""
    import pyarrow as pa  # noqa: PLC0415

    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _ROWS_OF_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _forgotten(table: Table, turn: Upkeep) -> int | None:
    """Expire snapshots and drop old tokens; None: there are few of them."""
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

    until = min(turn.oldest_attempt or datetime.now(UTC), datetime.now(UTC) - KEPT)
    expired = expirable(table)
    tokens = {**tokens_in(table), **tokens_of(expired)}
    kept = {name: token for name, token in tokens.items() if int(token[0]) >= milliseconds(until - SKEW)}
    if max(len(expired), len(tokens) - len(kept)) < _WORTH:
        return None
    turn.check()
    try:
        with table.transaction() as transaction:
            # A batch may have expired snapshots meanwhile, whose tokens are not among those here.
            unless_changed(transaction, table)
            expire(transaction, table, expired, kept)
            forgotten = max(milliseconds(until), int(table.properties.get(FORGOTTEN, "0")))
            transaction.set_properties({FORGOTTEN: str(forgotten)})
    except CommitFailedException as error:
        log.info("no snapshots expired, because the table changed", table=table.name(), error=str(error))
        return None
    table.refresh()
    return len(expired)


def _swept(table: Table, turn: Upkeep, *, is_due: bool) -> Counter[str]:
    """Delete files that no snapshot needs: the table's metadata, and what attempts have written; if due, or noted.

    A turn notes them, and a later one deletes those that it still finds: who reads an expired snapshot began before.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

    if not isinstance(table.io, PyArrowFileIO):
        log.info("no files are deleted, because they can't be listed", table=table.name(), io=type(table.io).__name__)
        return Counter()
    store = store_of(table, place_of(table), turn.name)
    key = f"{turn.pipeline}.{turn.output}/{_NOTED}"
    noted_at, noted = _noted(store, key)
    if noted_at > datetime.now(UTC) - KEPT or not (is_due or noted):
        return Counter()
    until = datetime.fromtimestamp(int(table.properties.get(FORGOTTEN, "0")) / 1000, UTC) - SKEW
    needed = {_path(location) for location in _needed(table)}
    if _is_shared(table, needed):
        log.warning("no files are deleted, because another table lies there too", table=table.name())
        return Counter()
    gone, left = 0, []
    ours = (f"{place_of(table)}/{turn.pipeline}.{turn.output}", "")
    # Others' files may lie there too, as a hint for readers without a catalog.
    for place, ending in (ours, (f"{table.location()}/metadata", _METADATA)):
        filesystem = table.io.fs_by_scheme(*PyArrowFileIO.parse_location(place)[:2])
        for path in _older(filesystem, _path(place), until):
            if path in needed or not path.endswith(ending):
                continue
            if path in noted and turn.has_time():
                turn.check()
                filesystem.delete_file(path)
                gone += 1
            else:
                left.append(path)
    if left or noted:
        store.put(key, json.dumps({"at": datetime.now(UTC).isoformat(), "files": left}).encode())
    folder = Path(_path(f"{place_of(table)}/{turn.pipeline}.{turn.output}"))
    if isinstance(store, LocalFiles):
        remove_empty(folder, until.timestamp())
    return Counter(files_deleted=gone)


def _is_shared(table: Table, needed: AbstractSet[str]) -> bool:
    """Return whether another table has its metadata at the same place: then nothing says whose a file is."""
    import pyarrow.fs as pa_fs  # noqa: PLC0415
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

    place = f"{table.location()}/metadata"
    filesystem = table.io.fs_by_scheme(*PyArrowFileIO.parse_location(place)[:2])  # type: ignore[attr-defined]
    for info in filesystem.get_file_info(pa_fs.FileSelector(_path(place), allow_not_found=True)):
        if info.base_name.endswith(_METADATA[1]) and info.path not in needed:
            try:
                with filesystem.open_input_stream(info.path) as file:
                    found = json.loads(file.read())["table-uuid"]
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, UnicodeDecodeError):
                return True
            if found != str(table.metadata.table_uuid):
                return True
    return False


def _noted(store: FileStore, key: str) -> tuple[datetime, set[str]]:
    """Return which files a turn has found that nothing needed, and when."""
    try:
        with store.open(key) as file:
            found = json.loads(file.read())
        return datetime.fromisoformat(found["at"]), set(found["files"])
    except (FileNotFoundError, ValueError, KeyError):
        return datetime.min.replace(tzinfo=UTC), set()


def _path(location: str) -> str:
    """Return a location as pyarrow's file systems have it."""
    parts = urlsplit(location)
    return parts.path if parts.scheme in ("", "file") else f"{parts.netloc}{parts.path}"


def _needed(table: Table) -> Iterator[str]:
    """Return the locations of all files that a snapshot of the table, or its metadata, names."""
    yield table.metadata_location
    for entry in table.metadata.metadata_log:
        yield entry.metadata_file
    for statistics in (*table.metadata.statistics, *table.metadata.partition_statistics):
        yield statistics.statistics_path
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for file in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield file.data_file.file_path


def _older(filesystem: Any, folder: str, until: datetime) -> Iterator[str]:  # noqa: ANN401  pyarrow's
    import pyarrow.fs as pa_fs  # noqa: PLC0415

    for info in filesystem.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True, recursive=True)):
        limit = until - _UNPUBLISHED if info.base_name.startswith("_") else until
        if info.type == pa_fs.FileType.File and info.base_name != _NOTED and info.mtime < limit:
            yield info.path
