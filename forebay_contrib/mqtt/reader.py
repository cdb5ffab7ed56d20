"""Read one connection's messages into blocks, from an ``on_start`` to its ``on_stop``.

There are two threads. *The connection's thread* reads, acknowledges and keeps the connection alive; it never waits for
the driver log. *The hand-over thread* makes batches of the messages and may wait for as long as needed. Meanwhile
nothing is acknowledged, so the broker stops at its limit of messages in flight, and pings continue.

- A message of QoS 1 or 2 is acknowledged when its block is registered, on the connection on which it arrived last.
- Messages of QoS 0 have no limit in flight, and not every broker keeps the limit of the others. If there is no room,
  reading stops for a while, which slows the sender down by TCP. After that the answers to pings must be read, so
  messages without room are dropped: those of QoS 0 are counted and reported, the others are sent again on a new
  connection, once there is room.
- A lost connection is a restart, with the supervisor's pauses; the broker's session, and ours, are kept.
- That the broker has a session is noted in the driver log: if it has none at a later start, what was published
  meanwhile is lost, and reported. At QoS 0 it never has one.
- At a stop nothing more is read. What was read is handed over, and acknowledged when it is registered.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from forebay_contrib.mqtt.broker_answers import BrokerAnswers
from forebay_contrib.mqtt.client import MqttClient, MqttGivenUpError, UndecodableMessage
from forebay_contrib.mqtt.records import batch_of, keys_of, pieces
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.reporting.source_marks import SourceMarks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from paho.mqtt.client import MQTTMessage

    from forebay_contrib.mqtt.declaration import Mqtt
    from forebay_contrib.mqtt.session import Held, MqttSession
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

# Batches, at most, that are handed over and not registered yet.
_MOST_UNDER_WAY = 8
# Packets, at most, that are read before acknowledgements and pings have their turn.
_PACKETS_A_TURN = 1000
# Bytes of memory that a message takes besides its payload, about.
_MESSAGE_BYTES = 1000
# How long to wait at the end until the broker has taken the last acknowledgements.
_LEAVING_SECONDS = 1.0
# A session has no numbers: its mark says that there was one. At QoS 0 it ends with each connection.
_HAS_SESSION = (0,)

_NOT_STORED = "what came from the MQTT broker could not be stored"
_SENDS_AGAIN = "the MQTT broker sent more than there was room for: it is asked to send that again"


class MqttReader:
    """Read messages; see the module. Call ``start`` and ``stop`` once."""

    def __init__(self, receiver: Receiver, source: Mqtt, session: MqttSession) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._session = session
        self._client_id = f"{source.client_id}-{self._supervisor.receiver_id}"
        self._hand_over = KeyedHandOver(self._supervisor, most_in_flight=_MOST_UNDER_WAY, content="value")
        self._block_bytes = self._supervisor.settings.max_block_bytes
        self._room_bytes = 2 * self._block_bytes
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.settimeout(0)
        self._wake_there.settimeout(0)
        self._reading = threading.Thread(target=self._run, name=f"mqtt {self._client_id}", daemon=True)
        self._storing = threading.Thread(target=self._store, name=f"mqtt {self._client_id} blocks", daemon=True)
        # Guards the messages that are not handed over yet, their size, and the progress of a stop.
        self._changed = threading.Condition()
        self._stopping = False
        self._coming: list[tuple[MQTTMessage, Held | None]] = []
        self._coming_bytes = 0
        self._stored = False
        self._settled = False
        # Only the connection's thread uses these.
        self._client: MqttClient | None = None
        self._connected = False
        self._answers = BrokerAnswers(receiver, source, session, self._client_id)
        self._marks = SourceMarks(self._supervisor.block_path.positions, f"session {self._client_id}")
        self._full_since: float | None = None
        self._dropped = 0
        # `_left_out`: there was no room for messages of QoS 1 or 2. `_sends_again`: now there is room, and the broker
        # sends them again on a new connection.
        self._left_out = False
        self._sends_again = False

    def start(self) -> None:
        """Begin to read; return at once."""
        self._storing.start()
        self._reading.start()

    def stop(self) -> None:
        """End; return when what was read is handed over, and the connection is closed."""
        with self._changed:
            self._stopping = True
            client, connected = self._client, self._connected
            if client is not None:
                client.give_up()
            self._changed.notify_all()
        self._wake()
        self._storing.join()
        self._hand_over.close()
        with self._changed:
            self._settled = True
        self._wake()
        # A connection that is still being opened has read nothing, and closes by itself.
        if connected:
            self._reading.join()

    # -- the connection's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            client = MqttClient(self._source, self._client_id)
            client.on_connect = self._answers.on_connect
            client.on_disconnect = self._answers.on_disconnect
            client.on_subscribe = self._on_subscribe
            client.on_message = self._on_message
            client.on_release = self._session.released  # type: ignore[method-assign]
        except Exception as error:  # noqa: BLE001  a file or a secret that is missing
            self._receiver.restart("the MQTT client could not be made", error)
            self._close()
            return
        with self._changed:
            if self._stopping:
                client.give_up()
            self._client = client
        try:
            # Before there is a connection that could time out.
            if self._marks.read() is not None:
                self._session.note_known()
            client.open()
            answers_until = time.monotonic() + self._source.connect_timeout
            with self._changed:
                self._connected = True
            poller = select.poll()
            poller.register(self._wake_here, select.POLLIN)
            while not self._stopping and not self._sends_again:
                self._turn(client, poller, reads=self._has_room())
                if not self._answers.has_answered:
                    _check_not_late(client, answers_until)
            if self._sends_again:
                self._receiver.restart(_SENDS_AGAIN)
            self._leave(client, poller)
        except MqttGivenUpError:
            pass
        except BaseException as error:  # noqa: BLE001  reported, and started again
            if not self._stopping:
                self._receiver.restart(self._answers.words(connected=self._connected), error)
            else:
                _log.info("the connection could not be left as it should be", error=str(error))
        finally:
            self._close()

    def _turn(self, client: MqttClient, poller: select.poll, *, reads: bool) -> None:
        """Read what has arrived, acknowledge what is due, keep the connection alive; wait briefly for work."""
        connection = client.socket()
        if connection is None:
            raise ConnectionError(
                self._answers.refusal or "Look into the broker's log: the broker ended the connection, or refused it."
            )
        for mid, qos in self._session.due():
            client.acknowledge(mid, qos)
        wanted = (select.POLLIN if reads else 0) | (select.POLLOUT if client.want_write() else 0)
        poller.register(connection.fileno(), wanted)
        # TLS may have decrypted more than was read.
        pending = getattr(connection, "pending", int)() if reads else 0
        seconds = min(1.0, self._source.keepalive / 4) if reads else 0.05
        ready = dict(poller.poll(0 if pending else seconds * 1000))
        if ready.pop(self._wake_here.fileno(), 0):
            self._wake_here.recv(4096)
        if pending or any(events & ~select.POLLOUT for events in ready.values()):
            for _ in range(_PACKETS_A_TURN):
                before = client.packets
                client.loop_read()
                if client.packets == before or not self._has_room():
                    break
        if client.want_write():
            client.loop_write()
        client.loop_misc()

    def _has_room(self) -> bool:
        """Return whether to read. Without room, do not read for half a keepalive; then pings must be answered."""
        if self._coming_bytes < self._room_bytes:
            if self._dropped:
                self._report_dropped()
            self._full_since = None
            self._sends_again = self._left_out
            return not self._sends_again
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since > self._source.keepalive / 2

    def _report_dropped(self) -> None:
        self._receiver.report_error(
            f"{self._dropped} messages of QoS 0 were dropped: blocks could not be registered, and there was no room"
        )
        self._dropped = 0

    def _leave(self, client: MqttClient, poller: select.poll) -> None:
        """Wait until what was read is registered and acknowledged, then disconnect.

        Messages of QoS 1 or 2 that arrive meanwhile are not acknowledged, so the broker sends them again.
        """
        while not self._settled:
            self._turn(client, poller, reads=True)
        deadline = time.monotonic() + _LEAVING_SECONDS
        while self._session.is_answering() and time.monotonic() < deadline:
            self._turn(client, poller, reads=True)
        connection = client.socket()
        if connection is None:
            return
        # paho closes its socket with the last packet. If bytes were unread then, TCP might reset the connection before
        # the broker has read our last acknowledgements. So a second descriptor keeps it open.
        with socket.socket(fileno=os.dup(connection.fileno())) as kept:
            client.disconnect()
            while client.want_write() and client.socket() is not None and time.monotonic() < deadline:
                client.loop_write()
            _read_to_the_end(kept, deadline)

    def _close(self) -> None:
        """Close the socket, whatever happened; the other thread hands over what is left, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._client is not None:
            close_client(self._client)
        if self._dropped:
            self._report_dropped()
        with self._changed:
            self._wake_here.close()
            self._wake_there.close()

    def _wake(self) -> None:
        with self._changed:
            try:
                self._wake_there.send(b"w")
            except OSError:
                # The other thread is woken already, or has ended.
                return

    # -- paho's callbacks, on the connection's thread ----------------------------------------------------------------

    def _on_subscribe(self, *answer: Any) -> None:  # noqa: ANN401  as paho calls it
        self._answers.on_subscribe(*answer)
        with self._changed:
            self._changed.notify_all()

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        size = len(message.payload) + _MESSAGE_BYTES
        with self._changed:
            if self._stopping or self._stored or self._sends_again:
                # No thread would hand it on. It is not acknowledged, so it is sent again.
                return
            if self._coming_bytes + size > self._room_bytes and self._full_since is not None:
                if message.qos:
                    self._left_out = True
                else:
                    self._dropped += 1
                return
            held = None
            if message.qos:
                identity = hash((message._topic, message.payload))  # noqa: SLF001  as it arrived, decoded or not
                held = self._session.arrived(message.mid, message.qos, identity, again=message.dup)
                if held is None:
                    return
            self._coming.append((message, held))
            self._coming_bytes += size
            if len(self._coming) in {1, self._source.in_flight} or self._coming_bytes >= self._block_bytes:
                self._changed.notify_all()

    # -- the hand-over thread ----------------------------------------------------------------------------------------

    def _store(self) -> None:
        taken: Sequence[tuple[MQTTMessage, Held | None]] = ()
        failed: BaseException | None = None
        try:
            self._note_session()
            while taken := self._take():
                self._hand_on(taken)
        except BaseException as error:  # noqa: BLE001  reported, and started again unless the receiver is stopping
            if not self._stopping:
                self._receiver.restart(_NOT_STORED, error)
            failed = error
        with self._changed:
            self._stored = True
            left = [*taken, *self._coming]
            self._changed.notify_all()
        # Messages of these that are in flight nevertheless are stored twice at worst.
        self._session.dropped(held for _, held in left if held is not None)
        self._wake()
        if failed is not None:
            _log.info("what came could not be stored, and is not acknowledged", error=str(failed))

    def _note_session(self) -> None:
        """Note that we were subscribed, as soon as we are: a later start without a session has missed something."""

        def has_session() -> bool:
            return self._answers.is_subscribed or bool(self._coming)

        with self._changed:
            self._changed.wait_for(lambda: self._stopping or has_session())
            if not has_session():
                return
        self._marks.note(_HAS_SESSION)

    def _take(self) -> list[tuple[MQTTMessage, Held | None]]:
        """Return the messages of one block interval; none at the end."""
        with self._changed:
            while not self._coming and not self._stopping:
                self._changed.wait()
            until = time.monotonic() + self._supervisor.settings.block_interval
            while (
                not self._stopping
                and self._coming_bytes < self._block_bytes
                and len(self._coming) < self._source.in_flight
            ):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            taken, self._coming = self._coming, []
            self._coming_bytes = 0
            return taken

    def _hand_on(self, taken: Sequence[tuple[MQTTMessage, Held | None]]) -> None:
        good, letters = [], []
        for place, (message, _) in enumerate(taken):
            reason = _fault(message, self._source.max_record_bytes)
            if reason is None:
                good.append(place)
            else:
                letters.append(DeadLetter(reason, bytes(message.payload)))
        if letters:
            self._receiver.store_dead_letters(letters)
        messages = [taken[place][0] for place in good]
        batch = batch_of(messages)
        keys = keys_of(messages, self._source.key)
        answered = 0
        for first, end in pieces(batch, self._block_bytes):
            # Include the dead letters between them: acknowledgements go out in the order in which messages came.
            through = good[end] if end < len(good) else len(taken)
            part = None if keys is None else keys.slice(first, end - first)
            future = self._hand_over.submit(batch.slice(first, end - first), part)
            future.add_done_callback(partial(self._answered, [held for _, held in taken[answered:through]]))
            answered = through

    def _answered(self, of_it: Sequence[Held | None], future: Future[HandedOver]) -> None:
        """Note that messages are registered, or dropped. Called on the hand-over's thread, in the submits' order."""
        held = [one for one in of_it if one is not None]
        error = future.exception()
        if error is None:
            self._session.registered(held)
            self._wake()
            return
        self._session.dropped(held)
        if not self._stopping:
            # Do not leave it to the next submit to fail: if the broker is at its limit in flight, there is none.
            self._receiver.restart(_NOT_STORED, error)


def _check_not_late(client: MqttClient, until: float) -> None:
    """Raise TimeoutError if the broker should have answered CONNECT by now, and has not ended the connection."""
    if time.monotonic() > until and client.socket() is not None:
        raise TimeoutError(f"it has not answered for {client.connect_timeout:g} s")


def _fault(message: MQTTMessage, max_record_bytes: int) -> DeadLetterReason | None:
    if len(message.payload) > max_record_bytes:
        return DeadLetterReason.RECORD_TOO_LARGE
    if isinstance(message, UndecodableMessage):
        return DeadLetterReason.INVALID_ENCODING
    try:
        message.topic.encode()
    except UnicodeError:
        return DeadLetterReason.INVALID_ENCODING
    return None


def _read_to_the_end(connection: socket.socket, deadline: float) -> None:
    """Read until the broker closes the connection, which it does after it has read everything we sent."""
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    try:
        connection.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0 and poller.poll(left * 1000):
            if not connection.recv(65_536):
                return
    except OSError:
        # The connection is gone.
        return


def close_client(client: MqttClient) -> None:
    """Close the client's socket, whatever state the client is in."""
    connection = client.socket()
    if connection is not None:
        connection.close()
