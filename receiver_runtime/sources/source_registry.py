"""From a stored declaration back to its source: the kinds of source, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from receiver_runtime.sources.amqp import Amqp
from receiver_runtime.sources.base import Source, SourceError
from receiver_runtime.sources.custom import CustomSource
from receiver_runtime.sources.files import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.sources.http import Http
from receiver_runtime.sources.kafka import Kafka
from receiver_runtime.sources.mqtt import Mqtt
from receiver_runtime.sources.nats_jetstream import NatsJetStream
from receiver_runtime.sources.raw_socket import RawSocket
from receiver_runtime.sources.redis_streams import RedisStreams
from receiver_runtime.sources.secret import SecretError
from receiver_runtime.sources.socket_text import SocketText
from receiver_runtime.sources.syslog import Syslog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

#: Every kind of source that Forebay has, by the name in its declaration.
KINDS: Mapping[str, type[Source]] = {
    "amqp": Amqp,
    "custom": CustomSource,
    "file_lines": FileLines,
    "followed_files": FollowedFiles,
    "http": Http,
    "kafka": Kafka,
    "mqtt": Mqtt,
    "nats_jetstream": NatsJetStream,
    "raw_socket": RawSocket,
    "redis_streams": RedisStreams,
    "socket_text": SocketText,
    "syslog": Syslog,
    "whole_files": WholeFiles,
}


def parse_source(declaration: Mapping[str, Any]) -> Source:
    """The source that a declaration (``Source.model_dump(mode="json")``) describes.

    Raises:
        SourceError: no kind, an unknown one, or a field that is wrong; names field, value and way out.
    """
    kind = declaration.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SourceError(f"kind: {kind!r} is no kind of source: use one of {', '.join(sorted(KINDS))}")
    try:
        return KINDS[kind].model_validate(dict(declaration))
    except ValidationError as error:
        raise SourceError("; ".join(_sentence(kind, detail) for detail in error.errors())) from error


def _sentence(kind: str, detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or kind
    message = detail["msg"].removeprefix("Value error, ")
    match detail["type"]:
        case "extra_forbidden":
            fields = ", ".join(KINDS[kind].model_fields)
            return f"{field}: {kind} has no such field (found {detail['input']!r}): use {fields}"
        case "missing":
            return f"{field}: {kind} needs it and it is missing: give it"
        case "value_error" if isinstance(detail.get("ctx", {}).get("error"), SecretError):
            # What was found may be the secret itself.
            return f"{field}: {message}"
        case _:
            return f"{field}: {message} (found {detail['input']!r}): correct it"
