"""Write records as they are sent and spooled: one after the other, so that frames of records are joined without a copy.

A framing keeps one record one record, whatever its bytes; a record for which it can't is refused by name, before it is
in a spool. It must never alter a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from forebay.client.errors import RecordRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A record: its bytes, its text, or an object or array that is written as JSON.
Record = bytes | bytearray | memoryview | str | Mapping[str, object] | list[object] | tuple[object, ...]

# What a JSON text begins with. The receiver would take other bytes for a byte-order mark or a compressed body.
_JSON_BEGINS = re.compile(rb'[ \t\r]*[{\["\-0-9tfn]')
# The same for lines: one that begins otherwise.
_OTHER_BEGINS = re.compile(rb'^(?![ \t\r]*[{\["\-0-9tfn])(?!\Z)', re.MULTILINE)
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SHOWN = 60  # bytes of a record that an error shows


class Framing(Protocol):
    """Write records, and find where one ends."""

    #: The name in a spool's state.
    name: str
    #: The `Content-Type` of the requests.
    content_type: str

    def encode(self, record: Record) -> bytes:
        """Return a record as it is sent. Raises RecordRefusedError, and TypeError if it is none."""
        ...

    def encode_many(self, records: Sequence[Record]) -> bytes:
        """Return records as they are sent, one after the other; at least one. Raises as `encode`, for any of them."""
        ...

    def cut(self, body: bytes, counts: Sequence[int]) -> list[int]:
        """Return the ends of the first records of a body, for each of the ascending counts."""
        ...

    def record_of(self, framed: bytes) -> bytes:
        """Return the one record of a body."""
        ...


class JsonLines:
    """Lines of JSON: each record is one JSON text without a line break."""

    name = "json"
    content_type = "application/x-ndjson"

    def encode(self, record: Record) -> bytes:
        """See `Framing`. The receiver checks the JSON: a record that is none becomes a dead letter there."""
        line = bytes_of(record)
        self.check(line)
        return line + b"\n"

    def encode_many(self, records: Sequence[Record]) -> bytes:
        """See `Framing`."""
        try:
            framed = b"\n".join(records) + b"\n"  # type: ignore[arg-type]
        except TypeError:
            framed = b""
        if framed.count(b"\n") == len(records) and _OTHER_BEGINS.search(framed) is None and _is_utf8(framed):
            return framed
        # Some of them are no bytes, or none that can be sent.
        return b"".join(map(self.encode, records))

    @staticmethod
    def check(line: bytes) -> None:
        """Check that a record's bytes can be sent. Raises RecordRefusedError."""
        if b"\n" in line:
            raise RecordRefusedError(
                f"a record of JSON has a line break at byte {line.index(10)}: {_shown(line)}: send it on one "
                "line, or as a mapping, which is written so"
            )
        if not _JSON_BEGINS.match(line):
            raise RecordRefusedError(f"a record is no JSON: {_shown(line)}: send JSON, such as a mapping with it")
        if not line.isascii():
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise RecordRefusedError(
                    f"a record of JSON is no UTF-8 at byte {error.start}: {_shown(line)}: send it in UTF-8"
                ) from error

    def cut(self, body: bytes, counts: Sequence[int]) -> list[int]:
        """See `Framing`."""
        ends, end, found = [], 0, 0
        for count in counts:
            while found < count:
                end = body.index(b"\n", end) + 1
                found += 1
            ends.append(end)
        return ends

    def record_of(self, framed: bytes) -> bytes:
        """See `Framing`."""
        return framed.removesuffix(b"\n")


FRAMINGS: Mapping[str, Framing] = {framing.name: framing for framing in (JsonLines(),)}


def bytes_of(record: Record) -> bytes:
    """Return a record's bytes. Raises TypeError, and RecordRefusedError for what is not JSON or no Unicode."""
    if isinstance(record, bytes):
        return record
    if isinstance(record, bytearray | memoryview):
        return bytes(record)
    try:
        if isinstance(record, str):
            return record.encode()
        if isinstance(record, Mapping):
            record = dict(record)
        if isinstance(record, dict | list | tuple):
            return _encoded(record).encode()
    except (UnicodeEncodeError, ValueError, TypeError, RecursionError) as error:
        raise RecordRefusedError(f"a record can't be written as JSON: {error}: correct it") from error
    raise TypeError(f"a record is bytes, text, or a mapping or list to write as JSON: not {type(record).__name__}")


def _is_utf8(data: bytes) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def _shown(record: bytes) -> str:
    return repr(record if len(record) <= _SHOWN else record[:_SHOWN] + b"...")
