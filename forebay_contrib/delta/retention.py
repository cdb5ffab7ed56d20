"""Say for how long a Delta table keeps tokens, replaced files and its log.

A table's tokens, its application ids, are what makes a late attempt harmless. They expire by their age. So if there is
none of a batch, an attempt that began before the table's memory is refused, and one at an older batch replaces what may
be there (`has_forgotten`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import AttemptOutdatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestration.declarations.sink import OutputAttempt

#: For how long tokens and replaced files stay: names of properties.
TOKENS = "delta.setTransactionRetentionDuration"
FILES = "delta.deletedFileRetentionDuration"
_LOG = "delta.logRetentionDuration"
#: What a table that the sink made says if its owner has said nothing: how long it keeps tokens, replaced files and its
#: log, and after how many commits a checkpoint is made. Long enough for readers and for attempts. Each checkpoint has
#: all tokens, and stays as long as the log. Opening a table reads the commits since its last checkpoint.
DEFAULTS = {
    TOKENS: "interval 1 day",
    FILES: "interval 1 day",
    _LOG: "interval 1 hour",
    "delta.checkpointInterval": "20",
}
# How far clocks of hosts and of the driver log may differ.
SKEW = timedelta(hours=1)
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)


def has_forgotten(table: Any, attempt: OutputAttempt) -> bool:  # noqa: ANN401
    """Return whether the token of a commit of this batch may have expired: of one by another driver log, too.

    Called with a version of the table that has no token of the batch, before the commit on top of it. Raises
    AttemptOutdatedError if one of a newer attempt than this may have expired.
    """
    kept = interval(table.metadata().configuration.get(TOKENS))
    if kept is None:
        return False
    until = datetime.now(UTC) - kept + min(SKEW, kept / 4)
    if attempt.began_at is not None and attempt.began_at < until:
        raise AttemptOutdatedError(
            f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
            f"{attempt.began_at.isoformat()}, and its Delta table keeps for {kept} which attempts have committed "
            f"({TOKENS}): a newer one may have, so it changed nothing"
        )
    return attempt.batch_time < until


def interval(text: str | None) -> timedelta | None:
    """Return the length of an interval as Delta writes it in a property; None if it is none, or has another form."""
    found = None if text is None else _INTERVAL.fullmatch(text.strip())
    return None if found is None else timedelta(**{f"{found[2].lower()}s": int(found[1])})


def missing_properties(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the owner has not set."""
    return {name: value for name, value in DEFAULTS.items() if name not in configuration}
