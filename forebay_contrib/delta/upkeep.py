"""Look after a Delta table: merge small files, and delete what nothing needs any more.

Owns the properties that bound a table's log. A table's tokens, its application ids, are what makes a late attempt
harmless. They expire by their age. So if there is none of a batch, an attempt that began before the table's memory is
refused, and one at an older batch replaces what may be there (`has_forgotten`).

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

from orchestration.declarations.sink import AttemptOutdatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestration.declarations.sink import Figures, OutputAttempt, Upkeep

_TOKENS = "delta.setTransactionRetentionDuration"
_FILES = "delta.deletedFileRetentionDuration"
_LOG = "delta.logRetentionDuration"
#: What a table that the sink made says if its owner has said nothing: how long it keeps tokens, replaced files and its
#: log, and after how many commits a checkpoint is made. Long enough for readers and for attempts. Each checkpoint has
#: all tokens, and stays as long as the log. Opening a table reads the commits since its last checkpoint.
_DEFAULTS = {
    _TOKENS: "interval 1 day",
    _FILES: "interval 1 day",
    _LOG: "interval 6 hours",
    "delta.checkpointInterval": "20",
}
# What Delta says of a table without the property.
_DEFAULT_FILES = timedelta(days=7)
# How many files below a size, in bytes, are worth one commit: files go from the first size to the second, and a row is
# written again twice.
_TIERS = ((8 << 20, 8), (128 << 20, 16))
# How far clocks of hosts and of the driver log may differ.
_SKEW = timedelta(hours=1)
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)

log = structlog.get_logger(__name__)


def look_after(table: Any, turn: Upkeep, *, is_own: bool) -> Figures:  # noqa: ANN401  a DeltaTable
    """Give a table its turn. Of a table that somebody else made (not `is_own`), only small files are merged."""
    done: Counter[str] = Counter()
    if is_own and (missing := _missing(table.metadata().configuration)):
        turn.check()
        table.alter.set_table_properties(missing)
    for size, least in _TIERS:
        if turn.has_time() and _most_below(table, size) >= least:
            turn.check()
            done += _merged(table, size)
    if is_own and turn.has_time():
        done += _deleted(table, turn)
    return {name: number for name, number in done.items() if number}


def has_forgotten(table: Any, attempt: OutputAttempt) -> bool:  # noqa: ANN401
    """Return whether the token of a commit of this batch may have expired: of one by another driver log, too.

    Called with a version of the table that has no token of the batch, before the commit on top of it. Raises
    AttemptOutdatedError if one of a newer attempt than this may have expired.
    """
    kept = interval(table.metadata().configuration.get(_TOKENS))
    if kept is None:
        return False
    until = datetime.now(UTC) - kept + min(_SKEW, kept / 4)
    if attempt.began_at is not None and attempt.began_at < until:
        raise AttemptOutdatedError(
            f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
            f"{attempt.began_at.isoformat()}, and its Delta table keeps for {kept} which attempts have committed "
            f"({_TOKENS}): a newer one may have, so it changed nothing"
        )
    return attempt.batch_time < until


def interval(text: str | None) -> timedelta | None:
    """Return the length of an interval as Delta writes it in a property; None if it is none, or has another form."""
    found = None if text is None else _INTERVAL.fullmatch(text.strip())
    return None if found is None else timedelta(**{f"{found[2].lower()}s": int(found[1])})


def _missing(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the owner has not set."""
    return {name: value for name, value in _DEFAULTS.items() if name not in configuration}


def _most_below(table: Any, size: int) -> int:  # noqa: ANN401
    """Return how many files are smaller, in the partition that has most of them."""
    import pyarrow as pa  # noqa: PLC0415  declaring a sink needs no Arrow

    names = [f"partition.{name}" for name in table.metadata().partition_columns]
    files = pa.table(table.get_add_actions(flatten=True)).select(["size_bytes", *names]).to_pylist()
    number = Counter(tuple(file[name] for name in names) for file in files if file["size_bytes"] < size)
    return max(number.values(), default=0)


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
    files, tokens = interval(configuration.get(_FILES)), interval(configuration.get(_TOKENS))
    kept = max(
        _DEFAULT_FILES if files is None else files,
        # A late attempt's commit may name files that it wrote long ago, as long as `has_forgotten` lets it commit.
        timedelta() if tokens is None else tokens,
        timedelta() if turn.oldest_attempt is None else _age(turn.oldest_attempt),
    )
    turn.check()
    gone = table.vacuum(_hours(kept), dry_run=False, enforce_retention_duration=False, full=True)
    table.cleanup_metadata()
    root = Path(table.table_uri.removeprefix("file://"))
    if root.is_dir():
        _remove_empty(root / f"{turn.pipeline}.{turn.output}", time.time() - kept.total_seconds())
    return Counter(files_deleted=len(gone))


def _hours(kept: timedelta) -> int:
    return math.ceil(kept / timedelta(hours=1))


def _age(began_at: datetime) -> timedelta:
    """Return for how long the files of an attempt that still runs must stay."""
    return datetime.now(UTC) - began_at + _SKEW


def _remove_empty(folder: Path, before: float) -> None:
    """Remove the folders of batches whose files were all deleted, unless they were changed after `before`."""
    for inner in (entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else ():
        _remove_empty(inner, before)
        if inner.stat().st_mtime <= before:
            try:
                inner.rmdir()
            except OSError:
                continue
