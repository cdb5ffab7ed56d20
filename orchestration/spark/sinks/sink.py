"""What a sink is: it writes an attempt where nobody looks, and publishes the attempt that was committed.

The commit itself is not a sink's: it is a row in `output_commits` (design §4). A sink's files are a projection of
that row, so `publish` may be repeated at any time and by anyone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Written:
    """An attempt's result: where it lies, and how many rows it has."""

    location: str
    rows: int


class Sink(ABC):
    """Keeps an output's result, once per batch time."""

    @abstractmethod
    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes of it."""

    @abstractmethod
    def write(self, result: DataFrame, *, batch_time: datetime, attempt: int) -> Written:
        """Write an attempt's result to a path of its own, durable on return; nobody sees it yet."""

    @abstractmethod
    def publish(self, location: str, *, batch_time: datetime) -> None:
        """Show the committed result at `location` to readers, in place of what was there. Idempotent."""
