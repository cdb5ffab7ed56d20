"""The names below a ParquetSink's path, the same in a directory and on an object store. Touches neither."""

from __future__ import annotations

import re
import secrets
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

ATTEMPTS = "_attempts"
#: In an attempt's directory: the names of its files that count.
FILES = "_files.json"
_ATTEMPT = re.compile(r"attempt=(\d+)(-[0-9a-f]+)?")


def attempt_directory(batch_time: datetime, attempt: int) -> str:
    """Where one process writes one attempt, for ever: another that was given the same attempt writes elsewhere."""
    return f"{ATTEMPTS}/{batch_stamp(batch_time)}/attempt={attempt}-{secrets.token_hex(4)}"


def attempt_number(name: str) -> int | None:
    """The attempt of a directory of that name, by whichever process; None for what is none."""
    found = _ATTEMPT.fullmatch(name)
    return None if found is None else int(found[1])


def batch_directory(batch_time: datetime) -> str:
    """`date=…/hour=…/batch_time=…` in UTC, without colons; microseconds only where there are any."""
    return f"{batch_time.astimezone(UTC):date=%Y-%m-%d/hour=%H}/batch_time={batch_stamp(batch_time)}"


def batch_stamp(batch_time: datetime) -> str:
    """The batch time in UTC as a file's name has it."""
    time = batch_time.astimezone(UTC)
    return time.strftime("%Y%m%dT%H%M%S") + (f".{time.microsecond:06d}" if time.microsecond else "") + "Z"
