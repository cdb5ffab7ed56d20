"""Find which attempts an Iceberg table has, and make the one commit of an attempt.

Each snapshot of this sink carries the application id of (pipeline, output, batch time), the attempt and its run: it is
a token, which makes a late attempt harmless. The token of a snapshot that has expired stays in the table's properties
(`tokens_in`) until upkeep drops it. This module owns the names of these properties. It never decides which rows a
commit has, nor which snapshots expire.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import AttemptOutdatedError, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from forebay_contrib.iceberg.replacement import Replacement
    from orchestration.declarations.sink import OutputAttempt

ATTEMPT = "forebay.attempt"
RUN = "forebay.run"
_APPLICATION = "forebay.application"
_ROWS = "forebay.rows"
_REFUSED = "forebay.refused"
_LOCATION = "forebay.location"
#: Properties of the table: who made it, and the newest batch that an output with mode="overwrite" has committed.
MADE_BY = "forebay.made_by"
_NEWEST = "forebay.newest_batch"
#: Of expired snapshots, as JSON by application id: their time in milliseconds, and what they said (`_TOKEN`).
TOKENS = "forebay.tokens"
#: The time, in milliseconds, before which all snapshots were made whose tokens were dropped.
FORGOTTEN = "forebay.forgotten_until_ms"
_TOKEN = (ATTEMPT, RUN, _ROWS, _REFUSED, _LOCATION)
_OF_A_BATCH = re.compile(r"forebay/.*/(\d+)/[^/]*/([^/]*)", re.DOTALL)


def newest_commit(table: Table | None, attempt: OutputAttempt) -> dict[str, str] | None:
    """Return the properties of the newest snapshot of an attempt at this batch, also of an expired one, or None."""
    if table is None:
        return None
    # Of a table of the format's version 1, each snapshot has the sequence number 0.
    for snapshot in sorted(table.snapshots(), key=lambda one: (one.sequence_number, one.timestamp_ms), reverse=True):
        properties = _properties(snapshot)
        if properties.get(_APPLICATION) == attempt.application_id:
            return properties
    found = tokens_in(table).get(attempt.application_id)
    return None if found is None else dict(zip(_TOKEN, found[1:], strict=True))


def has_forgotten(table: Table, attempt: OutputAttempt) -> bool:
    """Return whether the token of a commit of this batch may have been dropped: of one by another driver log, too.

    Called before a commit on top of the table. Raises AttemptOutdatedError if a token of a newer attempt than this may
    have been dropped, and files that this one wrote may be deleted.
    """
    until = int(table.properties.get(FORGOTTEN, "0"))
    if attempt.began_at is not None and attempt.began_at.timestamp() * 1000 < until:
        raise AttemptOutdatedError(
            f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
            f"{attempt.began_at.isoformat()}, and its Iceberg table has forgotten since which attempts have "
            "committed: a newer one may have, so it changed nothing"
        )
    return attempt.batch_time.timestamp() * 1000 < until


def tokens_in(table: Table) -> dict[str, list[str]]:
    """Return the tokens of expired snapshots that the table keeps."""
    found: dict[str, list[str]] = json.loads(table.properties.get(TOKENS, "{}"))
    return found


def tokens_of(snapshots: Iterable[Snapshot]) -> dict[str, list[str]]:
    """Return the tokens of snapshots, given oldest first."""
    return {
        properties[_APPLICATION]: [str(snapshot.timestamp_ms), *(properties[name] for name in _TOKEN)]
        for snapshot in snapshots
        for properties in [_properties(snapshot)]
        if _APPLICATION in properties
    }


def written_by(properties: Mapping[str, str]) -> Written:
    """Return what a commit says of its attempt."""
    return Written(properties[_LOCATION], int(properties[_ROWS]), int(properties[_REFUSED]))


def is_made_by_forebay(table: Table) -> bool:
    """Return whether a sink of this kind made the table. Those of version 0.1.0 don't say so, and count as others'."""
    return MADE_BY in table.properties


def has_newer_batch(table: Table, attempt: OutputAttempt) -> bool:
    """Return whether the table has a newer batch than this one of its output. Snapshots may have expired."""
    found = [_OF_A_BATCH.fullmatch(name) for name in {**tokens_in(table), **tokens_of(table.snapshots())}]
    batches = [(int(match[1]), datetime.fromisoformat(match[2])) for match in found if match]
    if _NEWEST in table.properties:
        pipeline_id, _, time = table.properties[_NEWEST].partition(" ")
        batches.append((int(pipeline_id), datetime.fromisoformat(time)))
    return max(batches, default=(-1, attempt.batch_time)) > (attempt.pipeline_id, attempt.batch_time)


def without_retries(table: Table) -> Transaction:
    """Begin a transaction that fails if another commit comes first.

    By default pyiceberg retries it on top of the other one, and so could put a late attempt's commit on top of a newer
    attempt's.
    """
    table.metadata.properties["commit.retry.num-retries"] = "0"
    catalog: Any = _AskedAgain(table.catalog)
    table.catalog = catalog
    return table.transaction()


@dataclass(frozen=True, slots=True)
class _AskedAgain:
    """Ask a catalog again whether a commit that failed is there.

    Clients and proxies repeat a request whose answer was lost, and then it conflicts with itself. pyiceberg would
    delete what the commit names.
    """

    catalog: Any

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as the catalog has it
        return getattr(self.catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:  # noqa: ANN401  as pyiceberg has it
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException  # noqa: PLC0415
        from pyiceberg.table import CommitTableResponse  # noqa: PLC0415
        from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate  # noqa: PLC0415

        try:
            return self.catalog.commit_table(table, requirements, updates)
        except (CommitFailedException, CommitStateUnknownException, ValueError) as error:
            now = self.catalog.load_table(table.name())
            for update in updates:
                if isinstance(update, AddSnapshotUpdate) and now.snapshot_by_id(update.snapshot.snapshot_id):
                    return CommitTableResponse(metadata=now.metadata, metadata_location=now.metadata_location)
            expired = [
                one for update in updates if isinstance(update, RemoveSnapshotsUpdate) for one in update.snapshot_ids
            ]
            if isinstance(error, ValueError) and not all(map(now.snapshot_by_id, expired)):
                # Upkeep has expired them meanwhile.
                raise CommitFailedException(f"snapshots of {table.name()} have expired meanwhile") from error
            raise


def remember_newest(transaction: Transaction, attempt: OutputAttempt) -> None:
    """Have the table's properties say that this batch is the newest one."""
    transaction.set_properties({_NEWEST: f"{attempt.pipeline_id} {attempt.batch_time.isoformat()}"})


def add_snapshot(transaction: Transaction, replacement: Replacement, attempt: OutputAttempt, written: Written) -> None:
    """Add the one snapshot of an attempt to a transaction, which has it on top of the snapshot that was read."""
    properties = {
        _APPLICATION: attempt.application_id,
        ATTEMPT: str(attempt.attempt),
        RUN: attempt.run_id,
        _ROWS: str(written.rows),
        _REFUSED: str(written.refused),
        _LOCATION: written.location,
    }
    update = transaction.update_snapshot(snapshot_properties=properties)
    # It merges small manifests only if the table's properties say so.
    with update.overwrite() if replacement.removed else update.merge_append() as files:
        for file in replacement.removed:
            files.delete_data_file(file)
        for file in replacement.added:
            files.append_data_file(file)


def _properties(snapshot: Any) -> dict[str, str]:  # noqa: ANN401  a pyiceberg Snapshot
    found: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return found
