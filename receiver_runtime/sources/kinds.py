"""List every kind of source that Forebay has. To add a kind, add its import and its name here; no other list exists.

``forebay.sources`` exports them to users, ``source_registry`` parses declarations with them, ``receiver_registry``
makes their receivers, and tests check each one's docs, extras and command line.
"""

from __future__ import annotations

from receiver_runtime.sources.declarations.amqp import Amqp
from receiver_runtime.sources.declarations.custom import CustomSource
from receiver_runtime.sources.declarations.files import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.sources.declarations.http import Http
from receiver_runtime.sources.declarations.kafka import Kafka
from receiver_runtime.sources.declarations.mqtt import Mqtt
from receiver_runtime.sources.declarations.nats_jetstream import NatsJetStream
from receiver_runtime.sources.declarations.raw_socket import RawSocket
from receiver_runtime.sources.declarations.redis_streams import RedisStreams
from receiver_runtime.sources.declarations.socket_text import SocketText
from receiver_runtime.sources.declarations.syslog import Syslog
from receiver_runtime.sources.declarations.zeromq import ZeroMQ

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
