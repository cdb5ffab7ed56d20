"""Define what a reader of records does: it turns a column of records into typed columns, in bulk.

A reader knows neither a source nor a block store. A record that does not fit is a fault of its own: it must never
change what becomes of the records beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.block_store.frames.frame import DeadLetterReason
    from receiver_runtime.sources.records.declared import Records


@dataclass(frozen=True, slots=True)
class Fault:
    """Say why a record does not fit. ``row`` is its place among those that were read; ``why`` is for people."""

    row: int
    reason: DeadLetterReason
    why: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Hold the records that fit, in order, as typed columns, and the faults of the others, by their rows."""

    batch: pa.RecordBatch
    faults: Sequence[Fault] = field(default=())


class RecordReader(ABC):
    """Read records of one declaration. Safe from any thread. A subclass takes the declaration, as this does."""

    def __init__(self, records: Records) -> None:
        self.records = records

    @abstractmethod
    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records, given as bytes; none is null.

        Raises RowsWaitError, of a reader that asks another system about records: all of them can be read later.
        """

    def is_ready(self, values: pa.BinaryArray) -> bool:  # noqa: ARG002  most are always
        """Return whether ``read`` asks no other system about these records."""
        return True

    def grow(self, known: Callable[[], Mapping[str, str]], register: Callable[[Columns], None]) -> None:
        """Take what a reader of records that bring columns needs. Called once, before the first record is read.

        Args:
            known: returns the types of the columns that the stream has had, by their names in lower case. Another
                receiver may add some.
            register: makes these columns, with those that are new, the stream's. The reader calls it before it returns
                a record with a new column. Raises ValueError, which says why the stream can't have them.
        """
        raise NotImplementedError
