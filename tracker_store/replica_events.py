"""What events say of the block store's replicas: by these words they are counted.

They are events of kind ERROR, which the driver log has had from the beginning.
"""

from __future__ import annotations

_REPLICA = "the block store's replica"

#: What the messages below have in common, for LIKE.
REPLICA_PROBLEMS = f"{_REPLICA} % is %"


def replica_lost(name: str) -> str:
    """A write noticed: it has nothing of what is written from now on."""
    return f"{_REPLICA} {name} is lost"


def replica_damaged(name: str) -> str:
    """A read noticed: it lacks a block, or has other bytes."""
    return f"{_REPLICA} {name} is damaged or lags"


def replica_back(name: str) -> str:
    """It takes part again. No problem, and so of another kind."""
    return f"{_REPLICA} {name} is back"
