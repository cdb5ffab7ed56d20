"""Encode the locations of a batch's blocks as an option of the `forebay` format, for the run that has read them.

Tasks and planners read the option; this module loads neither driver log nor Spark. The option contains no secret.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracker_store.batches.received_block_tracker import AllocatedBlock

#: (path, offset, length, crc32c, ephemeral)
BlockLocation = tuple[str, int, int, int, bool]


def location_of(block: AllocatedBlock) -> BlockLocation:
    """Return the location of a block."""
    handle = block.handle
    # One string for all blocks of a segment: a task that is sent then has the path once.
    return sys.intern(block.path), handle.offset, handle.length, handle.crc32c, block.ephemeral


def encode_allocation(locations: Iterable[BlockLocation], expected: Mapping[str, Sequence[str]]) -> str:
    """Return blocks, in order, and the expected identities of the block store's roots, as text: ~10 bytes a block."""
    segments = [
        [path, ephemeral, [number for _, *numbers, _ in blocks for number in numbers]]
        for (path, ephemeral), blocks in groupby(locations, key=lambda location: (location[0], location[4]))
    ]
    plain = json.dumps({"expected": expected, "segments": segments}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(plain.encode(), level=1)).decode()


def decode_allocation(text: str) -> tuple[list[BlockLocation], dict[str, list[str]]]:
    """Return the arguments of ``encode_allocation``."""
    found = json.loads(zlib.decompress(base64.b64decode(text)))
    locations = [
        (path, offset, length, crc32c, ephemeral)
        for path, ephemeral, numbers in found["segments"]
        for offset, length, crc32c in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    ]
    return locations, found["expected"]
