"""Take the broker's answers to a connection and its subscriptions: paho's callbacks, on the connection's thread.

This module owns why the broker refused or ended the connection. It must never read or acknowledge a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.mqtt.client import MqttClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

    from forebay_contrib.mqtt.declaration import Mqtt
    from forebay_contrib.mqtt.session import MqttSession
    from receiver_runtime.supervisor.receiver import Receiver

# The reason code of MQTT 5 for a session that another connection has taken over.
_TAKEN_OVER = 0x8E


class BrokerAnswers:
    """Hold what the broker answered on one connection. Only the connection's thread uses it."""

    def __init__(self, receiver: Receiver, source: Mqtt, session: MqttSession, client_id: str) -> None:
        self._receiver = receiver
        self._source = source
        self._session = session
        self._client_id = client_id
        #: Why the broker refused or ended the connection; empty if it did not.
        self.refusal = ""
        #: Whether the broker has answered CONNECT.
        self.has_answered = False
        #: Whether the broker has granted the subscriptions, so that it has a session for us.
        self.is_subscribed = False

    def words(self, *, connected: bool) -> str:
        """Return why reading ended; ``connected``: there was a connection."""
        if self.refusal:
            return self.refusal
        return "the connection to the MQTT broker was lost" if connected else "the MQTT broker can't be reached"

    def on_connect(
        self,
        client: Client,
        _: object,
        flags: ConnectFlags,
        reason: ReasonCode,
        __: Properties | None,
    ) -> None:
        """Subscribe, or raise ConnectionError if the broker refused the connection."""
        self.has_answered = True
        if reason.is_failure:
            self.refusal = f"the MQTT broker refused the connection: {reason}"
            raise ConnectionError(self.refusal)
        if self._session.begin(present=flags.session_present):
            why = (
                f"the MQTT broker has lost the session of {self._client_id}"
                if self._source.qos
                else f"at qos=0 the MQTT broker keeps nothing for {self._client_id}"
            )
            # A session has what the broker chose this receiver of a group for; at qos=0 it has nothing.
            what = "what was not acknowledged, or was published" if self._source.qos else "what was published"
            unless = " unless another receiver of the group got it" if self._source.group else ""
            self._receiver.report_error(
                f"{why}: {what} while the receiver was not connected is lost{unless} (a gap of unknown size)"
            )
        assert isinstance(client, MqttClient)
        client.ask_for_topics()

    def on_disconnect(
        self,
        _: object,
        __: object,
        flags: DisconnectFlags,
        reason: ReasonCode,
        ___: Properties | None,
    ) -> None:
        """Note why the broker ended the connection."""
        if flags.is_disconnect_packet_from_server:
            self.refusal = f"the MQTT broker ended the connection: {reason}"
            if reason.value == _TAKEN_OVER:
                self.refusal += f": another client uses the client id {self._client_id}, give each stream its own"

    def on_subscribe(
        self,
        _: object,
        __: object,
        ___: int,
        reasons: Sequence[ReasonCode],
        ____: Properties | None,
    ) -> None:
        """Report what the broker granted; raise ConnectionError if it refused a topic."""
        for topic, reason in zip(self._source.subscriptions, reasons, strict=False):
            if reason.is_failure:
                self.refusal = f"the MQTT broker refused the subscription to {topic!r}: {reason}"
                raise ConnectionError(self.refusal)
            if reason.value < self._source.qos:
                self._receiver.report_error(
                    f"the MQTT broker grants QoS {reason.value} for {topic!r} where {self._source.qos} was asked for"
                )
        self.is_subscribed = True
        self._receiver.report_connected(self._source.address)
