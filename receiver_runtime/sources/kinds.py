"""Every kind of source that Forebay has, and the only place that lists them: a new one is an import and a name here.

``forebay.sources`` shows users these, ``source_registry`` reads declarations by them, ``receiver_registry`` makes their
receivers, and tests walk them: docs, extras, the command line.
"""

from __future__ import annotations

from receiver_runtime.sources.amqp import Amqp
from receiver_runtime.sources.custom import CustomSource
from receiver_runtime.sources.files import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.sources.http import Http
from receiver_runtime.sources.kafka import Kafka
from receiver_runtime.sources.mqtt import Mqtt
from receiver_runtime.sources.nats_jetstream import NatsJetStream
from receiver_runtime.sources.raw_socket import RawSocket
from receiver_runtime.sources.redis_streams import RedisStreams
from receiver_runtime.sources.socket_text import SocketText
from receiver_runtime.sources.syslog import Syslog
from receiver_runtime.sources.zeromq import ZeroMQ

__all__ = [
    "Amqp",
    "CustomSource",
    "FileLines",
    "FollowedFiles",
    "Http",
    "Kafka",
    "Mqtt",
    "NatsJetStream",
    "RawSocket",
    "RedisStreams",
    "SocketText",
    "Syslog",
    "WholeFiles",
    "ZeroMQ",
]
