"""Encode a block's payload: record batches as one self-contained Arrow IPC stream, with buffers compressed or not.

The stream carries its schema and says how each batch is compressed, so a block can be read without other knowledge:
readers need no setting for it, and blocks of every compression may be in one segment.

The default of these functions is lz4: it costs a fraction of what it saves on the disk, unless the processor is what
limits a receiver (``codec_choice``). docs/reference/benchmarks.md has the figures of all three.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: How the buffers of a payload are compressed; the setting ``compression`` has these names, and ``auto``.
Compression = Literal["lz4", "zstd", "none"]

DEFAULT_COMPRESSION: Compression = "lz4"

# Smaller buffers are copied.
_CRUMB_BYTES = 64 * 1024
# Bytes, not encoded, that are worth a thread: lz4 takes some milliseconds for them, and a new thread a tenth of one.
_SHARE_BYTES = 2**20
# Arrow's columnar format, "IPC Streaming Format": a continuation mark and a length of 0.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def encode_batches(
    schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, compression: Compression = DEFAULT_COMPRESSION
) -> pa.Buffer:
    """Encode record batches of one schema as a payload."""
    # Without threads: only one buffer of a batch is worth compressing, so threads would only wait for each other.
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def encode_row(schema: pa.Schema, rows: pa.RecordBatch, row: int) -> bytes:
    """Encode one row of a batch, not compressed, without any bytes of the others.

    Arrow pads the buffers of a slice with the bytes behind it, which may be another sender's: so the row is copied.
    """
    one = rows.take(pa.array([row], pa.int64()))
    encoded: bytes = encode_batches(schema, [one], compression="none").to_pybytes()
    return encoded


def encode_parts(
    schema: pa.Schema,
    batches: Sequence[pa.RecordBatch],
    *,
    compression: Compression = DEFAULT_COMPRESSION,
    threads: int = 1,
) -> Sequence[pa.Buffer]:
    """Encode as ``encode_batches``, in parts. Uncompressed data is not copied: the parts share the batches' memory.

    At most ``threads`` threads each compress a share of the batches, if there is enough for them. Arrow lets go of
    Python's lock meanwhile.
    """
    if compression != "none":
        shares = _shares(batches, threads)
        encode = partial(encode_batches, schema, compression=compression)
        if len(shares) > 1:
            # The system may have no more threads. Any other error comes again from what follows.
            with suppress(RuntimeError), ThreadPoolExecutor(len(shares), thread_name_prefix="encode") as pool:
                return _joined(schema, list(pool.map(encode, shares)))
        return [encode(batches)]
    sink = _Parts()
    options = pa.ipc.IpcWriteOptions(compression=None, use_threads=False)
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.parts()


def _shares(batches: Sequence[pa.RecordBatch], most: int) -> Sequence[Sequence[pa.RecordBatch]]:
    """Divide the batches into at most ``most`` shares of about the same size, in order; one if there is little."""
    sizes = [batch.nbytes for batch in batches]
    share_bytes = max(sum(sizes) / most, _SHARE_BYTES)
    shares: list[list[pa.RecordBatch]] = [[]]
    before = 0
    for batch, size in zip(batches, sizes, strict=True):
        # A batch belongs to the share in which its middle is.
        if shares[-1] and len(shares) < most and before + size / 2 >= len(shares) * share_bytes:
            shares.append([])
        shares[-1].append(batch)
        before += size
    return shares


def _joined(schema: pa.Schema, streams: Sequence[pa.Buffer]) -> Sequence[pa.Buffer]:
    """Return the parts of one stream that has the batches of these: its schema comes first, and its end last."""
    end = len(_END_OF_STREAM)
    begin = encode_batches(schema, []).size - end
    first, *others = streams
    return [first[:-end], *(stream[begin:-end] for stream in others[:-1]), others[-1][begin:]]


def decode_batches(payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a payload, decompressed one at a time and validated.

    A payload with a right checksum may still be forged: Arrow itself would read whatever memory its offsets name, and
    end the process. Raises pa.ArrowException and OSError where it is no valid payload.
    """
    with pa.ipc.open_stream(payload) as reader:
        try:
            # Arrow checks the values, but no names of columns and fields.
            _read_names(reader.schema)
        except UnicodeDecodeError as error:
            message = f"the name of a field is not UTF-8: {error.reason}"
            raise pa.ArrowInvalid(message) from error
        for batch in reader:
            batch.validate(full=True)
            yield batch


def _read_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError at a name that is not UTF-8, of a field or of one within it."""
    for field in fields:
        _ = field.name
        _read_names(field.type.field(number) for number in range(field.type.num_fields))


class _Parts:
    """Act as a file for Arrow: keep the buffers that it writes, and join the small ones between them."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[pa.Buffer] = []
        self._crumbs: list[bytes] = []
        self._size = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        size = len(data)
        if size < _CRUMB_BYTES:
            # Join them even in a batch of few records: one write of the operating system takes about a thousand parts.
            self._crumbs.append(bytes(data))
        else:
            self._gather()
            self._parts.append(data if isinstance(data, pa.Buffer) else pa.py_buffer(data))
        self._size += size
        return size

    def parts(self) -> Sequence[pa.Buffer]:
        self._gather()
        return self._parts

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Do nothing: the parts stay."""

    def _gather(self) -> None:
        if self._crumbs:
            self._parts.append(pa.py_buffer(b"".join(self._crumbs)))
            self._crumbs = []
