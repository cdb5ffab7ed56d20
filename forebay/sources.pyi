# Written by `python -m release.stubs`.
from receiver_runtime.receivers.amqp.declaration import Amqp as Amqp
from receiver_runtime.receivers.custom.declaration import CustomSource as CustomSource
from receiver_runtime.receivers.files.declaration import FileLines as FileLines
from receiver_runtime.receivers.files.declaration import FollowedFiles as FollowedFiles
from receiver_runtime.receivers.files.declaration import WholeFiles as WholeFiles
from receiver_runtime.receivers.http.declaration import Http as Http
from receiver_runtime.receivers.kafka.declaration import Kafka as Kafka
from receiver_runtime.receivers.mqtt.declaration import Mqtt as Mqtt
from receiver_runtime.receivers.nats.declaration import NatsJetStream as NatsJetStream
from receiver_runtime.receivers.redis.declaration import RedisStreams as RedisStreams
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket as RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText as SocketText
from receiver_runtime.receivers.syslog.declaration import Syslog as Syslog
from receiver_runtime.receivers.zeromq.declaration import ZeroMQ as ZeroMQ
from receiver_runtime.sources.fields.tcp import Tls as Tls

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
