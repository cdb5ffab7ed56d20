"""For your programs: send records to an HTTP source, each registered once; see ``docs/how-to/sending.md``.

Needs the standard library alone. Loads no Dagster, no Spark, no Postgres client and no Arrow.
"""

from __future__ import annotations

from forebay.client.errors import (
    ChannelMismatchError,
    FlushTimeoutError,
    InputOpenError,
    RecordRefusedError,
    RequestRefusedError,
    SenderClosedError,
    SendError,
    SpoolDamagedError,
    SpoolFullError,
    SpoolLockedError,
)
from forebay.client.sender import Sender, SenderLimits, SenderStatus

__all__ = [
    "ChannelMismatchError",
    "FlushTimeoutError",
    "InputOpenError",
    "RecordRefusedError",
    "RequestRefusedError",
    "SendError",
    "Sender",
    "SenderClosedError",
    "SenderLimits",
    "SenderStatus",
    "SpoolDamagedError",
    "SpoolFullError",
    "SpoolLockedError",
]
