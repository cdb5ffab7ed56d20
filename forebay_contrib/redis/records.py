"""Turn entries of Redis streams, as the server sends them, into one Arrow batch and its keys. Knows no connection."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.redis.declaration import RedisStreams
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = schema_of(RedisStreams.columns)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """Hold an entry of a stream; ``fields`` are alternating names and values.

    ``key`` identifies the entry within all streams of a declaration. The id alone is not enough: another entry may get
    it when a stream is created again, or when a replica takes over that had not received the last entries.
    """

    stream: str
    id: bytes
    fields: Sequence[bytes]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the key, once."""
        content = str(list(map(len, self.fields))).encode() + b"".join(self.fields)
        digest = hashlib.blake2b(content, digest_size=12).hexdigest()
        object.__setattr__(self, "key", f"{self.id.decode('ascii')}@{self.stream}@{digest}")


def batch_of(entries: Sequence[StreamEntry]) -> pa.RecordBatch:
    """Return the entries as rows. Raises ValueError if the name of a field is no text, or is there twice."""
    maps = [dict(zip(entry.fields[::2], entry.fields[1::2], strict=True)) for entry in entries]
    if sum(map(len, maps)) < sum(len(entry.fields) for entry in entries) // 2:
        raise ValueError("an entry has two fields of one name, of which a map holds one")
    starts = [0]
    for one in maps:
        starts.append(starts[-1] + len(one))
    names = [name.decode() for name in chain.from_iterable(maps)]
    values = list(chain.from_iterable(one.values() for one in maps))
    fields = pa.MapArray.from_arrays(
        pa.array(starts, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.binary())
    )
    ids = [entry.id.decode("ascii") for entry in entries]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([entry.stream for entry in entries], pa.string()),
            pa.array(ids, pa.string()),
            # Milliseconds; an id that the sender chose may be beyond the latest time.
            pa.array([min(int(one.partition("-")[0]), _LAST) for one in ids], SCHEMA.field("timestamp").type),
            fields.cast(SCHEMA.field("fields").type),
        ],
        schema=SCHEMA,
    )


# The end of the year 9999, in milliseconds.
_LAST = 253_402_300_799_999


def keys_of(entries: Sequence[StreamEntry]) -> pa.Array:
    """Return the entries' keys."""
    return pa.array([entry.key for entry in entries], pa.string())


def sorted_out(entries: Sequence[StreamEntry]) -> tuple[list[StreamEntry], list[DeadLetter]]:
    """Return the entries that can become rows, and the others as dead letters."""
    good, letters = [], []
    for entry in entries:
        try:
            batch_of([entry])
        except ValueError as error:
            is_text = not isinstance(error, UnicodeDecodeError)
            reason = DeadLetterReason.UNPARSABLE if is_text else DeadLetterReason.INVALID_ENCODING
            pairs = zip(entry.fields[::2], entry.fields[1::2], strict=True)
            letters.append(DeadLetter(reason, b"\n".join(name + b"=" + value for name, value in pairs)))
        else:
            good.append(entry)
    return good, letters
