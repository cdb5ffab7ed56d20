"""Define a block on its way to the write-ahead log, and the buffer that it is cut from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from receiver_runtime.block_path.records import to_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import EncodedBlock


@dataclass(frozen=True, slots=True)
class Block:
    """Hold records on their way to the write-ahead log; never empty.

    ``number`` counts the generator's blocks from 1; ``nbytes`` is the size of the Arrow data. ``seconds`` is the time
    since the block before it was cut, and ``waited`` the part of it in which it could have been cut but the timer's
    role was busy with another block. If the generator encodes, ``encoded`` is what will be stored, and ``batches`` is
    empty, so that nothing is held twice.
    """

    number: int
    batches: Sequence[pa.RecordBatch]
    records: int
    nbytes: int
    encoded: EncodedBlock | None = None
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def held_bytes(self) -> int:
        """Return how many bytes the block holds in memory."""
        return self.nbytes if self.encoded is None else self.encoded.nbytes


@dataclass(slots=True)
class BlockBuffer:
    """Hold the records that were added since the last cut. The generator's lock guards it."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    singles: list[object] = field(default_factory=list)
    singles_nbytes: int = 0
    records: int = 0
    nbytes: int = 0

    def gather(self, schema: pa.Schema) -> None:
        """Turn the single records so far into a batch, so that they stay before what comes next."""
        if self.singles:
            self.batches.append(to_batch(self.singles, schema))
            self.singles = []
            self.singles_nbytes = 0

    def clear(self) -> None:
        """Begin again, without a reference to what it held."""
        self.batches = []
        self.singles = []
        self.singles_nbytes = self.records = self.nbytes = 0
