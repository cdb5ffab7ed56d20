"""Fetch records as columns, through the C interface of the librdkafka that the client package contains.

The package makes a Python object for each record, and needs a call for each of its fields; here a batch's fields are
gathered at once. Owns one librdkafka client, which joins no group: it fetches the partitions that it is given, from
the positions that it is given. Knows no driver log.

This relies only on the functions and the struct `rd_kafka_message_t` in librdkafka's public header, and, for exactly
the releases in ``_PRIVATE_LAYOUTS`` on 64-bit Linux, on the place of a record's time and of its headers' size behind
that struct. ``layout_probe`` compares a message at the start, and some rows of each batch are compared with the results
of the public functions. For any other release or layout ``open_library`` warns and returns None, at any later
difference ``LibraryError`` is raised, and records are read as objects.

A message's memory is read only before the message is given back, and it is given back once; columns are copies.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, files
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import structlog

from receiver_runtime.receivers.kafka.layout_probe import LibraryError, probe_layout
from receiver_runtime.receivers.kafka.records import (
    HEADERS,
    BadRecord,
    Records,
    ends_of,
    headers_column,
    make_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from receiver_runtime.receivers.kafka.partition_key import Key


_log = structlog.get_logger(__name__)

_WORD: Final = 8
# rd_kafka_message_t in words: error, topic, partition, value and its size, key and its size, offset, private.
_ERROR, _TOPIC, _PARTITION, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET = range(8)
_CONSUMER = 1  # RD_KAFKA_CONSUMER
_NO_ENTRY = -156  # RD_KAFKA_RESP_ERR__NOENT: the record has no headers
_DESTROY_AT_ONCE = 8  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE: there is no group to leave
_TEXT_BYTES = 512  # room for librdkafka's error messages
# Bytes: Arrow keeps values up to this size in the view itself.
_INLINE_BYTES = 12
_SEGMENT_BITS = 30  # an Arrow view holds 32-bit offsets: memory is addressed in segments of 1 GiB
# Bytes: without headers a record has at most their count (0), in one byte.
_NO_HEADERS_BYTES = 1


@dataclass(frozen=True, slots=True)
class _Layout:
    """Give the places of the fields behind the public struct, in words from its beginning."""

    time: int
    headers_bytes: int

    @property
    def words(self) -> int:
        return max(self.time, self.headers_bytes) + 1


#: Layouts by `rd_kafka_version()`. A test compares columns with objects; add a release when the test passes with it.
_PRIVATE_LAYOUTS: Final[Mapping[int, _Layout]] = {
    0x020A01FF: _Layout(time=12, headers_bytes=15),
    0x020D02FF: _Layout(time=12, headers_bytes=15),
    0x020F00FF: _Layout(time=12, headers_bytes=15),
    0x021000FF: _Layout(time=12, headers_bytes=15),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Hold an error that the client returns in place of a record, or its own error, which has an empty ``topic``."""

    topic: str
    partition: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class FetchedColumns:
    """Hold the result of one fetch, in order, mostly one batch. ``errors`` are the client's own, of no partition."""

    records: Sequence[Records]
    bad: Sequence[BadRecord]
    faults: Sequence[Fault]
    errors: Sequence[Fault] = ()


class _ColumnPlace(ctypes.Structure):
    """Declare the first fields of rd_kafka_topic_partition_t, as many as are read."""

    _fields_ = (("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", ctypes.c_int64))


#: The arguments are the client, the error's code, its text, and our own pointer, which is not used.
_ErrorCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class _Functions:
    """Bind the used functions of the library, with their types."""

    def __init__(self, path: str) -> None:
        pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
        # Calls by `free` release the interpreter's lock, because they may wait. Calls by `quick` keep the lock: they
        # are made for each message.
        free = ctypes.CDLL(path)
        quick = ctypes.PyDLL(path)

        def of(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:  # noqa: ANN401  types of ctypes
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            return function  # type: ignore[no-any-return]

        self.version = of(free, "version", ctypes.c_int)
        self.conf_new = of(free, "conf_new", pointer)
        self.conf_set = of(free, "conf_set", ctypes.c_int, pointer, text, text, text, size)
        self.conf_set_log_cb = of(free, "conf_set_log_cb", None, pointer, pointer)
        self.conf_set_error_cb = of(free, "conf_set_error_cb", None, pointer, _ErrorCallback)
        self.conf_destroy = of(free, "conf_destroy", None, pointer)
        self.new = of(free, "new", pointer, ctypes.c_int, pointer, text, size)
        self.poll_set_consumer = of(free, "poll_set_consumer", ctypes.c_int, pointer)
        self.queue_get_consumer = of(free, "queue_get_consumer", pointer, pointer)
        self.queue_length = of(free, "queue_length", size, pointer)
        self.queue_destroy = of(free, "queue_destroy", None, pointer)
        self.destroy_flags = of(free, "destroy_flags", None, pointer, ctypes.c_int)
        self.list_new = of(free, "topic_partition_list_new", pointer, ctypes.c_int)
        self.list_add = of(
            free, "topic_partition_list_add", ctypes.POINTER(_ColumnPlace), pointer, text, ctypes.c_int32
        )
        self.list_set_offset = of(
            free,
            "topic_partition_list_set_offset",
            ctypes.c_int,
            pointer,
            text,
            ctypes.c_int32,
            ctypes.c_int64,
        )
        self.list_destroy = of(free, "topic_partition_list_destroy", None, pointer)
        self.incremental_assign = of(free, "incremental_assign", pointer, pointer, pointer)
        self.incremental_unassign = of(free, "incremental_unassign", pointer, pointer, pointer)
        self.get_watermark_offsets = of(
            free,
            "get_watermark_offsets",
            ctypes.c_int,
            pointer,
            text,
            ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int64),
        )
        self.position = of(free, "position", ctypes.c_int, pointer, pointer)
        self.error_string = of(free, "error_string", text, pointer)
        self.error_destroy = of(free, "error_destroy", None, pointer)
        self.consume_batch_queue = of(
            free, "consume_batch_queue", ctypes.c_ssize_t, pointer, ctypes.c_int, pointer, size
        )
        self.message_timestamp = of(quick, "message_timestamp", ctypes.c_int64, pointer, pointer)
        self.message_headers = of(quick, "message_headers", ctypes.c_int, pointer, pointer)
        self.header_get_all = of(quick, "header_get_all", ctypes.c_int, pointer, size, pointer, pointer, pointer)
        self.message_errstr = of(quick, "message_errstr", text, pointer)
        self.message_destroy = of(quick, "message_destroy", None, pointer)
        self.topic_name = of(quick, "topic_name", text, pointer)


@dataclass(frozen=True, slots=True)
class Library:
    """Hold a librdkafka whose layout is known."""

    functions: _Functions
    layout: _Layout


def open_library() -> Library | None:
    """Return the client package's own librdkafka; None, with a warning, if there is none, or it is unknown here.

    Its release must be in ``_PRIVATE_LAYOUTS``, and a message that it makes must have its fields at their places.
    """
    try:
        return _find_library()
    except (LibraryError, OSError, AttributeError) as error:
        _log.warning("records are read as objects, which is slower", why=str(error))
        return None


def _find_library() -> Library:
    """Return the library. Raises LibraryError, OSError and AttributeError."""
    if sys.platform != "linux" or sys.maxsize <= 2**32 or sys.byteorder != "little":
        raise LibraryError("the places of librdkafka's fields are known for 64-bit Linux only")
    try:
        paths = [
            str(one.locate())
            for one in files("confluent-kafka") or ()
            if one.name.startswith("librdkafka") and ".so" in one.name
        ]
    except PackageNotFoundError as error:
        raise LibraryError("the package confluent-kafka is not installed") from error
    if len(paths) != 1:
        raise LibraryError(f"the package confluent-kafka has {len(paths)} files of librdkafka, and one is expected")
    functions = _Functions(paths[0])
    version = functions.version()
    layout = _PRIVATE_LAYOUTS.get(version)
    if layout is None:
        raise LibraryError(f"release {version:#010x} of librdkafka is not known here")
    probe_layout(paths[0], time_word=layout.time)
    return Library(functions, layout)


class _Messages:
    """Read messages of the library, before they are given back, as columns."""

    def __init__(self, library: Library) -> None:
        self._calls = library.functions
        self._layout = library.layout

    def columns(self, messages: NDArray[np.int64], addresses: Sequence[int]) -> FetchedColumns:
        """Return the records of messages, by their addresses. Raises LibraryError if their layout is another."""
        words = _gathered(messages, self._layout.words)
        failed = words[_ERROR].astype(np.int32) != 0
        faults: list[Fault] = []
        if failed.any():
            faults = [self._fault(addresses[row], words[:, row]) for row in np.flatnonzero(failed).tolist()]
            messages, words = messages[~failed], words[:, ~failed]
            addresses = messages.tolist()
        if not len(messages):
            return FetchedColumns((), (), faults)
        self._compare(addresses, words)
        found, unreadable = self._headers(addresses, words[self._layout.headers_bytes].astype(np.int32))
        bad: list[BadRecord] = []
        if unreadable:
            bad = [self._bad(words[:, row]) for row in unreadable]
            keep = np.ones(len(messages), np.bool_)
            keep[unreadable] = False
            words = words[:, keep]
            found = {int(row - np.count_nonzero(~keep[:row])): of_one for row, of_one in found.items()}
        batches: list[Records] = []
        first = 0
        headers = words[self._layout.headers_bytes].astype(np.int32)
        for end in ends_of(words[_VALUE_SIZE] + words[_KEY_SIZE] + headers):
            of_batch = {row - first: of_one for row, of_one in found.items() if first <= row < end}
            batches.append(self._batch(words[:, first:end], of_batch))
            first = end
        return FetchedColumns(batches, bad, faults)

    def _batch(self, words: NDArray[np.int64], found: dict[int, list[tuple[str, bytes | None]]]) -> Records:
        rows = words.shape[1]
        topics, codes = _distinct(words[_TOPIC])
        return make_records(
            keys=_binary(words[_KEY], words[_KEY_SIZE]),
            values=_binary(words[_VALUE], words[_VALUE_SIZE]),
            names=[self._calls.topic_name(topic).decode() for topic in topics.tolist()],
            codes=codes,
            partitions=words[_PARTITION].astype(np.int32),
            offsets=words[_OFFSET].copy(),
            times=words[self._layout.time],
            headers=headers_column([found.get(row) for row in range(rows)]) if found else pa.nulls(rows, HEADERS),
        )

    def _fault(self, address: int, words: NDArray[np.int64]) -> Fault:
        topic = self._calls.topic_name(int(words[_TOPIC])).decode() if words[_TOPIC] else ""
        said = self._calls.message_errstr(address) or b""
        error, partition = words[[_ERROR, _PARTITION]].astype(np.int32).tolist()
        return Fault(topic, partition, error, said.decode(errors="replace"))

    def _bad(self, words: NDArray[np.int64]) -> BadRecord:
        value = ctypes.string_at(int(words[_VALUE]), int(words[_VALUE_SIZE])) if words[_VALUE] else b""
        topic = self._calls.topic_name(int(words[_TOPIC])).decode()
        return BadRecord(topic, int(words[_PARTITION].astype(np.int32)), int(words[_OFFSET]), value)

    def _compare(self, addresses: Sequence[int], words: NDArray[np.int64]) -> None:
        """Compare some rows with the results of the public functions. Raises LibraryError at a difference."""
        out = ctypes.c_void_p()
        for row in {0, len(addresses) // 2, len(addresses) - 1}:
            without = int(words[self._layout.headers_bytes, row].astype(np.int32)) <= _NO_HEADERS_BYTES
            answer = self._calls.message_headers(addresses[row], ctypes.byref(out))
            if self._calls.message_timestamp(addresses[row], None) != int(
                words[self._layout.time, row]
            ) or without is not (answer == _NO_ENTRY):
                raise LibraryError(LibraryError.__doc__)

    def _headers(
        self, addresses: Sequence[int], sizes: NDArray[np.int32]
    ) -> tuple[dict[int, list[tuple[str, bytes | None]]], list[int]]:
        """Return headers by row, for rows that have some; and the rows in which a name is no text."""
        found: dict[int, list[tuple[str, bytes | None]]] = {}
        unreadable: list[int] = []
        for row in np.flatnonzero(sizes > _NO_HEADERS_BYTES).tolist():
            try:
                of_one = self._headers_of(addresses[row])
            except UnicodeDecodeError:
                unreadable.append(row)
            else:
                found[row] = of_one
        return found, unreadable

    def _headers_of(self, address: int) -> list[tuple[str, bytes | None]]:
        headers, name, value, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        found: list[tuple[str, bytes | None]] = []
        if self._calls.message_headers(address, ctypes.byref(headers)):
            return found
        into = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
        while not self._calls.header_get_all(headers, len(found), *into):
            data = None if value.value is None else ctypes.string_at(value.value, size.value)
            found.append(((name.value or b"").decode(), data))
        return found


class ColumnFetcher:
    """Fetch columns; see the module. Only one thread at a time may use it; call ``close`` once.

    Args:
        configuration: as for a consumer of the same group, without callbacks.

    Raises:
        LibraryError: the library does not accept the configuration.
    """

    def __init__(self, library: Library, configuration: Mapping[str, str | float | bool]) -> None:
        self._calls = library.functions
        self._messages = _Messages(library)
        self._assigned: set[Key] = set()
        self._buffer = np.zeros(0, np.int64)
        self._errors: list[Fault] = []
        # Called only within `fetch`. Referenced here because the library holds only its address.
        self._note_error = _ErrorCallback(self._on_error)
        said = ctypes.create_string_buffer(_TEXT_BYTES)
        settings = self._calls.conf_new()
        for name, value in configuration.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._calls.conf_set(settings, name.encode(), text.encode(), said, _TEXT_BYTES):
                self._calls.conf_destroy(settings)
                raise LibraryError(f"option {name}: {LibraryError.__doc__}")
        # Log nothing: the group's consumer logs the same.
        self._calls.conf_set_log_cb(settings, None)
        self._calls.conf_set_error_cb(settings, self._note_error)
        self._client = self._calls.new(_CONSUMER, settings, said, _TEXT_BYTES)
        if not self._client:
            self._calls.conf_destroy(settings)
            raise LibraryError(LibraryError.__doc__)
        self._calls.poll_set_consumer(self._client)
        self._queue = self._calls.queue_get_consumer(self._client)

    def close(self) -> None:
        """Release everything."""
        self._calls.queue_destroy(self._queue)
        self._calls.destroy_flags(self._client, _DESTROY_AT_ONCE)

    def read_from(self, positions: Mapping[Key, int]) -> None:
        """Fetch these partitions from their positions; records of them in the queue are dropped. Others stay."""
        self.leave(positions)
        self._call_with_list(self._calls.incremental_assign, positions)
        self._assigned.update(positions)

    def leave(self, partitions: Mapping[Key, int] | Sequence[Key]) -> None:
        """Stop fetching these partitions, if they were fetched; records of them in the queue are dropped."""
        going = dict.fromkeys((key for key in partitions if key in self._assigned), 0)
        if going:
            self._call_with_list(self._calls.incremental_unassign, going)
            self._assigned.difference_update(going)

    def fetch(self, most: int, seconds: float) -> FetchedColumns:
        """Return the records that come until there are ``most`` of them, or ``seconds`` are over."""
        if len(self._buffer) < most:
            self._buffer = np.zeros(most, np.int64)
        got = self._calls.consume_batch_queue(self._queue, int(seconds * 1000), self._buffer.ctypes.data, most)
        errors, self._errors = self._errors, []
        if got <= 0:
            return FetchedColumns((), (), (), errors)
        messages = self._buffer[:got]
        addresses = messages.tolist()
        try:
            found = self._messages.columns(messages, addresses)
        finally:
            deque(map(self._calls.message_destroy, addresses), maxlen=0)
        return replace(found, errors=errors) if errors else found

    @property
    def fetched(self) -> int:
        """Return how many records wait in the client's queue."""
        return int(self._calls.queue_length(self._queue))

    def ends(self, partitions: Iterable[Key]) -> dict[Key, int]:
        """Return the high watermark that the broker said with its last answer to a fetch of each partition.

        A partition without an answer is left out. Asks no broker.
        """
        low, high = ctypes.c_int64(), ctypes.c_int64()
        found: dict[Key, int] = {}
        for key in partitions:
            topic, number = key
            failed = self._calls.get_watermark_offsets(
                self._client, topic.encode(), number, ctypes.byref(low), ctypes.byref(high)
            )
            if not failed and high.value >= 0:
                found[key] = high.value
        return found

    def passed(self, partitions: Iterable[Key]) -> dict[Key, int]:
        """Return the offset after what ``fetch`` has read of each partition, skipped transaction markers included.

        A partition of which nothing came since ``read_from`` is left out.
        """
        keys = [key for key in partitions if key in self._assigned]
        places = self._calls.list_new(len(keys))
        try:
            found = [self._calls.list_add(places, topic.encode(), number) for topic, number in keys]
            if self._calls.position(self._client, places):
                return {}
            offsets = [int(place.contents.offset) for place in found]
        finally:
            self._calls.list_destroy(places)
        return {key: offset for key, offset in zip(keys, offsets, strict=True) if offset >= 0}

    def _on_error(self, _: int, code: int, said: bytes | None, __: int) -> None:
        self._errors.append(Fault("", 0, code, (said or b"").decode(errors="replace")))

    def _call_with_list(self, function: Callable[..., Any], positions: Mapping[Key, int]) -> None:
        partitions = self._calls.list_new(len(positions))
        try:
            for (topic, number), position in positions.items():
                self._calls.list_add(partitions, topic.encode(), number)
                self._calls.list_set_offset(partitions, topic.encode(), number, position)
            error = function(self._client, partitions)
        finally:
            self._calls.list_destroy(partitions)
        if error:
            said = self._calls.error_string(error)
            self._calls.error_destroy(error)
            raise LibraryError(f"{(said or b'').decode(errors='replace')}: {LibraryError.__doc__}")


def _memory(first: int, end: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a view of this process's memory. Only the known pieces in it are read, never what lies between them."""
    return np.frombuffer(pa.foreign_buffer(first, end - first), dtype)


def _gathered(messages: NDArray[np.int64], words: int) -> NDArray[np.int64]:
    """Return the words of each message: one row per word, one column per message."""
    first = int(messages.min())
    memory = _memory(first, int(messages.max()) + words * _WORD, np.int64)
    return memory[((messages - first) // _WORD)[None, :] + np.arange(words)[:, None]]  # type: ignore[no-any-return]


def _distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct numbers, and each number's index among them. Mostly there is one: then nothing is sorted."""
    if (numbers == numbers[0]).all():
        return numbers[:1], np.zeros(len(numbers), np.int32)
    found, which = np.unique(numbers, return_inverse=True)
    return found, which.astype(np.int32)


def _binary(addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """Return a copy of pieces of memory as one column; null where the address is 0."""
    rows = len(addresses)
    valid = addresses != 0
    if not valid.any():
        return pa.nulls(rows, pa.binary())
    views = np.zeros((rows, 4), np.int32)
    views[:, 0] = np.where(valid, sizes, 0)
    buffers: list[pa.Buffer] = []
    long = valid & (sizes > _INLINE_BYTES)
    if long.any():
        segments, which = _distinct(addresses[long] >> _SEGMENT_BITS)
        buffers = [pa.foreign_buffer(int(segment) << _SEGMENT_BITS, 2**31 - 1) for segment in segments]
        views[long, 2] = which
        views[long, 3] = addresses[long] & (2**_SEGMENT_BITS - 1)
    short = valid & (sizes <= _INLINE_BYTES) & (sizes > 0)
    if short.any():
        at, size = addresses[short], sizes[short]
        first = int(at.min())
        memory = _memory(first, int((at + size).max()), np.uint8)
        column = np.arange(_INLINE_BYTES)
        data = memory[(at - first)[:, None] + np.minimum(column, (size - 1)[:, None])]
        data[column >= size[:, None]] = 0
        views.view(np.uint8)[short, 4:] = data
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    column_of_views = pa.Array.from_buffers(pa.binary_view(), rows, [mask, pa.py_buffer(views), *buffers])
    return column_of_views.cast(pa.binary())
