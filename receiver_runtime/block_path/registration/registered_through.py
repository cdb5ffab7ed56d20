"""Hold how far the blocks of one epoch are registered: a number that one object raises and several read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RegisteredThrough:
    """Hold the newest sequence that the driver log is known to have. The registrar raises it; any thread reads it."""

    sequence: int = 0
