"""Send header names that are not text, which the client's Python interface can't do."""

from __future__ import annotations

import ctypes
from importlib.metadata import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("pointer", ctypes.c_void_p),
        ("bytes", _Bytes),
        ("int32", ctypes.c_int32),
        ("padding", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """librdkafka's rd_kafka_vu_t."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Union))


_TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADERS = 1, 3, 4, 7, 10
_COPY = 2


def send_raw_headers(
    address: str, topic: str, partition: int, value: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    """Send one record; return when the broker has it."""
    found = [one for one in files("confluent-kafka") or () if one.name.startswith("librdkafka")]
    [path] = [one.locate() for one in found if ".so" in one.name or one.suffix == ".dylib"]
    library = ctypes.CDLL(str(path))
    for name in ("conf_new", "new", "headers_new", "produceva"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert not library.rd_kafka_conf_set(configuration, b"bootstrap.servers", address.encode(), said, 512), said.value
    client = ctypes.c_void_p(library.rd_kafka_new(0, configuration, said, 512))
    assert client.value, said.value
    made = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for key, data in headers:
        given = (key, ctypes.c_ssize_t(len(key)), data, ctypes.c_ssize_t(len(data)))
        assert not library.rd_kafka_header_add(made, *given)
    arguments = (_Argument * 5)()
    arguments[0].kind, arguments[0].value.text = _TOPIC, topic.encode()
    arguments[1].kind, arguments[1].value.int32 = _PARTITION, partition
    arguments[2].kind, arguments[2].value.bytes = _VALUE, _Bytes(value, len(value))
    arguments[3].kind, arguments[3].value.int32 = _FLAGS, _COPY
    arguments[4].kind, arguments[4].value.pointer = _HEADERS, made.value
    assert not library.rd_kafka_produceva(client, arguments, ctypes.c_size_t(5))
    assert library.rd_kafka_flush(client, 30_000) == 0
    library.rd_kafka_destroy(client)
