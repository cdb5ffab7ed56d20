"""Look after an Iceberg table: merge small files, expire snapshots, and delete what no snapshot needs any more.

pyiceberg copies all snapshots' descriptions many times in each commit, so that a table with hundreds of them is slow to
write to. Therefore each commit of the sink that finds many expires most of them (`shorten`): those whose files are all
in a later one, and not the last one before a merge or a replay, which readers may still be reading.

A snapshot is also a token: it says which attempt has committed a batch, which makes a late attempt harmless. The token
of an expired one stays in the table's properties, which cost nothing to copy (`remembered`). A turn drops old tokens,
and notes a time from before which they all were. If nothing says who committed a batch, an attempt that began before
that time is refused, and one at an older batch replaces what may be there (`has_forgotten`). Files are deleted only
after that commit, and only those from before that time: none that an attempt wrote which may still commit. No attempt
that the driver log waits for began before it.

pyiceberg has no rewrite of files: one overwrite removes the small ones and adds the merged one. If another writer has
replaced one of them meanwhile, the overwrite fails, and nothing else does.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from orchestration.declarations.sink import AttemptOutdatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from orchestration.declarations.sink import Figures, OutputAttempt, Upkeep

    Tokens = dict[str, list[str]]

MADE_BY = "forebay.made-by"
#: The time, in milliseconds, before which expired snapshots were made.
FORGOTTEN = "forebay.forgotten-until-ms"
#: Tokens of expired snapshots, as JSON: their time and what their snapshots said, by application id.
TOKENS = "forebay.tokens"
_APPLICATION = "forebay.application"
_TOKEN = ("forebay.attempt", "forebay.run", "forebay.rows", "forebay.refused", "forebay.location")
_AGE = "history.expire.max-snapshot-age-ms"
_LEAST = "history.expire.min-snapshots-to-keep"
#: How long tokens, and files that only older snapshots need, stay at least: for readers, and for processes that were
#: declared dead and go on.
KEPT = timedelta(hours=1)
#: How far clocks of hosts and of the driver log may differ.
SKEW = timedelta(minutes=10)
# How many of the newest snapshots stay in any case, if the table does not say it.
_SNAPSHOTS = 10
# How many snapshots or old tokens are worth a commit that expires them.
_WORTH = 20
# Refused rows that an attempt has put aside stay until they are published.
_UNPUBLISHED = timedelta(days=2)
# How many files below a size, in bytes, are worth one commit: files go from the first size to the second, and a row is
# written again twice.
_TIERS = ((8 << 20, 8), (128 << 20, 16))
_LARGEST = 128 << 20
_ROWS_OF_GROUP = 1 << 17
# What a table that the sink made says if its owner has said nothing.
_DEFAULTS = {"write.metadata.delete-after-commit.enabled": "true", "commit.manifest-merge.enabled": "true"}
_FIELD_ID = b"PARQUET:field_id"
_NEWEST_FORMAT = 2

log = structlog.get_logger(__name__)


def look_after(table: Table, turn: Upkeep) -> Figures:
    """Give a table its turn. Of a table that somebody else made, only small files are merged."""
    done: Counter[str] = Counter()
    if table.format_version > _NEWEST_FORMAT:
        return done
    for size, least in _TIERS:
        if turn.has_time():
            done += _merged(table, turn, size, least)
    if _may_expire(table) and turn.has_time():
        done += _forgotten(table, turn)
    return {name: number for name, number in done.items() if number}


def has_forgotten(table: Table, attempt: OutputAttempt) -> bool:
    """Return whether the snapshot of a commit of this batch may have expired: of one by another driver log, too.

    Called with a table that has no token of the batch, before the commit on top of it. Raises
    AttemptOutdatedError if one of a newer attempt than this may have expired.
    """
    until = int(table.properties.get(FORGOTTEN, "0"))
    if attempt.began_at is not None and attempt.began_at.timestamp() * 1000 < until:
        raise AttemptOutdatedError(
            f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
            f"{attempt.began_at.isoformat()}, and its Iceberg table has forgotten since which attempts have "
            "committed: a newer one may have, so it changed nothing"
        )
    return attempt.batch_time.timestamp() * 1000 < until


def is_own(table: Table) -> bool:
    """Return whether a sink made the table: its properties say so, or its very first snapshot is one of a batch."""
    if MADE_BY in table.properties:
        return True
    # A later first one says nothing: others may have expired those before it.
    return any(
        snapshot.sequence_number == 1 and _APPLICATION in _properties(snapshot) for snapshot in table.snapshots()
    )


def _properties(snapshot: Snapshot) -> dict[str, str]:
    found: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return found


def _merged(table: Table, turn: Upkeep, size: int, least: int) -> Counter[str]:
    """Merge files below a size, if one partition has enough of them, in one commit."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException  # noqa: PLC0415

    removed: list[DataFile] = []
    added: list[DataFile] = []
    for files in _small_files(table, size, least):
        if not turn.has_time():
            break
        turn.check()
        try:
            added.append(_rewritten(table, turn, files))
        except _UnequalColumnsError as error:
            log.info("files were not merged", table=table.name(), reason=str(error))
            continue
        removed += files
    if not added:
        return Counter()
    turn.check()
    try:
        with (
            table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties={"forebay.upkeep": "merged"}).overwrite() as overwrite,
        ):
            for file in removed:
                overwrite.delete_data_file(file)
            for file in added:
                overwrite.append_data_file(file)
    except (CommitFailedException, ValidationException) as error:
        log.info("small files were not merged, because the table changed", table=table.name(), error=str(error))
        for file in added:
            table.io.delete(file.file_path)
        table.refresh()
        return Counter()
    return Counter(files_merged=len(removed), files_made=len(added))


def _small_files(table: Table, size: int, least: int) -> Iterator[list[DataFile]]:
    """Return the files to merge: each list is of one partition, and becomes one file."""
    by_partition: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        # Files of another spec, or with deleted rows, stay as their writers made them.
        if file.file_size_in_bytes < size and file.spec_id == table.spec().spec_id and not task.delete_files:
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


def _rewritten(table: Table, turn: Upkeep, files: Sequence[DataFile]) -> DataFile:
    """Write the rows of files of one partition to a new one, which has the table's present columns."""
    import pyarrow.parquet as pq  # noqa: PLC0415
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    schema = schema_to_pyarrow(table.schema())
    path = f"{_own_folder(table, turn)}/merged/part-{secrets.token_hex(8)}.parquet"
    output = table.io.new_output(path)
    with output.create() as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for rows in _groups(_rows(table, files, schema)):
            writer.write_table(rows)
    with table.io.new_input(path).open() as written:
        footer = pq.read_metadata(written)
    return _described(table, path, len(table.io.new_input(path)), footer, files[0])


def _own_folder(table: Table, turn: Upkeep) -> str:
    place = table.properties.get("write.data.path") or f"{table.location()}/data"
    parts = urlsplit(place)
    # Attempts name files in a directory by their paths.
    place = parts.path if parts.scheme == "file" else place
    return f"{place.rstrip('/')}/{turn.pipeline}.{turn.output}"


def _rows(table: Table, files: Iterable[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in files:
        with table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            there = {_id(field) or field.name: at for at, field in enumerate(parquet.schema_arrow)}
            for batch in parquet.iter_batches():
                columns = [_column(batch, there, field) for field in schema]
                yield pa.Table.from_arrays(columns, schema=schema)


def _id(field: pa.Field) -> bytes | None:
    return None if field.metadata is None else field.metadata.get(_FIELD_ID)


def _column(batch: pa.RecordBatch, there: dict[Any, int], field: pa.Field) -> pa.Array:
    """Return a column of the table from a batch of a file: by its id, or, in a file without ids, by its name."""
    import pyarrow as pa  # noqa: PLC0415

    at = there.get(_id(field), there.get(field.name))
    if at is None:
        if not field.nullable:
            raise _UnequalColumnsError(f"a file has no required column {field.name}")
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(at)
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
    for table in tables:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= _ROWS_OF_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _described(table: Table, path: str, size: int, footer: Any, like: DataFile) -> DataFile:  # noqa: ANN401
    """Describe a new file of the partition of another one."""
    from pyiceberg.io.pyarrow import (  # noqa: PLC0415
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat  # noqa: PLC0415

    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=like.partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=like.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def shorten(transaction: Transaction, table: Table, owner: str) -> None:
    """Expire snapshots in a transaction of the sink, if its table has many; their tokens stay."""
    if len(table.snapshots()) >= 2 * _SNAPSHOTS and _may_expire(table):
        expired = _expirable(table)
        if len(expired) >= _SNAPSHOTS:
            _expire(transaction, table, expired, {**_tokens(table), **_tokens_of(expired)}, owner)


def remembered(table: Table, attempt: OutputAttempt) -> dict[str, str] | None:
    """Return what the table's properties say of the newest attempt at a batch whose snapshot has expired."""
    found = _tokens(table).get(attempt.application_id)
    return None if found is None else dict(zip(_TOKEN, found[1:], strict=True))


def _may_expire(table: Table) -> bool:
    """Return whether the sink made the table, and no branch or tag needs its snapshots."""
    return is_own(table) and len(table.refs()) == 1


def _tokens(table: Table) -> Tokens:
    found: Tokens = json.loads(table.properties.get(TOKENS, "{}"))
    return found


def _tokens_of(snapshots: Iterable[Snapshot]) -> Tokens:
    """Return the tokens of snapshots, oldest first: each with its time in milliseconds."""
    return {
        properties[_APPLICATION]: [str(snapshot.timestamp_ms), *(properties[name] for name in _TOKEN)]
        for snapshot in snapshots
        for properties in [_properties(snapshot)]
        if _APPLICATION in properties
    }


def _expirable(table: Table) -> list[Snapshot]:
    """Return the snapshots that no reader needs, oldest first; the table's properties may keep more."""
    # In the format's first version their sequence is that of their times.
    snapshots = sorted(table.snapshots(), key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
    now = datetime.now(UTC)
    # A snapshot before an append has no file that the later one lacks.
    last = {
        snapshot.parent_snapshot_id
        for snapshot in snapshots
        if not _is_append(snapshot) and snapshot.timestamp_ms >= _milliseconds(now - KEPT)
    }
    age = timedelta(milliseconds=int(table.properties.get(_AGE, "0")))
    least = max(1, int(table.properties.get(_LEAST, _SNAPSHOTS)))
    return [
        snapshot
        for snapshot in snapshots[:-least]
        if snapshot.snapshot_id not in last and snapshot.timestamp_ms <= _milliseconds(now - age)
    ]


def _is_append(snapshot: Snapshot) -> bool:
    from pyiceberg.table.snapshots import Operation  # noqa: PLC0415  declaring a sink needs no pyiceberg

    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _expire(transaction: Transaction, table: Table, snapshots: Iterable[Snapshot], tokens: Tokens, owner: str) -> None:
    from pyiceberg.table.update.snapshot import ExpireSnapshots  # noqa: PLC0415

    properties = {MADE_BY: owner, **_DEFAULTS, **table.properties}
    properties[TOKENS] = json.dumps(tokens, separators=(",", ":"))
    transaction.set_properties(
        {name: value for name, value in properties.items() if table.properties.get(name) != value}
    )
    if ids := [snapshot.snapshot_id for snapshot in snapshots]:
        ExpireSnapshots(transaction).by_ids(ids).commit()


def _forgotten(table: Table, turn: Upkeep) -> Counter[str]:
    """Expire snapshots, drop old tokens, and delete what nothing needs; nothing if there is little of it."""
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

    until = min(turn.oldest_attempt or datetime.now(UTC), datetime.now(UTC) - KEPT) - SKEW
    expired = _expirable(table)
    tokens = {**_tokens(table), **_tokens_of(expired)}
    kept = {name: token for name, token in tokens.items() if int(token[0]) >= _milliseconds(until)}
    if max(len(expired), len(tokens) - len(kept)) < _WORTH:
        return Counter()
    turn.check()
    try:
        with table.transaction() as transaction:
            _expire(transaction, table, expired, kept, f"{turn.pipeline}.{turn.output}")
            forgotten = max(_milliseconds(until), int(table.properties.get(FORGOTTEN, "0")))
            transaction.set_properties({FORGOTTEN: str(forgotten)})
    except CommitFailedException as error:
        log.info("no snapshots expired, because the table changed", table=table.name(), error=str(error))
        return Counter()
    table.refresh()
    return Counter(snapshots_expired=len(expired), files_deleted=_swept(table, turn, until))


def _swept(table: Table, turn: Upkeep, until: datetime) -> int:
    """Delete files from before a time that no snapshot needs: the table's metadata, and what attempts have written."""
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

    if not isinstance(table.io, PyArrowFileIO):
        log.info("no files are deleted, because they can't be listed", table=table.name(), io=type(table.io).__name__)
        return 0
    needed = {_path(location) for location in _needed(table)}
    folder = _own_folder(table, turn)
    gone = 0
    for place in (folder, f"{table.location()}/metadata"):
        filesystem = table.io.fs_by_scheme(*PyArrowFileIO.parse_location(place)[:2])
        for path in _older(filesystem, _path(place), until):
            if path not in needed and turn.has_time():
                turn.check()
                filesystem.delete_file(path)
                gone += 1
    if folder.startswith("/"):
        _remove_empty(Path(folder), until.timestamp())
    return gone


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
        if info.type == pa_fs.FileType.File and info.mtime < limit:
            yield info.path


def _remove_empty(folder: Path, before: float) -> None:
    """Remove the folders of batches whose files were all deleted, unless they were changed after `before`."""
    for inner in (entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else ():
        _remove_empty(inner, before)
        if inner.stat().st_mtime <= before:
            try:
                inner.rmdir()
            except OSError:
                continue
