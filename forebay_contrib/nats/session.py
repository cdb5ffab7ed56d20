"""Hold what outlives the connections of one receiver of JetStream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(slots=True)
class KnownConsumer:
    """Hold the last known state of the consumer, in case it is deleted. Outlives readers.

    ``made`` is when the stream was created, None before the first look. All messages up to ``acknowledged`` were
    acknowledged.
    """

    made: datetime | None = None
    acknowledged: int = 0
