"""Declare an MQTT 3.1.1 or 5 source: topics of a broker, read in a session that outlives its connections (X11).

Only the declaration and its checks; ``receiver_runtime.receivers.mqtt`` connects, and needs the extra
``forebay[mqtt]``.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.dialects import BLANKS, Dialect
from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Host, Tls, address_of, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source, SourceRule

_PORT = 1883
_TLS_PORT = 8883
_MOST_BYTES = 65_535  # MQTT's limit for a topic filter
_KEY = re.compile(r"correlation_data|user_property:.+|json:[^.]+(\.[^.]+)*", re.DOTALL)
_SHARE = "$share/"


#: Topic filters of MQTT (4.7), as brokers grant them.
_FILTERS = Dialect(
    (
        BLANKS,
        (r"(^|/)\*(/|$)", "'+' stands for one level, and '#' for all the last ones"),
        (r"(?i)^\$(share|queue|exclusive)/", "give the filter alone, and group"),
    )
)


class Mqtt(Source):
    """Reads what is published to topics of an MQTT broker; one row per message, with its topic and properties.

    **At least once**: a message of QoS 1 or 2 is acknowledged after the block that holds it is registered. A message
    that the broker sends again is stored again, unless ``key`` identifies messages: then the repeat is left out. The
    broker sends a message of QoS 0 only once, even if it gets lost: **at most once**.

    Args:
        host: the broker's name or address.
        port: by default 1883, and 8883 with TLS.
        topics: filters, as ``"plant/+/temperature"`` or ``"plant/#"``.
        client_id: the beginning of the receivers' client ids; the receiver's number follows. The broker keeps a session
            for each client id, so no other stream and no other system may use it.
        group: receivers share the messages out as this group (``$share/GROUP/FILTER``); needed for several receivers.
            A shared subscription gets no retained messages.
        qos: the highest quality of service to ask for.
        version: ``"5"`` or ``"3.1.1"``.
        key: what identifies a message: ``"correlation_data"``, ``"user_property:NAME"``, or ``"json:FIELD"``
            (``"json:A.B"`` within ``A``), a field of a payload that is a JSON object.
        in_flight: the broker may send at most this many unacknowledged messages. MQTT 3.1.1 can't tell the broker this
            number: give the one that the broker is configured with.
        session_expiry: how long the broker keeps the session of a receiver that is not connected; MQTT 5 only.
        keepalive: broker and receiver check at least this often that the other one is still there.
        connect_timeout: how long one attempt to connect may take, and then the broker's answer (CONNACK).
        username: the user to log in as; and
        password: by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``).
        tls: ``True``, or a ``Tls``; no TLS by default.
        max_record_bytes: a message with more payload becomes a dead letter; ``"1MiB"`` or a number.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("topic", "string"),
        ("value", "binary"),
        ("qos", "int32"),
        ("retain", "bool"),
        ("content_type", "string"),
        ("response_topic", "string"),
        ("correlation_data", "binary"),
        ("user_properties", "list<item: struct<key: string, value: string>>"),
    )
    record_column: ClassVar[str] = "value"
    needs_extra: ClassVar[str | None] = "mqtt"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.mqtt.receiver:MqttReceiver"

    kind: Literal["mqtt"] = "mqtt"
    host: Host
    port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    topics: Several
    client_id: Annotated[str, Field(min_length=1, max_length=200)]
    group: str | None = None
    qos: Literal[0, 1, 2] = 1
    version: Literal["3.1.1", "5"] = "5"
    key: str | None = None
    in_flight: Annotated[int, Field(ge=1, le=65_535)] = 2000
    session_expiry: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] = 7 * 86_400.0
    keepalive: Annotated[float, BeforeValidator(parse_duration), Field(ge=1, le=65_535)] = 60.0
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 4.0
    username: str | None = None
    password: Secret | None = None
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20

    @classmethod
    def guarantees(cls) -> tuple[Guarantee, ...]:
        """Return the guarantees without a key, with a key, and of QoS 0."""
        return (Guarantee.AT_LEAST_ONCE, Guarantee.AT_LEAST_ONCE_DEDUPLICATED, Guarantee.AT_MOST_ONCE)

    @property
    def address(self) -> str:
        """Return the broker and the topics."""
        return f"{address_of(self.host, self.broker_port)}/{','.join(self.topics)}"

    @property
    def broker_port(self) -> int:
        """Return the port given, or the standard one."""
        return self.port or (_PORT if self.tls is None else _TLS_PORT)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """Return the filters as the broker takes them."""
        return self.topics if self.group is None else tuple(f"{_SHARE}{self.group}/{topic}" for topic in self.topics)

    @property
    def source_rule(self) -> SourceRule:
        """Return whether the broker sends unacknowledged messages again: at QoS 0 it does not."""
        return SourceRule.SENT_AGAIN if self.qos else SourceRule.NOT_SENT_AGAIN

    @property
    def one_receiver(self) -> str | None:
        """Return why there may be only one receiver: without a group the broker sends every message to each one."""
        if self.group is None:
            return "without a group each receiver of an Mqtt source is sent every message: give group too"
        return None

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        if not topics:
            raise ValueError("no topic is named: give at least one filter, as 'plant/#'")
        _FILTERS.check(*topics)
        for topic in topics:
            levels = topic.split("/")
            odd = any("#" in level for level in levels[:-1]) or any(
                len(level) > 1 and ("#" in level or "+" in level) for level in levels
            )
            if not topic or odd or "\0" in topic or len(topic.encode()) > _MOST_BYTES:
                raise ValueError(f"{topic!r} is no topic filter: '+' stands for one whole level, '#' for all the last")
        if len(set(topics)) != len(topics):
            raise ValueError("a topic is named twice: name it once")
        return topics

    @field_validator("group")
    @classmethod
    def _check_group(cls, group: str | None) -> str | None:
        if group is not None and (not group or any(character in "/+#\0" for character in group)):
            raise ValueError(f"{group!r} is no name of a group: leave '/', '+' and '#' out")
        return group

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | None) -> str | None:
        if key is not None and not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key: use 'correlation_data', 'user_property:NAME' or 'json:FIELD'")
        return key

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        if self.version != "5" and self.key is not None and not self.key.startswith("json:"):
            raise ValueError(f"key={self.key!r} is a property, and MQTT 3.1.1 has none: use 'json:FIELD', or version 5")
        if self.qos == 0 and self.key is not None:
            raise ValueError("key: nothing comes twice at qos=0: leave it out, or ask for qos=1")
        return self

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.password is not None and self.username is None:
            raise ValueError("a password without its username: give username too")
        return self
