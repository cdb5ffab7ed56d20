"""Define the receiver of an ``Mqtt`` source. Importing this needs the client; the registry does it to make a receiver.

Owns the session, which outlives connections, and the reader of each ``on_start``, which owns a connection and threads.
"""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.mqtt.session import MqttSession
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from forebay_contrib.mqtt.reader import MqttReader
except ModuleNotFoundError as error:
    raise missing_client(error, "mqtt", "paho-mqtt", "mqtt", "paho") from error


class MqttReceiver(RunReceiver):
    """Receives messages of QoS 1 and 2, acknowledged when registered, or of QoS 0: at most once. See ``Mqtt``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Mqtt.columns

    def __init__(self, source: Mqtt) -> None:
        super().__init__()
        self._source = source
        self._session = MqttSession()

    def make_run(self) -> MqttReader:
        """Return a reader. Its ``stop`` returns when what was read is handed on, and the connection is closed."""
        return MqttReader(self, self._source, self._session)
