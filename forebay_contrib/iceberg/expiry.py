"""Expire snapshots of an Iceberg table that a sink made, and keep their tokens.

pyiceberg copies all snapshots' descriptions many times in each commit, so that a table with hundreds of them is slow to
write to. Therefore each commit of the sink that finds many expires most of them (`shorten`). Tokens cost nothing to
copy. This module deletes no file: who reads an expired snapshot finds them, until upkeep deletes them an hour later.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from forebay_contrib.iceberg.commits import TOKENS, is_made_by_forebay, tokens_in, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

_GC = "gc.enabled"
_AGE = "history.expire.max-snapshot-age-ms"
_LEAST = "history.expire.min-snapshots-to-keep"
#: How long tokens, and files that only older snapshots need, stay at least: for readers, and for processes that were
#: declared dead and go on.
KEPT = timedelta(hours=1)
# How many of the newest snapshots stay in any case, if the table does not say it.
_SNAPSHOTS = 10
# What a table that the sink made says if its owner has said nothing.
_DEFAULTS = {"write.metadata.delete-after-commit.enabled": "true", "commit.manifest-merge.enabled": "true"}


def shorten(transaction: Transaction, table: Table) -> None:
    """Expire snapshots in a transaction of the sink, if its table has many; their tokens stay."""
    if len(table.snapshots()) >= 2 * _SNAPSHOTS and may_expire(table):
        expired = expirable(table)
        if len(expired) >= _SNAPSHOTS:
            expire(transaction, table, expired, {**tokens_in(table), **tokens_of(expired)})


def may_expire(table: Table) -> bool:
    """Return whether the sink made the table, no branch or tag needs its snapshots, and its owner lets files go."""
    is_kept = table.properties.get(_GC, "true").lower() == "false"
    return is_made_by_forebay(table) and len(table.refs()) == 1 and not is_kept


def expirable(table: Table) -> list[Snapshot]:
    """Return all but the newest snapshots, oldest first; the table's properties may keep more."""
    # In the format's first version their sequence is that of their times.
    snapshots = sorted(table.snapshots(), key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
    age = timedelta(milliseconds=int(table.properties.get(_AGE, "0")))
    until = milliseconds(datetime.now(UTC) - age)
    least = max(1, int(table.properties.get(_LEAST, _SNAPSHOTS)))
    # None that is newer than one that stays, whose time another host's clock has set: a token is older than snapshots.
    return [*takewhile(lambda snapshot: snapshot.timestamp_ms <= until, snapshots[:-least])]


def expire(
    transaction: Transaction, table: Table, snapshots: Iterable[Snapshot], tokens: Mapping[str, list[str]]
) -> None:
    """Expire snapshots in a transaction that leaves these tokens."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots  # noqa: PLC0415

    properties = {**_DEFAULTS, **table.properties, TOKENS: json.dumps(tokens, separators=(",", ":"))}
    transaction.set_properties(
        {name: value for name, value in properties.items() if table.properties.get(name) != value}
    )
    if ids := [snapshot.snapshot_id for snapshot in snapshots]:
        ExpireSnapshots(transaction).by_ids(ids).commit()


def milliseconds(time: datetime) -> int:
    """Return a time as a snapshot has it, rounded down."""
    return math.floor(time.timestamp() * 1000)
