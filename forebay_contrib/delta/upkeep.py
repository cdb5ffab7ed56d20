"""Look after a Delta table: merge small files, and delete what nothing needs any more.

No turn reads a row: deltalake rewrites files in Rust. Each of its commits is made on the version that it has read, so
that a replay in between makes that commit fail, and never the replay.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from forebay_contrib.delta.commits import rows_alone
from forebay_contrib.delta.retention import FILES, SKEW, TOKENS, interval, missing_properties
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.directories import remove_empty

if TYPE_CHECKING:
    from orchestration.declarations.sink import Figures, Upkeep

# What Delta says of a table without the property.
_DEFAULT_FILES = timedelta(days=7)
# How many files below a size, in bytes, are worth one commit: files go from the first size to the second, and a row is
# written again twice.
_TIERS = ((8 << 20, 8), (128 << 20, 16))
_ALONE = f"min.{BATCH_TIME}"
# Files of the sink's outputs, also by a name of before, and those that deltalake writes.
_WRITTEN = (
    r"[^/]+\.[^/]+/\d+-\d{8}T\d{6}[^/]*/attempt\d+-[0-9a-f]{8}/.*"
    r"|(?:[^/]+=[^/]*/)*part-\d{5}-[0-9a-f-]{36}-c\d{3}\.[^/]*"
)

log = structlog.get_logger(__name__)


def look_after(table: Any, turn: Upkeep, *, is_own: bool) -> Figures:  # noqa: ANN401  a DeltaTable
    """Give a table its turn. Of a table that somebody else made (not `is_own`), only small files are merged."""
    done: Counter[str] = Counter()
    if is_own and (missing := missing_properties(table.metadata().configuration)):
        turn.check()
        table.alter.set_table_properties(missing)
    if is_own:
        _repair(table, turn)
    for size, least in _TIERS:
        if turn.has_time() and _most_below(table, size) >= least:
            turn.check()
            done += _merged(table, size)
    if is_own and turn.has_time():
        done += _deleted(table, turn)
    return {name: number for name, number in done.items() if number}


def _most_below(table: Any, size: int) -> int:  # noqa: ANN401
    """Return how many files are smaller, in the partition that has most of them."""
    import pyarrow as pa  # noqa: PLC0415  declaring a sink needs no Arrow

    names = [f"partition.{name}" for name in table.metadata().partition_columns]
    files = pa.table(table.get_add_actions(flatten=True)).select(["size_bytes", *names]).to_pylist()
    number = Counter(tuple(file[name] for name in names) for file in files if file["size_bytes"] < size)
    return max(number.values(), default=0)


def _repair(table: Any, turn: Upkeep) -> None:  # noqa: ANN401
    """Leave files without the bounds that version 0.1.0 gave them: of the batch time alone (``rows_alone``)."""
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import CommitProperties  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415
    from deltalake.transaction import AddAction  # noqa: PLC0415

    # That version wrote no partitions.
    if table.metadata().partition_columns:
        return
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    again = [
        AddAction(
            file["path"],
            file["size_bytes"],
            {},
            file["modification_time"],
            data_change=False,
            stats=rows_alone(file["num_records"]),
        )
        for file in files
        if {name for name, value in file.items() if name.startswith("min.") and value is not None} == {_ALONE}
    ]
    if not again:
        return
    turn.check()
    once = CommitProperties(max_commit_retries=0)
    try:
        table.create_write_transaction(again, mode="append", schema=table.schema(), commit_properties=once)
    except DeltaError as error:
        log.info("bounds of files were not repaired, because the table changed", error=str(error))
    table.update_incremental()


def _merged(table: Any, size: int) -> Counter[str]:  # noqa: ANN401
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        found = table.optimize.compact(target_size=size, max_concurrent_tasks=1)
    except DeltaError as error:
        # A replay, or another writer, has replaced a file meanwhile: the next turn merges what is there then.
        log.info("small files were not merged, because the table changed", table=table.table_uri, error=str(error))
        found = {"numFilesRemoved": 0, "numFilesAdded": 0}
    table.update_incremental()
    return Counter(files_merged=found["numFilesRemoved"], files_made=found["numFilesAdded"])


def _deleted(table: Any, turn: Upkeep) -> Counter[str]:  # noqa: ANN401
    """Delete files that are in no version any more that is kept, those of dead attempts, and the log of before."""
    configuration = table.metadata().configuration
    files, tokens = interval(configuration.get(FILES)), interval(configuration.get(TOKENS))
    kept = max(
        _DEFAULT_FILES if files is None else files,
        # A late attempt's commit may name files that it wrote long ago, as long as `has_forgotten` lets it commit.
        timedelta() if tokens is None else tokens,
        timedelta() if turn.oldest_attempt is None else _age(turn.oldest_attempt),
    )
    found = table.vacuum(_hours(kept), dry_run=True, enforce_retention_duration=False, full=True)
    ours = re.compile(rf"{re.escape(f'{turn.pipeline}.{turn.output}')}/.*|{_WRITTEN}", re.DOTALL)
    # A full vacuum deletes whatever the log does not name.
    if others := [name for name in found if not ours.fullmatch(name)]:
        log.warning(
            "files of dead attempts stay, because others lie there too", table=table.table_uri, files=others[:5]
        )
    turn.check()
    gone = table.vacuum(_hours(kept), dry_run=False, enforce_retention_duration=False, full=not others)
    table.cleanup_metadata()
    root = Path(table.table_uri.removeprefix("file://"))
    if root.is_dir():
        remove_empty(root / f"{turn.pipeline}.{turn.output}", time.time() - kept.total_seconds())
    return Counter(files_deleted=len(gone))


def _hours(kept: timedelta) -> int:
    return math.ceil(kept / timedelta(hours=1))


def _age(began_at: datetime) -> timedelta:
    """Return for how long the files of an attempt that still runs must stay."""
    return datetime.now(UTC) - began_at + SKEW
