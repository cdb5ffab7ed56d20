"""What outlives the connections of one receiver of JetStream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(slots=True)
class KnownConsumer:
    """What was seen of the consumer last: for when it is gone. Outlives readers.

    ``made`` is the stream's time of making, None before the first look; all up to ``acknowledged`` was.
    """

    made: datetime | None = None
    acknowledged: int = 0
