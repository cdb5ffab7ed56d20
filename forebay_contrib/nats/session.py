"""Hold what outlives the connections of one receiver of JetStream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KnownConsumer:
    """Hold the last known state of the consumer, in case it is deleted. Outlives readers.

    ``made`` is when the stream was created, in microseconds since 1970; None: the Forebay stream has not read it yet.
    All messages up to ``acknowledged`` were acknowledged. The driver log remembers both (``DurableConsumer``).
    """

    made: int | None = None
    acknowledged: int = 0
