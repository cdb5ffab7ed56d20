"""Encode and decode the payload of a group of dead letters: many small records in one frame (``frame``).

Owns the bytes of the payload. It never reads a file and never decrypts.

====== ====== =============================================================
offset size   content
====== ====== =============================================================
0      4      how many letters there are, little-endian; it may be 0
4      4 each how many bytes each letter has, in order
then          the letters' bytes, one after another
====== ====== =============================================================
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.block_store.frames.errors import InvalidFrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER_BYTES = 4


def encode_letters(letters: Sequence[bytes]) -> bytes:
    """Return the payload of these letters, each shorter than 4 GiB; they come back in this order."""
    numbers = np.fromiter((len(letters), *map(len, letters)), dtype="<u4", count=len(letters) + 1)
    return b"".join((numbers.tobytes(), *letters))


def decode_letters(payload: bytes) -> list[bytes]:
    """Return the letters of a payload, in order.

    Raises:
        InvalidFrameError: its numbers do not fit its size.
    """
    count = int.from_bytes(payload[:_NUMBER_BYTES], "little")
    begin = _NUMBER_BYTES * (count + 1)
    if begin > len(payload):
        raise InvalidFrameError(f"{len(payload)} bytes are no group of {count} dead letters: there is no room for them")
    ends = begin + np.cumsum(np.frombuffer(payload, dtype="<u4", count=count, offset=_NUMBER_BYTES), dtype=np.int64)
    if (int(ends[-1]) if count else begin) != len(payload):
        raise InvalidFrameError(f"{len(payload)} bytes are no group of {count} dead letters: their sizes differ")
    starts = [begin, *ends.tolist()]
    return [payload[start:end] for start, end in pairwise(starts)]


def bytes_of_letters(content_length: int, letters: int) -> int:
    """Return how many bytes the letters of a payload have together, from its length; salvage has no key to read it."""
    return max(0, content_length - _NUMBER_BYTES * (letters + 1))
