"""Cut a stream in several ways, as a network may cut it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LONGEST_BY_BYTES = 200  # a longer stream is not cut at each byte: that takes too long


def splits(stream: bytes) -> Iterator[Sequence[bytes]]:
    """Yield a stream in pieces, cut in different ways: as a whole first."""
    yield [stream] if stream else []
    sizes = (1, 3, 64) if len(stream) <= _LONGEST_BY_BYTES else (len(stream) // 7, len(stream) // 3)
    for size in sizes:
        if size < len(stream):
            yield [stream[at : at + size] for at in range(0, len(stream), size)]
    # At one place that depends on the content, so that a search reaches every place.
    if stream:
        place = sum(stream) % len(stream)
        yield [piece for piece in (stream[:place], stream[place:]) if piece]
