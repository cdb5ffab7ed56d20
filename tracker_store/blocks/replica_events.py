"""Define the messages of events about the block store's replicas; replica problems are counted by these words.

They are events of kind ERROR, which every version of the driver log has.
"""

from __future__ import annotations

_REPLICA = "the block store's replica"

#: The LIKE pattern that matches the messages of problems below.
REPLICA_PROBLEMS = f"{_REPLICA} % is %"


def replica_lost(name: str) -> str:
    """Return the message for a replica that failed a write: it gets nothing of what is written from now on."""
    return f"{_REPLICA} {name} is lost"


def replica_damaged(name: str) -> str:
    """Return the message for a replica that a read found to lack a block, or to have other bytes."""
    return f"{_REPLICA} {name} is damaged or lags"


def replica_back(name: str) -> str:
    """Return the message for a replica that takes part again; this is no problem, and so has another kind."""
    return f"{_REPLICA} {name} is back"
