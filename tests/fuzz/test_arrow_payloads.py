"""Fuzz Arrow payloads whose checksum is right: in a process of its own, because Arrow's faults end the process."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_store.frames.payload import encode_batches
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_store.frames.payload import Compression

_COMPRESSIONS: Sequence[Compression] = ("none", "lz4", "zstd")
_BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "t": "caf\u00e9",
            "n": 1,
            "b": b"\0\xff",
            "l": ["x", None],
            "m": [("k", "v")],
            "at": datetime(2026, 1, 1, tzinfo=UTC),
        },
        {"t": None, "n": -1, "b": b"", "l": [], "m": None, "at": None},
    ],
    schema=pa.schema(
        [
            ("t", pa.string()),
            ("n", pa.int64()),
            ("b", pa.binary()),
            ("l", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.string())),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    ),
)
_READER = """
import resource, sys
import pyarrow as pa
from receiver_runtime.block_store.frames.payload import decode_batches
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
while head := sys.stdin.buffer.read(4):
    data = sys.stdin.buffer.read(int.from_bytes(head, "big"))
    try:
        for batch in decode_batches(pa.py_buffer(data)):
            for column in batch.columns:
                # Values that Python can't hold, such as a time after the year 9999, are values all the same.
                column.hash() if hasattr(column, "hash") else column.to_string()
    except (pa.ArrowException, OSError):
        answer = b"refused"
    except BaseException as error:
        answer = repr(error).encode("ascii", "backslashreplace")
    else:
        answer = b"read"
    sys.stdout.buffer.write(len(answer).to_bytes(4, "big") + answer)
    sys.stdout.buffer.flush()
"""


class _Reader:
    """Reads payloads in another process; a new one after each that ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, payload: bytes) -> str:
        """Return what the other process answered, or how it ended."""
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", _READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(payload).to_bytes(4, "big") + payload)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        head = process.stdout.read(4)
        if len(head) == 4:
            return process.stdout.read(int.from_bytes(head, "big")).decode()
        self.close()
        return f"the process ended with code {process.returncode}"

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            pipes: list[IO[bytes] | None] = [process.stdin, process.stdout]
            for pipe in pipes:
                if pipe is not None:
                    pipe.close()
            process.wait(60)


_VALID = [bytes(encode_batches(_BATCH.schema, [_BATCH, _BATCH], compression=one)) for one in _COMPRESSIONS]


@fuzzed(
    "arrow_payload",
    valid=_VALID,
    words=[b"\xff\xff\xff\xff", b"\xff" * 8, b"\0" * 16, b'\x04"M\x18', *_VALID],
    attacks=[b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4, _VALID[0].replace(b"caf\xc3\xa9", b"caf\xff\xff")],
)
def _check_payload(payload: bytes) -> None:
    answer = _READERS.read(payload)
    assert answer in {"read", "refused"}, answer


_READERS = _Reader()


def test_a_payload_is_read_or_refused_and_ends_no_process() -> None:
    try:
        _check_payload()
    finally:
        _READERS.close()
