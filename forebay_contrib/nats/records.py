"""Turn messages of JetStream, as the server sends them, into one Arrow batch and its keys. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.nats.declaration import NatsJetStream
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = schema_of(NatsJetStream.columns)
_HEADERS = SCHEMA.field("headers").type
_ACKNOWLEDGEMENT = "$JS.ACK."
# The number of words in such a subject: of older servers exactly, and of those with domains at least.
_SHORT, _LONG = 9, 11


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Hold a message's place in its stream, from the subject to which it is acknowledged; nanoseconds since 1970."""

    stream: str
    sequence: int
    nanoseconds: int

    @classmethod
    def of(cls, reply: str) -> StreamPlace | None:
        """Return the place; None if this is no message of a stream, but the server's status of a request."""
        if not reply.startswith(_ACKNOWLEDGEMENT):
            return None
        words = reply.split(".")
        first = 2 if len(words) == _SHORT else 4
        if len(words) != _SHORT and len(words) < _LONG:
            return None
        return cls(words[first], int(words[first + 3]), int(words[first + 5]))

    @property
    def key(self) -> str:
        """Return a key that identifies the message, even after the stream is deleted and created again."""
        return f"{self.sequence}@{self.stream}@{self.nanoseconds}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """Hold a message. ``headers`` are raw, the version line first; a subject that is no text contains surrogates."""

    place: StreamPlace
    subject: str
    reply: str
    data: bytes
    headers: bytes


def batch_of(messages: Sequence[Delivered]) -> pa.RecordBatch:
    """Return the messages as rows. Raises UnicodeError if a subject or a header is no text."""
    for one in messages:
        if not one.subject.isascii():
            one.subject.encode()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([one.subject for one in messages], pa.string()),
            pa.array([one.data for one in messages], pa.binary()),
            _headers(messages),
            pa.array([one.place.stream for one in messages], pa.string()),
            pa.array([one.place.sequence for one in messages], pa.int64()),
            pa.array([one.place.nanoseconds // 1000 for one in messages], SCHEMA.field("timestamp").type),
        ],
        schema=SCHEMA,
    )


def keys_of(messages: Sequence[Delivered]) -> pa.Array:
    """Return the messages' keys, by their places."""
    return pa.array([one.place.key for one in messages], pa.string())


def sorted_out(messages: Sequence[Delivered]) -> tuple[list[Delivered], list[DeadLetter]]:
    """Return the messages that can become rows, and the others as dead letters."""
    good, letters = [], []
    for one in messages:
        try:
            batch_of([one])
        except UnicodeError:
            subject = one.subject.encode(errors="surrogateescape")
            data = b"\n".join([subject, one.headers, one.data])
            letters.append(DeadLetter(DeadLetterReason.INVALID_ENCODING, data))
        else:
            good.append(one)
    return good, letters


def _headers(messages: Sequence[Delivered]) -> pa.Array:
    """Return the column of headers; null for a message without headers."""
    if not any(one.headers for one in messages):
        return pa.nulls(len(messages), _HEADERS)
    return pa.array([_pairs(one.headers) if one.headers else None for one in messages], _HEADERS)


def _pairs(headers: bytes) -> list[dict[str, str]]:
    """Return the pairs in lines ``name: value``, in order; a name may be repeated."""
    pairs = []
    for line in headers.split(b"\r\n")[1:]:
        if line:
            name, _, value = line.decode().partition(":")
            pairs.append({"key": name, "value": value.strip(" \t")})
    return pairs
