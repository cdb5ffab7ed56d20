"""The kinds of source. Importing this loads no broker's client."""

from __future__ import annotations

from receiver_runtime.sources.custom import CustomSource
from receiver_runtime.sources.kafka import Kafka
from receiver_runtime.sources.raw_socket import RawSocket
from receiver_runtime.sources.socket_text import SocketText
from receiver_runtime.sources.tcp import Tls

__all__ = ["CustomSource", "Kafka", "RawSocket", "SocketText", "Tls"]
