"""Define the names below a ParquetSink's path, equal in a directory and on an object store. Accesses neither."""

from __future__ import annotations

import re
import secrets
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

ATTEMPTS = "_attempts"
#: Columns that readers make of the folders of a batch, in place of the result's of these names.
FOLDERS = frozenset({"date", "hour", "batch_time"})
#: The file in an attempt's directory that lists the names of its valid files.
FILES = "_files.json"
_ATTEMPT = re.compile(r"attempt=(\d+)(-[0-9a-f]+)?")


def attempt_directory(batch_time: datetime, attempt: int) -> str:
    """Return a new directory for one process's attempt: another process with the same attempt writes elsewhere."""
    return f"{ATTEMPTS}/{batch_stamp(batch_time)}/attempt={attempt}-{secrets.token_hex(4)}"


def attempt_number(name: str) -> int | None:
    """Return the attempt number in a directory's name; None if it is not an attempt's directory."""
    found = _ATTEMPT.fullmatch(name)
    return None if found is None else int(found[1])


def batch_directory(batch_time: datetime, zone: tzinfo = UTC) -> str:
    """Return `date=…/hour=…/batch_time=…`, without colons: date and hour in the zone, the batch time in UTC.

    It has microseconds only if they are not 0.
    """
    return f"{batch_time.astimezone(zone):date=%Y-%m-%d/hour=%H}/batch_time={batch_stamp(batch_time)}"


def batch_stamp(batch_time: datetime) -> str:
    """Return the batch time in UTC in the form used in file names."""
    time = batch_time.astimezone(UTC)
    return time.strftime("%Y%m%dT%H%M%S") + (f".{time.microsecond:06d}" if time.microsecond else "") + "Z"
