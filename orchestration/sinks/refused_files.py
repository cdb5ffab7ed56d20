"""Keep the refused rows of a batch as a file of JSON lines, beside what its sink has written: PATH/_refused_rows/TIME.

An attempt stages the file in its own directory. Publishing shows it under the batch's name, in place of an earlier
attempt's, or takes that one away. Readers of Parquet, Delta and Iceberg skip names that begin with `_`. This module
never decides which attempt counts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestration.sinks.directories import hidden_beside, sync
from orchestration.sinks.parquet_names import batch_stamp

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from orchestration.declarations.sink import Check

#: The file's name in an attempt's directory.
STAGED = "_refused_rows.jsonl"
_FOLDER = "_refused_rows"


def shown_name(batch_time: datetime) -> str:
    """Return the name of a batch's file below the sink's path."""
    return f"{_FOLDER}/{batch_stamp(batch_time)}.jsonl"


def stage(directory: Path, lines: bytes) -> None:
    """Write an attempt's refused rows to its directory, durably; nothing if there are none."""
    if not lines:
        return
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / STAGED
    file.write_bytes(lines)
    sync(file)
    sync(directory)


def show(directory: Path, path: Path, batch_time: datetime, check: Check) -> None:
    """Show the rows that the committed attempt in `directory` refused, or that it refused none. Idempotent."""
    staged, shown = directory / STAGED, path / shown_name(batch_time)
    if staged.exists():
        shown.parent.mkdir(parents=True, exist_ok=True)
        linked = hidden_beside(shown)
        os.link(staged, linked)
        check()
        linked.replace(shown)
    elif shown.exists():
        check()
        shown.unlink(missing_ok=True)
    else:
        return
    sync(shown.parent)
