"""Makes a server's answers in OTLP, as protobuf or JSON. They are so small that they need no protobuf library.

Over HTTP each answer has the request's media type; a request of any other type is answered in JSON.
"""

from __future__ import annotations

import json

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

# Protobuf's tags: a field's number and its wire type (0: a varint, 2: bytes after their length).
_PARTIAL_SUCCESS = b"\x0a"
_REJECTED = b"\x08"
_ERROR_MESSAGE = b"\x12"
_STATUS_CODE = b"\x08"
_STATUS_MESSAGE = b"\x12"
_STATUS_DETAIL = b"\x1a"
_ANY_URL = b"\x0a"
_ANY_VALUE = b"\x12"
_RETRY_DELAY = b"\x0a"
_SECONDS = b"\x08"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def answer_type(kind: str) -> str:
    """Return the media type in which to answer a request of media type ``kind``."""
    return PROTOBUF if kind == PROTOBUF else JSON


def exported(kind: str, *, rejected: int = 0, message: str = "", counted_as: str = "rejectedLogRecords") -> bytes:
    """Return an ``ExportLogsServiceResponse``, or that of another signal: all was taken, except ``rejected`` records.

    ``counted_as`` is what the signal calls these in JSON.
    """
    if not rejected:
        return b"" if kind == PROTOBUF else b"{}"
    if kind == PROTOBUF:
        partial = _REJECTED + _varint(rejected) + _text(_ERROR_MESSAGE, message)
        return _PARTIAL_SUCCESS + _varint(len(partial)) + partial
    return json.dumps({"partialSuccess": {counted_as: str(rejected), "errorMessage": message}}).encode()


def status(kind: str, message: str) -> bytes:
    """Return a ``google.rpc.Status``, the body of every other answer."""
    if kind == PROTOBUF:
        return _text(_STATUS_MESSAGE, message)
    return json.dumps({"message": message}).encode()


def status_details(code: int, message: str, retry_after: int | None) -> bytes:
    """Return a ``google.rpc.Status`` of gRPC, with a ``RetryInfo`` where the request should be sent again.

    ``retry_after`` is in seconds.
    """
    found = _STATUS_CODE + _varint(code) + _text(_STATUS_MESSAGE, message)
    if retry_after is None:
        return found
    info = _bytes(_RETRY_DELAY, _SECONDS + _varint(retry_after))
    return found + _bytes(_STATUS_DETAIL, _text(_ANY_URL, _RETRY_INFO) + _bytes(_ANY_VALUE, info))


def message_of(kind: str, body: bytes) -> str:
    """Return the message of a ``status``, or the detail of another refusal in JSON."""
    if kind != PROTOBUF:
        said = json.loads(body)
        return str(said.get("message", said.get("detail", "")))
    at = 1
    while at < len(body) and body[at] > 0x7F:  # noqa: PLR2004  seven bits a byte
        at += 1
    return body[at + 1 :].decode()


def _text(tag: bytes, text: str) -> bytes:
    return _bytes(tag, text.encode())


def _bytes(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004  seven bits a byte
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
