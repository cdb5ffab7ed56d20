"""Read and write the frames of a state in the block store, where Spark's tasks run.

A segment of a state is as one of blocks: the same frames, checksums, encryption and replicas. Its frames have no
receiver: the header has receiver 0, the version's ordinal for the epoch and the bucket for the sequence. Python workers
load this module, so it loads neither Spark nor the driver log.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from orchestration.state.state_frame import StateError
from receiver_runtime.block_store.frames.encryption import BlockKey, BlockKeys, FrameEncryptor
from receiver_runtime.block_store.frames.errors import InvalidFrameError
from receiver_runtime.block_store.frames.frame import FrameFields, FrameKind, SourceRule, encode_frame, random_mark
from receiver_runtime.block_store.frames.payload import encode_parts
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.sources.fields.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestration.state.state_frame import StateFrame
    from receiver_runtime.block_store.stores.interface import BlockStore, Segment

# A table of more bytes makes no frame: it is an eighth less than a frame can have.
_MOST_FRAME_BYTES = 0x7000_0000


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Say where a state is, for tasks. A key never travels: each worker reads it where it runs.

    Attributes:
        roots: of the block store, as its setting has them.
        block_keys: references to the keys of encrypted frames, separated by commas, the one that encrypts first.
        encrypts: whether frames are encrypted, if there is a key.
        expected: the identities of the block store's roots, by name: see ``open_block_store``.
        min_replicas: how many replicas must have a frame.
    """

    roots: str
    block_keys: str
    expected: Mapping[str, Sequence[str]]
    encrypts: bool = True
    min_replicas: int = 1

    def references(self) -> list[Secret]:
        """Return the references to the keys."""
        return [Secret(text) for text in self.block_keys.split(",") if text]

    def open(self) -> BlockStore:
        """Open the block store, which decrypts frames that are read."""
        keys = BlockKeys(self.references())
        return open_block_store(self.roots, min_replicas=self.min_replicas, expected=self.expected, keys=keys)

    def encryptor(self) -> FrameEncryptor | None:
        """Return a new encryptor for one segment; None: frames are not encrypted."""
        references = self.references() if self.encrypts else []
        return FrameEncryptor(BlockKey.read(references[0])) if references else None


def read_frame(store: BlockStore, frame: StateFrame, schema: pa.Schema) -> pa.Table:
    """Return a frame's rows.

    Raises StateError if it has other columns, and as the block store's ``read_batches``.
    """
    batches = list(store.read_batches(frame.path, frame.offset, frame.length, frame.crc32c))
    table = pa.Table.from_batches(batches)
    if not table.schema.equals(schema):
        raise StateError(
            f"{frame.path}, offset {frame.offset}: the state was written with the columns {_shown(table.schema)}, and "
            f"is declared with {_shown(schema)}: declare it as it was, or raise State(version=…) with migrate="
        )
    if table.num_rows != frame.rows:
        raise StateError(
            f"{frame.path}, offset {frame.offset}: there are {table.num_rows} rows where {frame.rows} were written: "
            "restore the file from a replica"
        )
    return table


class StateSegment:
    """Write the frames of one task to a new segment, which begins with the first of them.

    Args:
        store: takes the segment.
        place: of the store, with the key that encrypts.
        folder: of the version; the segment's name in it is new for each task attempt.
        ordinal: of the version.
    """

    def __init__(self, store: BlockStore, place: StatePlace, folder: str, ordinal: int) -> None:
        self._store = store
        self._place = place
        self._folder = folder
        self._ordinal = ordinal
        self._segment: Segment | None = None
        self._encryptor: FrameEncryptor | None = None
        self._mark = random_mark()
        self.path = f"{folder}/{secrets.token_hex(16)}.segment"

    def append(self, bucket: int, rows: pa.Table) -> tuple[int, int, int]:
        """Take the rows of a bucket; return the frame's offset, length and checksum. It is not durable before ``sync``.

        Raises StateError if a frame can't have them, and as the block store.
        """
        _check(bucket, rows)
        if self._segment is None:
            self._encryptor = self._place.encryptor()
            self._segment = self._store.create_segment(self.path)
        fields = FrameFields(
            kind=FrameKind.BLOCK,
            source_rule=SourceRule.NOT_SENT_AGAIN,
            receiver_id=0,
            epoch=self._ordinal,
            sequence=bucket,
            registered_through=0,
            records=rows.num_rows,
            mark=self._mark,
        )
        try:
            frame = encode_frame(encode_parts(rows.schema, rows.to_batches()), fields, encryptor=self._encryptor)
        except InvalidFrameError as error:
            raise _too_large(bucket, rows) from error
        return self._segment.append(frame), frame.length, frame.crc32c

    def sync(self) -> None:
        """Return when every frame survives a loss of power, in enough replicas. Raises BlockStoreError."""
        if self._segment is not None:
            self._segment.sync()

    def close(self) -> None:
        """Close the segment. It syncs nothing."""
        if self._segment is not None:
            self._segment.close()


def _check(bucket: int, rows: pa.Table) -> None:
    if rows.nbytes > _MOST_FRAME_BYTES:
        raise _too_large(bucket, rows)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise StateError(
                f"column {name!r} of the changes can't be stored ({error}): a text must be UTF-8, so decode it in the "
                "output's function, or declare the column as BINARY"
            ) from error


def _too_large(bucket: int, rows: pa.Table) -> StateError:
    return StateError(
        f"bucket {bucket} of the state has {rows.nbytes} bytes in {rows.num_rows} rows, and a frame takes "
        f"{_MOST_FRAME_BYTES}: declare the state with more buckets, and rebuild it"
    )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if not field.name.startswith("_"))
