"""Hold what outlives the connections of one receiver of JetStream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_contrib.nats.consumer_gaps import Reached


@dataclass(slots=True)
class KnownConsumer:
    """Hold what the consumer had reached when it was last seen; None: the Forebay stream has not read it yet."""

    reached: Reached | None = None
