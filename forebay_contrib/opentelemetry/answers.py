"""Makes a server's answers in OTLP/HTTP, as protobuf or JSON. They are so small that they need no protobuf library.

Each answer has the request's media type; a request of any other type is answered in JSON.
"""

from __future__ import annotations

import json

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

# Protobuf's tags: a field's number and its wire type (0: a varint, 2: bytes after their length).
_PARTIAL_SUCCESS = b"\x0a"
_REJECTED_LOG_RECORDS = b"\x08"
_ERROR_MESSAGE = b"\x12"
_STATUS_MESSAGE = b"\x12"


def answer_type(kind: str) -> str:
    """Return the media type in which to answer a request of media type ``kind``."""
    return PROTOBUF if kind == PROTOBUF else JSON


def exported(kind: str, *, rejected: int = 0, message: str = "") -> bytes:
    """Return an ``ExportLogsServiceResponse``: all records were taken, except ``rejected`` ones."""
    if not rejected:
        return b"" if kind == PROTOBUF else b"{}"
    if kind == PROTOBUF:
        partial = _REJECTED_LOG_RECORDS + _varint(rejected) + _text(_ERROR_MESSAGE, message)
        return _PARTIAL_SUCCESS + _varint(len(partial)) + partial
    return json.dumps({"partialSuccess": {"rejectedLogRecords": str(rejected), "errorMessage": message}}).encode()


def status(kind: str, message: str) -> bytes:
    """Return a ``google.rpc.Status``, the body of every other answer."""
    if kind == PROTOBUF:
        return _text(_STATUS_MESSAGE, message)
    return json.dumps({"message": message}).encode()


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004  seven bits a byte
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
