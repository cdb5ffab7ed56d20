"""Keep the refused rows of a batch as a file of JSON lines, beside what its sink has written: PATH/_refused_rows/TIME.

An attempt stages the file in its own directory. Publishing shows it under the batch's name, in place of an earlier
attempt's, or takes that one away. Readers of Parquet, Delta and Iceberg skip names that begin with `_`. This module
never decides which attempt counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.sinks.parquet_names import batch_stamp

if TYPE_CHECKING:
    from datetime import datetime

    from orchestration.declarations.sink import Check
    from orchestration.sinks.file_stores import FileStore

# The file's name in an attempt's folder.
_STAGED = "_refused_rows.jsonl"
_FOLDER = "_refused_rows"


def stage(store: FileStore, folder: str, lines: bytes) -> None:
    """Write an attempt's refused rows to its folder, durably; nothing if there are none."""
    if lines:
        store.put(f"{folder}/{_STAGED}", lines)


def show(store: FileStore, folder: str, batch_time: datetime, check: Check) -> None:
    """Show the rows that the committed attempt in `folder` refused, or that it refused none. Idempotent."""
    staged, shown = f"{folder}/{_STAGED}", f"{_FOLDER}/{batch_stamp(batch_time)}.jsonl"
    if store.exists(staged):
        store.show(staged, shown, check)
    elif store.exists(shown):
        check()
        store.remove(shown)
