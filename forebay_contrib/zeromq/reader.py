"""Reads one socket's messages into blocks, from an ``on_start`` to its ``on_stop``, on one thread.

All messages that wait are read in one go and become one Arrow batch; after a few the thread pauses for a moment, in
which the library gathers more. While the block generator takes no more, the thread waits in it and reads nothing: the
library holds messages up to the high-water mark and then stops reading from the network, so that senders' buffers fill.

At most once. At a stop the thread reads until no message waits, for a bounded time, and hands on what it read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from forebay_contrib.zeromq.client import ZeroMQClient
from forebay_contrib.zeromq.records import cut
from receiver_runtime.receivers.reading_thread import ReadingThread
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from forebay_contrib.zeromq.declaration import ZeroMQ
    from receiver_runtime.supervisor.receiver import Receiver

# What is read before it is handed on, at most.
_READ_BYTES = 4 * 2**20
_READ_MESSAGES = 10_000
# After fewer messages than this, wait before reading again, so that a slow sender's do not come one by one.
_LITTLE_MESSAGES = 100
_PAUSE_MILLISECONDS = 10
# At a stop: how long nothing must have come, and how long to read at most, for senders that never pause.
_QUIET_MILLISECONDS = 10
_LEAVING_SECONDS = 1.0


class ZeroMQReader(ReadingThread):
    """Read from one start to one stop; see the module."""

    def __init__(self, receiver: Receiver, source: ZeroMQ) -> None:
        super().__init__(receiver, name=f"zeromq {source.address}")
        self._source = source
        # The thread's own: a socket belongs to the thread that opened it.
        self._client: ZeroMQClient | None = None

    def _read_until_stopped(self) -> None:
        client = self._client = ZeroMQClient(self._source)
        try:
            where = client.open()
        except (zmq.ZMQError, SecretError) as error:
            self._restart(f"the ZeroMQ socket for {self._source.address} could not be opened", error)
            return
        if self._source.bind:
            self._receiver.report_listening(where)
        self._poll(client)
        self._read_what_is_left(client)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _poll(self, client: ZeroMQClient) -> None:
        everything, wake = zmq.Poller(), zmq.Poller()
        everything.register(client.socket, zmq.POLLIN)
        everything.register(client.monitor, zmq.POLLIN)
        for one in (everything, wake):
            one.register(self._wake_read, zmq.POLLIN)
        # With a low mark the library holds few messages even of a fast sender: that is no reason to wait.
        little = min(_LITTLE_MESSAGES, self._source.high_water_mark)
        while not self._is_stopping():
            ready = {source for source, _ in everything.poll(client.handshake_milliseconds)}
            if client.monitor in ready or client.handshake_milliseconds == 0:
                self._report(client)
            if client.socket in ready and self._read(client) < little:
                wake.poll(_PAUSE_MILLISECONDS)

    def _read_what_is_left(self, client: ZeroMQClient) -> None:
        left = _LEAVING_SECONDS
        while left > 0:
            # Only reading is bounded: handing on may have to wait for the driver log.
            began = time.monotonic()
            if not client.socket.poll(_QUIET_MILLISECONDS):
                return
            messages = self._take(client)
            left -= time.monotonic() - began
            self._hand_on(messages)

    def _read(self, client: ZeroMQClient) -> int:
        """Hand on waiting messages, up to a bound; return how many."""
        messages = self._take(client)
        self._hand_on(messages)
        return len(messages)

    def _take(self, client: ZeroMQClient) -> list[list[bytes]]:
        messages: list[list[bytes]] = []
        nbytes = 0
        while nbytes < _READ_BYTES and len(messages) < _READ_MESSAGES and (frames := client.receive()) is not None:
            messages.append(frames)
            nbytes += sum(map(len, frames))
        return messages

    def _hand_on(self, messages: list[list[bytes]]) -> None:
        found = cut(messages, has_topics=self._source.socket == "sub", max_record_bytes=self._source.max_record_bytes)
        # Dead letters first: they are durable on return, and the records are not.
        if found.dead_letters:
            self._receiver.store_dead_letters(found.dead_letters)
        if found.records is not None:
            self._receiver.store_buffered(found.records)

    def _report(self, client: ZeroMQClient) -> None:
        for endpoint, fault in client.connection_events():
            if fault is None:
                self._receiver.report_connected(endpoint)
            else:
                self._receiver.report_error(fault)
            # What fails where it listens is one of its senders. The library names an endpoint otherwise once its host
            # name is resolved: only that all are connected can be told.
            if not self._source.bind and (fault is not None or client.is_connected_to_all):
                self._receiver.report_degraded("senders", fault)
