"""Receive the messages of a WebSocket: one thread reads all that wait, and hands them on as one Arrow batch."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from forebay.receiver import DeadLetter, DeadLetterReason, ReadingThread, Receiver, RunReceiver
from forebay_websocket.declaration import WebSocket

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = pa.schema([("value", pa.binary()), ("is_text", pa.bool_())])
# What is handed on at once, at most; and how long to wait for more, in seconds.
_MOST_BYTES = 4 * 2**20
_MOST_MESSAGES = 10_000
_GATHER_SECONDS = 0.01
# How soon a stop is noticed, in seconds; and how long a stop goes on reading from a server that never pauses.
_IDLE_SECONDS = 0.1
_DRAIN_SECONDS = 1.0
# The library ends the connection at a message that is larger than this, before it takes more memory.
_LARGEST_BYTES = 2**29
# What is kept of a message that is too large.
_LETTER_BYTES = 2**16


class WebSocketReceiver(RunReceiver):
    """Receive the messages of a ``WebSocket``. At most once."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = WebSocket.columns

    def __init__(self, source: WebSocket) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> _Reader:
        """Make the reader of one start."""
        return _Reader(self, self._source)


class _Reader(ReadingThread):
    def __init__(self, receiver: Receiver, source: WebSocket) -> None:
        super().__init__(receiver, name=f"websocket {source.address}")
        self._source = source
        self._connection: ClientConnection | None = None

    def _read_until_stopped(self) -> None:
        source = self._source
        headers = {} if source.token is None else {"Authorization": f"Bearer {source.token.resolve()}"}
        try:
            self._connection = connect(
                source.url,
                additional_headers=headers,
                open_timeout=source.connect_timeout,
                max_size=_LARGEST_BYTES,
            )
            for greeting in source.greetings:
                self._connection.send(greeting)
            self._receiver.report_connected(source.address)
            while not self._is_stopping():
                self._hand_on(self._take(_IDLE_SECONDS))
            self._drain()
        except (OSError, WebSocketException) as error:
            self._restart(f"the connection to {source.address} ended", error)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _drain(self) -> None:
        """Hand on what the library holds: it has read it from the network, so the server believes that it came."""
        until = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < until and (messages := self._take(_GATHER_SECONDS)):
            self._hand_on(messages)

    def _take(self, wait: float) -> Sequence[str | bytes]:
        """Return all messages that wait, up to a bound; wait at most so long for the first one."""
        assert self._connection is not None
        messages: list[str | bytes] = []
        size = 0
        with suppress(TimeoutError):
            while size < _MOST_BYTES and len(messages) < _MOST_MESSAGES:
                try:
                    message = self._connection.recv(wait)
                except ConnectionClosed:
                    if not messages:
                        raise
                    break
                messages.append(message)
                size += len(message)
                wait = _GATHER_SECONDS
        return messages

    def _hand_on(self, messages: Sequence[str | bytes]) -> None:
        values = [message.encode() if isinstance(message, str) else message for message in messages]
        are_text = [isinstance(message, str) for message in messages]
        most = self._source.max_record_bytes
        if any(len(value) > most for value in values):
            # Dead letters first: they are durable when the call returns, and the records are not.
            self._receiver.store_dead_letters([_too_large(value) for value in values if len(value) > most])
            fitting = [len(value) <= most for value in values]
            are_text = [one for one, fits in zip(are_text, fitting, strict=True) if fits]
            values = [one for one, fits in zip(values, fitting, strict=True) if fits]
        if values:
            self._receiver.store_buffered(
                pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), pa.array(are_text)], schema=_SCHEMA)
            )


def _too_large(value: bytes) -> DeadLetter:
    kept = value[:_LETTER_BYTES]
    return DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, kept, left_out=len(value) - len(kept))
