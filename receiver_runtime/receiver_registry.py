"""From a source's declaration to the receiver that reads it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from receiver_runtime.receiver import Receiver
from receiver_runtime.sources.base import SourceError
from receiver_runtime.sources.custom import CustomSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.sources.base import Source

#: Each kind's receiver as (module, class); a module may load its broker's client.
_RECEIVERS: Mapping[str, tuple[str, str]] = {
    "amqp": ("receiver_runtime.receivers.amqp.receiver", "AmqpReceiver"),
    "file_lines": ("receiver_runtime.receivers.files.receiver", "FileLinesReceiver"),
    "followed_files": ("receiver_runtime.receivers.files.receiver", "FollowedFilesReceiver"),
    "http": ("receiver_runtime.receivers.http.receiver", "HttpReceiver"),
    "kafka": ("receiver_runtime.receivers.kafka.receiver", "KafkaReceiver"),
    "mqtt": ("receiver_runtime.receivers.mqtt.receiver", "MqttReceiver"),
    "nats_jetstream": ("receiver_runtime.receivers.nats.receiver", "NatsJetStreamReceiver"),
    "raw_socket": ("receiver_runtime.receivers.sockets.raw", "RawSocketReceiver"),
    "redis_streams": ("receiver_runtime.receivers.redis.receiver", "RedisStreamsReceiver"),
    "socket_text": ("receiver_runtime.receivers.sockets.text", "SocketTextReceiver"),
    "syslog": ("receiver_runtime.receivers.syslog.receiver", "SyslogReceiver"),
    "whole_files": ("receiver_runtime.receivers.files.receiver", "WholeFilesReceiver"),
}


def make_receiver(source: Source) -> Receiver:
    """A receiver for a source, not yet attached.

    Raises:
        SourceError: a kind that nothing reads, or a class of the user's that is not here or can't be made.
    """
    if isinstance(source, CustomSource):
        return _make_custom(source)
    if source.kind not in _RECEIVERS:
        raise SourceError(f"kind: nothing here receives from {source.kind!r}: upgrade this host's Forebay")
    module, name = _RECEIVERS[source.kind]
    made: Receiver = getattr(importlib.import_module(module), name)(source)
    return made


def _make_custom(source: CustomSource) -> Receiver:
    receiver_class = source.load()
    if not issubclass(receiver_class, Receiver):
        raise SourceError(f"receiver: {source.receiver!r} is no receiver: make it a child of forebay.receiver.Receiver")
    try:
        return receiver_class(**source.options)
    except Exception as error:  # a user's code
        raise SourceError(
            f"receiver: {source.receiver!r} can't be made with the options {source.options!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
