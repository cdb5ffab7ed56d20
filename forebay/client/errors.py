"""Define the errors of the client. Each says what happened, to which spool or channel, and how to fix it."""

from __future__ import annotations


class SendError(Exception):
    """The sender can't go on: read the message, which says how to fix it."""


class RecordRefusedError(SendError, ValueError):
    """A record can't be sent as it is: correct it. It is not in the spool."""


class SpoolFullError(SendError, TimeoutError):
    """The spool is full: wait until the receiver has taken records, or give `max_spool_bytes` more."""


class SpoolLockedError(SendError):
    """Another process has the spool open: give each process a spool and a channel of its own."""


class SpoolDamagedError(SendError):
    """A file of the spool is not as it was written: restore it, or move the spool away."""


class ChannelMismatchError(SendError):
    """Spool and channel do not fit together: see `on_mismatch`, or use another channel."""


class RequestRefusedError(SendError):
    """The receiver refuses all requests of this sender: correct its URL, token or source."""


class FlushTimeoutError(SendError, TimeoutError):
    """Not all records are registered yet: they stay in the spool, and are sent again."""


class SenderClosedError(SendError):
    """The sender is closed: open another one."""
