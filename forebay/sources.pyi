# Written by `python -m release.stubs`.
from receiver_runtime.sources.declarations.amqp import Amqp as Amqp
from receiver_runtime.sources.declarations.custom import CustomSource as CustomSource
from receiver_runtime.sources.declarations.files import FileLines as FileLines
from receiver_runtime.sources.declarations.files import FollowedFiles as FollowedFiles
from receiver_runtime.sources.declarations.files import WholeFiles as WholeFiles
from receiver_runtime.sources.declarations.http import Http as Http
from receiver_runtime.sources.declarations.kafka import Kafka as Kafka
from receiver_runtime.sources.declarations.mqtt import Mqtt as Mqtt
from receiver_runtime.sources.declarations.nats_jetstream import NatsJetStream as NatsJetStream
from receiver_runtime.sources.declarations.raw_socket import RawSocket as RawSocket
from receiver_runtime.sources.declarations.redis_streams import RedisStreams as RedisStreams
from receiver_runtime.sources.declarations.socket_text import SocketText as SocketText
from receiver_runtime.sources.declarations.syslog import Syslog as Syslog
from receiver_runtime.sources.declarations.tcp import Tls as Tls
from receiver_runtime.sources.declarations.zeromq import ZeroMQ as ZeroMQ

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
    "Tls",
    "WholeFiles",
    "ZeroMQ",
]
