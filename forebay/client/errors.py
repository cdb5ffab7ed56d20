"""Define the errors of the client. Each says what happened, to which spool or channel, and how to fix it."""

from __future__ import annotations


class SendError(Exception):
    """Sending has failed: the message says how to fix it."""


class RecordRefusedError(SendError, ValueError):
    """Not a record that can be sent: correct it. It is not in the spool."""


class SpoolFullError(SendError, TimeoutError):
    """No room is left in the spool: wait until the receiver has taken records, or raise `spool_bytes`."""


class SpoolLockedError(SendError):
    """Another process has the spool open: give each process a spool and a channel of its own."""


class SpoolDamagedError(SendError):
    """Some file of the spool is not as it was written: restore it, or move the spool away."""


class ChannelMismatchError(SendError):
    """Spool and channel do not fit together: see `on_mismatch`, or use another channel."""


class RequestRefusedError(SendError):
    """Requests are refused whatever they hold: correct the URL or the source."""


class InputOpenError(SendError):
    """The last input was not read to its end: continue it, or begin another one."""


class FlushTimeoutError(SendError, TimeoutError):
    """Not all records are registered yet: they stay in the spool, and are sent again."""


class SenderClosedError(SendError):
    """Nothing is sent after `close`: open another sender."""
