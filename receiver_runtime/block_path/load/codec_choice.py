"""Choose the codec of each block for the setting ``compression="auto"``: lz4 while the processors keep up, else none.

Owns the two states, their moves, and what is measured for them. Each block that the generator cuts is one observation:
its size, the seconds since the block before it was cut, and how long it waited to be encoded.

- COMPRESSED moves to UNCOMPRESSED when blocks wait to be encoded: most of the latest blocks waited for a part of the
  time between two cuts (the high threshold). The rate at that moment is what compression allows.
- UNCOMPRESSED moves back when most of the latest blocks came no faster than at that rate (the low threshold): the
  source or the disk allows no more, so compression costs no throughput. It also moves back after a number of blocks,
  because the processor may have had other work when it left.
- Each state lasts for a number of blocks. COMPRESSED lasts longer each time storing uncompressed blocks was no faster,
  and UNCOMPRESSED each time blocks waited again. Both are short again once blocks no longer wait.

Nothing here compresses, and no reader needs the choice: each block says itself how it is compressed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.block_store.frames.payload import Compression

#: The setting ``compression``: a codec, or ``auto``.
CompressionSetting = Literal["auto", "lz4", "zstd", "none"]

# A block waited if it did so for this part of the time since the block before it was cut. Little is much: where reading
# and encoding share the processors, both take longer, and a block waits for the difference only.
_WAITED_PART = 0.05
# Weight of the newest block in the share of blocks that waited, or came slowly: one stall of a disk moves nothing.
_WEIGHT = 0.25
# The share from which on "most of the latest blocks" is true, and below which none is said to have waited.
_MOST = 0.75
_FEW = 0.25
#: Blocks: the first stay in COMPRESSED, because a source often begins with what has waited for its receiver.
FIRST_COMPRESSED_BLOCKS = 16
#: Blocks: the shortest stay in a state after that.
LEAST_BLOCKS = 5
#: Blocks: the longest that COMPRESSED lasts although blocks wait, after uncompressed blocks were no faster.
LONGEST_COMPRESSED_BLOCKS = 128
#: Blocks: the first stay in UNCOMPRESSED before compression is tried again, and the longest.
FIRST_UNCOMPRESSED_BLOCKS = 32
LONGEST_UNCOMPRESSED_BLOCKS = 1024


class CodecState(StrEnum):
    """Say what ``auto`` does with the next block."""

    COMPRESSED = "compressed"
    UNCOMPRESSED = "uncompressed"


TRANSITIONS: Mapping[CodecState, frozenset[CodecState]] = {
    CodecState.COMPRESSED: frozenset({CodecState.UNCOMPRESSED}),
    CodecState.UNCOMPRESSED: frozenset({CodecState.COMPRESSED}),
}
_CODECS: Mapping[CodecState, Compression] = {CodecState.COMPRESSED: "lz4", CodecState.UNCOMPRESSED: "none"}


class CodecChoice:
    """Choose the codec of one receiver's blocks. One thread at a time observes; any thread may read ``codec``.

    Args:
        setting: a codec, which is then used for every block, or ``auto``.
    """

    def __init__(self, setting: CompressionSetting) -> None:
        self._setting = setting
        self._state = CodecState.COMPRESSED
        #: The codec of blocks that no queue precedes: their sender, or their source, waits while they are encoded.
        self.base: Compression = "lz4" if setting == "auto" else setting
        #: The codec of the next block from the queue.
        self.codec: Compression = self.base
        # Blocks since the last move; how many COMPRESSED lasts at least, and UNCOMPRESSED at most.
        self._blocks = 0
        self._stay = FIRST_COMPRESSED_BLOCKS
        self._patience = FIRST_UNCOMPRESSED_BLOCKS
        # The share of blocks that waited (COMPRESSED) or came slowly (UNCOMPRESSED), and the smoothed bytes and seconds
        # between two cuts.
        self._share = 0.0
        self._nbytes = 0.0
        self._seconds = 0.0
        # Bytes per second that came through while blocks waited to be compressed.
        self._compressed_rate = 0.0

    @property
    def state(self) -> CodecState:
        """Return what is done with the next block."""
        return self._state

    def observe(self, nbytes: int, *, seconds: float, waited: float) -> None:
        """Note that a block was cut, before it is encoded, and choose its codec.

        Args:
            nbytes: the block's size, not encoded.
            seconds: since the block before it was cut.
            waited: seconds between the moment at which it could have been cut and the cut, because the encoder was
                busy. Time in which the queue to the disk was full does not count.
        """
        if self._setting != "auto":
            return
        self._blocks += 1
        self._nbytes += _WEIGHT * (nbytes - self._nbytes)
        self._seconds += _WEIGHT * (seconds - self._seconds)
        if self._state is CodecState.COMPRESSED:
            self._count(waited > 0 and waited >= _WAITED_PART * seconds)
            if self._blocks < self._stay:
                return
            if self._share >= _MOST:
                self._compressed_rate = self._nbytes / max(self._seconds, 1e-9)
                self._move(CodecState.UNCOMPRESSED)
            elif self._share <= _FEW:
                self._stay = LEAST_BLOCKS
                self._patience = FIRST_UNCOMPRESSED_BLOCKS
            return
        self._count(nbytes <= self._compressed_rate * seconds)
        if self._blocks >= LEAST_BLOCKS and self._share >= _MOST:
            self._stay = min(2 * self._stay, LONGEST_COMPRESSED_BLOCKS)
            self._move(CodecState.COMPRESSED)
        elif self._blocks >= self._patience:
            self._stay = LEAST_BLOCKS
            self._patience = min(2 * self._patience, LONGEST_UNCOMPRESSED_BLOCKS)
            self._move(CodecState.COMPRESSED)

    def _count(self, applies: bool) -> None:
        self._share += _WEIGHT * (applies - self._share)

    def _move(self, to: CodecState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise RuntimeError(f"the choice of a codec is {self._state}, it can't become {to}")
        self._state = to
        self.codec = _CODECS[to]
        # Measure the new state alone.
        self._blocks = 0
        self._share = self._nbytes = self._seconds = 0.0
