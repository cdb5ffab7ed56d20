"""Define paho's client with four faults fixed, and configured for a source.

- At QoS 2, paho answers PUBREC at once, which makes the broker forget the message, and hands the message on later, from
  memory: a killed process loses it, even with ``manual_ack``. Here the message is handed on when it arrives, PUBREC is
  sent by ``acknowledge``, and PUBCOMP when the broker asks (MQTT 5, 4.3.3: initiate onward delivery first).
- A failed TLS handshake closes its socket; paho leaves it open. And the name in the certificate can be given.
- A client that was given up while it was connecting sends no CONNECT: that would take the session from the next client.
- A message with properties that paho does not accept (it refuses U+FEFF, which MQTT 5 allows) ends paho's connection,
  and is sent again on the next one, forever. Here it is handed on: with its properties, or marked as undecodable.

Owns one connection and no thread. Only the thread that drives it may call it, except ``give_up``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import MQTTException, Properties, VariableByteIntegers  # type: ignore[attr-defined]
from paho.mqtt.subscribeoptions import SubscribeOptions

from receiver_runtime.sources.fields.tls_context import client_context

if TYPE_CHECKING:
    import socket
    import ssl

    from forebay_contrib.mqtt.declaration import Mqtt

# The methods that we replace, and the fields that we read. If a newer paho named them differently, its own handling of
# QoS 2 would silently apply.
_METHODS = (
    "_handle_on_message",
    "_handle_publish",
    "_handle_pubrel",
    "_send_connect",
    "_send_pubrec",
    "_ssl_wrap_socket",
)
_FIELDS = ("_in_message_mutex", "_in_messages", "_in_packet", "_ssl_context")
_ONCE = 1  # QoS 1
_TWICE = 2  # QoS 2, acknowledged in two steps
# What paho raises for a packet that it can't decode.
_MALFORMED = (MQTTException, ValueError, LookupError, struct.error)
# The types of properties that are text, with their number of strings.
_STRINGS = {"UTF-8 Encoded String": 1, "UTF-8 String Pair": 2}
# Retain handling: retained messages are sent for a new subscription, not at every connection.
_IF_NEW = 1


class MqttGivenUpError(Exception):
    """Connecting was given up: the receiver was stopped meanwhile."""


class UndecodableMessage(MQTTMessage):
    """Hold a message with properties that can't be decoded; it has no properties here."""


class TolerantProperties(Properties):
    """Properties with any text in their strings: the broker checks which text senders may put there."""

    def readProperty(self, buffer: bytes, type: int, propslen: int) -> tuple[Any, int]:  # noqa: A002, N802  as its parent's
        strings = _STRINGS.get(self.types[type])
        if strings is None:
            found: tuple[Any, int] = super().readProperty(buffer, type, propslen)  # type: ignore[no-untyped-call]
            return found
        read: list[str] = []
        at = 0
        for _ in range(strings):
            end = at + 2 + int.from_bytes(buffer[at : at + 2], "big")
            if end > propslen:
                raise ValueError(f"a string up to byte {end} of {propslen}")
            read.append(bytes(buffer[at + 2 : end]).decode())
            at = end
        return (read[0] if strings == 1 else tuple(read)), at


class MqttClient(Client):
    """Paho's client with fixes; see the module."""

    def __init__(self, source: Mqtt, client_id: str) -> None:
        self.is_v5 = source.version == "5"
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if self.is_v5 else MQTTProtocolVersion.MQTTv311,
            clean_session=None if self.is_v5 else source.qos == 0,
            manual_ack=True,
        )
        lacking = [name for name in _METHODS if not hasattr(Client, name)]
        lacking += [name for name in _FIELDS if not hasattr(self, name)]
        if lacking:
            message = (
                "This version of paho-mqtt is another inside than the one that is known here: install paho-mqtt 2.1. "
                f"It has no {', '.join(lacking)}."
            )
            raise ImportError(message)
        #: The number of messages and releases so far. A caller compares it to see if a read has brought anything.
        self.packets = 0
        self._given_up = False
        self._is_decoded = False
        self._source = source
        self.connect_timeout = source.connect_timeout
        if source.username is not None:
            self.username_pw_set(source.username, None if source.password is None else source.password.resolve())
        if source.tls is not None:
            self.tls_set_context(client_context(source.tls))
        # The loop that drives the client sends packets, not the call that makes them.
        self.on_socket_register_write = _do_nothing

    def open(self) -> None:
        """Connect, and ask for the session; return when CONNECT is sent. Raises OSError, MqttGivenUpError."""
        source = self._source
        properties = None
        if self.is_v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = source.in_flight
            if source.qos:
                properties.SessionExpiryInterval = int(min(source.session_expiry, 2**32 - 1))
        keepalive = int(source.keepalive)
        if self.is_v5:
            clean = source.qos == 0
            self.connect(source.host, source.broker_port, keepalive, clean_start=clean, properties=properties)
        else:
            self.connect(source.host, source.broker_port, keepalive)

    def ask_for_topics(self) -> None:
        """Subscribe to the source's topics."""
        source = self._source
        asked: list[Any]
        if self.is_v5:
            options = SubscribeOptions(qos=source.qos, retainAsPublished=True, retainHandling=_IF_NEW)
            asked = [(topic, options) for topic in source.subscriptions]
        else:
            asked = [(topic, source.qos) for topic in source.subscriptions]
        self.subscribe(asked)

    def acknowledge(self, mid: int, qos: int) -> MQTTErrorCode:
        """Acknowledge a message to the broker; the next ``loop_write`` sends it."""
        return self._send_pubrec(mid, by_hand=True) if qos == _TWICE else self.ack(mid, _ONCE)

    def give_up(self) -> None:
        """Send no CONNECT from now on. Any thread may call this."""
        self._given_up = True

    # -- paho's own names --------------------------------------------------------------------------------------------

    def _send_connect(self, keepalive: int) -> MQTTErrorCode:
        if self._given_up:
            raise MqttGivenUpError(MqttGivenUpError.__doc__)
        return super()._send_connect(keepalive)

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        tls, context = self._source.tls, self._ssl_context
        assert tls is not None
        assert context is not None
        name = tls.server_hostname or self._source.host
        connection = context.wrap_socket(tcp_sock, server_hostname=name, do_handshake_on_connect=False)
        try:
            connection.settimeout(self._source.connect_timeout)
            connection.do_handshake()
        except BaseException:
            connection.close()
            raise
        return connection

    def _handle_on_message(self, message: MQTTMessage) -> None:
        self._is_decoded = True
        super()._handle_on_message(message)

    def _handle_publish(self) -> MQTTErrorCode:
        self.packets += 1
        self._is_decoded = False
        try:
            answer = super()._handle_publish()
        except _MALFORMED:
            if self._is_decoded or not self.is_v5:
                raise
            self._handle_on_message(decoded(self._in_packet["command"], bytes(self._in_packet["packet"])))
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        with self._in_message_mutex:
            # Paho keeps messages of QoS 2 until PUBREL.
            kept, self._in_messages = list(self._in_messages.values()), type(self._in_messages)()
        for message in kept:
            self._handle_on_message(message)
        return answer

    def _send_pubrec(self, mid: int, *, by_hand: bool = False) -> MQTTErrorCode:
        return super()._send_pubrec(mid) if by_hand else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubrel(self) -> MQTTErrorCode:
        self.packets += 1
        mid = int.from_bytes(self._in_packet["packet"][:2], "big")
        super()._handle_pubrel()
        self.on_release(mid)
        # Answer also an id that we don't know: another process has registered that message.
        return self.ack(mid, _TWICE)

    def on_release(self, mid: int) -> None:
        """Note that the broker has forgotten a message of QoS 2, and may use its id again. The owner replaces this."""


def decoded(command: int, packet: bytes) -> MQTTMessage:
    """Decode a PUBLISH of MQTT 5, whatever is in its properties. Raises ValueError if they don't end within it."""
    qos = command >> 1 & 3
    topic_end = 2 + int.from_bytes(packet[:2], "big")
    properties_at = topic_end + (2 if qos else 0)
    length, width = VariableByteIntegers.decode(packet[properties_at:])  # type: ignore[no-untyped-call]
    end = properties_at + width + length
    if end > len(packet):
        raise ValueError(f"a PUBLISH of {len(packet)} bytes with properties up to its byte {end}")
    properties: TolerantProperties | None = TolerantProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    kind = MQTTMessage
    try:
        properties.unpack(packet[properties_at:end])  # type: ignore[union-attr]
    except _MALFORMED:
        properties, kind = None, UndecodableMessage
    message = kind(int.from_bytes(packet[topic_end:properties_at], "big"), packet[2:topic_end])
    message.dup, message.qos, message.retain = bool(command & 8), qos, bool(command & 1)
    message.properties = properties
    message.payload = packet[end:]
    return message


def _do_nothing(*_: object) -> None:
    """Do nothing: a callback for ``on_socket_register_write``."""
