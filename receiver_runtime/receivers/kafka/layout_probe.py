"""Probe whether a librdkafka has the fields of a message where they are expected, before any record is read by them.

A producer without a broker makes one message, which is given back at once as not sent: it is read as a record would
be, and compared with what was put in. Owns that producer, for a moment; it opens no
connection and no port.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_WORD: Final = 8
_PRODUCER = 0  # RD_KAFKA_PRODUCER
_DELIVERY_REPORT = 1  # RD_KAFKA_EVENT_DR
_PURGE_QUEUES = 1  # RD_KAFKA_PURGE_F_QUEUE
# RD_KAFKA_VTYPE_*: which argument follows.
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME = 0, 1, 3, 4, 5, 7, 8
_COPY = 2  # RD_KAFKA_MSG_F_COPY
_VALUE_BYTES, _KEY_BYTES, _PARTITION_NUMBER, _TIMESTAMP = b"forebay probes", b"the layout", 7, 1_700_000_012_345
_WAIT_MS = 5000
_TEXT_BYTES = 512


class LibraryError(Exception):
    """librdkafka is not as expected: records are read as objects instead."""


def probe_layout(path: str, *, time_word: int) -> None:
    """Compare one message with the layout; `time_word` is where its time is expected, in words of 8 bytes.

    Raises LibraryError, and OSError or AttributeError if the library can't be used at all.
    """
    library = ctypes.CDLL(path)
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    configuration = ctypes.c_void_p(_function(library, "conf_new", ctypes.c_void_p)())
    _function(library, "conf_set_log_cb", None)(configuration, None)
    _function(library, "conf_set_events", None)(configuration, ctypes.c_int(_DELIVERY_REPORT))
    client = ctypes.c_void_p(
        _function(library, "new", ctypes.c_void_p)(_PRODUCER, configuration, text, ctypes.c_size_t(_TEXT_BYTES))
    )
    if not client.value:
        _function(library, "conf_destroy", None)(configuration)
        raise LibraryError(f"no producer could be made: {text.value.decode(errors='replace')}")
    queue = ctypes.c_void_p(_function(library, "queue_get_main", ctypes.c_void_p)(client))
    try:
        _produce(library, client)
        _check(library, queue, time_word)
    finally:
        _function(library, "queue_destroy", None)(queue)
        _function(library, "destroy", None)(client)


def _produce(library: ctypes.CDLL, client: ctypes.c_void_p) -> None:
    error = _function(library, "producev", ctypes.c_int)(
        client,
        *(ctypes.c_int(_TOPIC), ctypes.c_char_p(b"forebay-probe")),
        *(ctypes.c_int(_PARTITION), ctypes.c_int32(_PARTITION_NUMBER)),
        *(ctypes.c_int(_FLAGS), ctypes.c_int(_COPY)),
        *(ctypes.c_int(_VALUE), ctypes.c_char_p(_VALUE_BYTES), ctypes.c_size_t(len(_VALUE_BYTES))),
        *(ctypes.c_int(_KEY), ctypes.c_char_p(_KEY_BYTES), ctypes.c_size_t(len(_KEY_BYTES))),
        *(ctypes.c_int(_TIME), ctypes.c_int64(_TIMESTAMP)),
        ctypes.c_int(_END),
    )
    if error:
        raise LibraryError(f"no message could be made: error {error}")
    _function(library, "purge", ctypes.c_int)(client, ctypes.c_int(_PURGE_QUEUES))


def _check(library: ctypes.CDLL, queue: ctypes.c_void_p, time_word: int) -> None:
    event = ctypes.c_void_p(_function(library, "queue_poll", ctypes.c_void_p)(queue, ctypes.c_int(_WAIT_MS)))
    try:
        message = _function(library, "event_message_next", ctypes.c_void_p)(event) if event.value else None
        if not message:
            raise LibraryError("the message of the probe was not given back")
        # No word behind the expected ones is read: with another layout, the struct may end there.
        raw = ctypes.string_at(message, (time_word + 1) * _WORD)
        words = [int.from_bytes(raw[at : at + _WORD], "little") for at in range(0, len(raw), _WORD)]
        _, _, partition, value, value_size, key, key_size, *_ = words
        found = {
            "partition": partition & 0xFFFF_FFFF == _PARTITION_NUMBER,
            "value": value_size == len(_VALUE_BYTES) and ctypes.string_at(value, value_size) == _VALUE_BYTES,
            "key": key_size == len(_KEY_BYTES) and ctypes.string_at(key, key_size) == _KEY_BYTES,
            "time": words[time_word] == _TIMESTAMP,
        }
        wrong = [name for name, right in found.items() if not right]
        if wrong:
            raise LibraryError(f"a message has its {' and '.join(wrong)} elsewhere")
    finally:
        if event.value:
            _function(library, "event_destroy", None)(event)


def _function(library: ctypes.CDLL, name: str, result: Any) -> Any:  # noqa: ANN401  types of ctypes
    function = getattr(library, f"rd_kafka_{name}")
    function.restype = result
    return function
