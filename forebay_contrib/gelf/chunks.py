"""Put messages of GELF together that came in several datagrams, in bounded memory and time.

A chunk has two bytes of magic, eight of the message's id, its number, how many chunks the message has (at most 128),
and its part of the message. This module owns the chunks whose message is not whole yet, and never reads a socket.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.framing import LETTER_BYTES, Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAGIC = b"\x1e\x0f"
MOST_CHUNKS = 128
HEAD_BYTES = 12
# Memory, in bytes, that a chunk and a message take beside their data.
_CHUNK_BYTES, _MESSAGE_BYTES = 150, 1000

_Key = tuple[str, bytes]


@dataclass(slots=True, eq=False)
class _Partial:
    """Hold the chunks of one message that have come."""

    peer: str
    count: int
    began: float
    chunks: dict[int, bytes] = field(default_factory=dict)
    #: What it counts for in memory.
    nbytes: int = _MESSAGE_BYTES

    def letter(self, why: str) -> DeadLetter:
        """Return the chunks as one dead letter, each with its head, in the order of their numbers."""
        data = b"".join(self.chunks[number] for number in sorted(self.chunks))
        return DeadLetter(
            DeadLetterReason.TRUNCATED,
            data[:LETTER_BYTES],
            self.peer,
            max(0, len(data) - LETTER_BYTES),
            f"{len(self.chunks)} of {self.count} chunks came {why}",
        )


class ChunkAssembler:
    """Hold chunks until their message is whole, or given up. Only one thread may use it.

    Args:
        timeout: seconds after the first chunk of a message.
        max_bytes: of all chunks that wait, and half of it of one peer.
        clock: gives monotonic seconds.
    """

    def __init__(self, *, timeout: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._clock = clock
        # In the order in which they began; those of a peer again, so that its oldest one is found at once.
        self._partials: dict[_Key, _Partial] = {}
        self._by_peer: dict[str, dict[_Key, None]] = {}
        self._bytes_of: dict[str, int] = {}
        self._letters: list[DeadLetter] = []
        #: What all that waits counts for in memory.
        self.nbytes = 0

    def take(self, datagram: bytes, sender: str) -> bytes | None:
        """Take a chunk. Return the message if it is whole now, and None otherwise."""
        if len(datagram) < HEAD_BYTES:
            self._refuse(datagram, sender, f"a chunk of {len(datagram)} bytes, its head has {HEAD_BYTES}")
            return None
        number, count = datagram[HEAD_BYTES - 2], datagram[HEAD_BYTES - 1]
        if not number < count <= MOST_CHUNKS:
            self._refuse(datagram, sender, f"chunk {number} of {count}: there are at most {MOST_CHUNKS}, from 0 on")
            return None
        if count == 1:
            return datagram[HEAD_BYTES:]
        key = (sender, datagram[2 : HEAD_BYTES - 2])
        partial = self._partials.get(key)
        if partial is None:
            partial = self._begin(key, count)
        if partial.count != count:
            self._refuse(datagram, sender, f"a chunk of {count}, others of this message said {partial.count}")
        elif number not in partial.chunks:
            return self._add(key, partial, number, datagram)
        elif partial.chunks[number] != datagram:
            self._refuse(datagram, sender, f"chunk {number} came twice, with other bytes")
        return None

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters since the last call."""
        found, self._letters = self._letters, []
        return found

    def overdue(self) -> Cut:
        """Give up the messages whose time is over. Return the dead letters since the last call."""
        until = self._clock() - self._timeout
        while self._partials:
            key, oldest = next(iter(self._partials.items()))
            if oldest.began > until:
                break
            self._put_aside(key, f"within {self._timeout:g} s")
        return Cut(dead_letters=self.letters())

    def until_overdue(self) -> float | None:
        """See ``Holding``."""
        oldest = next(iter(self._partials.values()), None)
        return None if oldest is None else max(0.0, oldest.began + self._timeout - self._clock())

    def end(self, peers: Sequence[str] | None = None) -> Cut:  # noqa: ARG002  datagrams have no connections
        """Give up all messages. Return the dead letters since the last call."""
        for key in list(self._partials):
            self._put_aside(key, "before the receiver stopped")
        return Cut(dead_letters=self.letters())

    def _put_aside(self, key: _Key, why: str) -> None:
        partial = self._partials[key]
        self._drop(key)
        self._letters.append(partial.letter(why))

    def _begin(self, key: _Key, count: int) -> _Partial:
        partial = self._partials[key] = _Partial(peer_of(key[0]), count, self._clock())
        self._by_peer.setdefault(partial.peer, {})[key] = None
        self._count(partial.peer, partial.nbytes)
        return partial

    def _add(self, key: _Key, partial: _Partial, number: int, datagram: bytes) -> bytes | None:
        partial.chunks[number] = datagram
        if len(partial.chunks) == partial.count:
            self._drop(key)
            return b"".join(partial.chunks[one][HEAD_BYTES:] for one in range(partial.count))
        size = len(datagram) + _CHUNK_BYTES
        partial.nbytes += size
        self._count(partial.peer, size)
        why = f"before {self._max_bytes} bytes of chunks waited, max_chunk_bytes"
        while self._bytes_of.get(partial.peer, 0) > self._max_bytes // 2:
            self._put_aside(next(iter(self._by_peer[partial.peer])), why)
        while self.nbytes > self._max_bytes:
            self._put_aside(next(iter(self._partials)), why)
        return None

    def _drop(self, key: _Key) -> None:
        partial = self._partials.pop(key)
        self._count(partial.peer, -partial.nbytes)
        keys = self._by_peer[partial.peer]
        del keys[key]
        if not keys:
            del self._by_peer[partial.peer], self._bytes_of[partial.peer]

    def _count(self, peer: str, nbytes: int) -> None:
        self.nbytes += nbytes
        self._bytes_of[peer] = self._bytes_of.get(peer, 0) + nbytes

    def _refuse(self, datagram: bytes, sender: str, why: str) -> None:
        self._letters.append(DeadLetter(DeadLetterReason.UNPARSABLE, datagram, peer_of(sender), why=why))
