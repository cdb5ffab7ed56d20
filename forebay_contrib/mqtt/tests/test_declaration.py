from __future__ import annotations

from typing import Any

import pytest

from forebay import DeclarationError, Stream
from forebay_contrib.mqtt.declaration import Mqtt
from receiver_runtime.sources.source import Guarantee, SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "mqtt", "host": "127.0.0.1", "topics": ["a/#"], "client_id": "c"}


def test_one_topic_may_be_given_as_text_and_the_port_has_its_default() -> None:
    source = Mqtt(host="b", topics="a", client_id="c")
    assert source.subscriptions == ("a",)
    assert source.broker_port == 1883


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("topics", [], "topics: no topic is named"),
        ("topics", [""], "topics: '' is no topic filter"),
        ("topics", ["a#"], "topics: 'a#' is no topic filter"),
        ("topics", ["#/a"], "topics: '#/a' is no topic filter"),
        ("topics", ["a/b+"], "is no topic filter"),
        ("topics", ["a", "a"], "topics: a topic is named twice"),
        ("topics", ["$share/g/a"], "does not match what it seems to: give the filter alone, and group"),
        ("group", "a/b", "group: 'a/b' is no name of a group"),
        ("qos", 3, "qos: "),
        ("version", "4", "version: "),
        ("key", "payload", "key: 'payload' is no key: use 'correlation_data'"),
        ("key", "json:", "key: 'json:' is no key"),
        ("in_flight", 0, "in_flight: "),
        ("password", "hunter2", "password: .*by reference"),
        ("topic", "x", "topic: mqtt has no such field"),
    ],
)
def test_invalid_fields_are_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_source({**GIVEN, field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": "env:P"}, "a password without its username"),
        ({"version": "3.1.1", "key": "correlation_data"}, "MQTT 3.1.1 has none: use 'json:FIELD', or version 5"),
        ({"qos": 0, "key": "json:id"}, "nothing comes twice at qos=0"),
    ],
)
def test_incompatible_fields_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_source({**GIVEN, **fields})


def test_several_receivers_need_a_group() -> None:
    with pytest.raises(DeclarationError, match=r"stream 's': receivers=2: .*give group too"):
        Stream("s", Mqtt(host="b", topics=("a",), client_id="c"), receivers=2)
    with pytest.raises(DeclarationError, match=r"receivers='per_host': .*give group too"):
        Stream("s", Mqtt(host="b", topics=("a",), client_id="c"), receivers="per_host")
    assert Stream("s", Mqtt(host="b", topics=("a",), client_id="c", group="g"), receivers=2).receivers == 2


def test_its_guarantees() -> None:
    assert Mqtt.guarantees() == (
        Guarantee.AT_LEAST_ONCE,
        Guarantee.AT_LEAST_ONCE_DEDUPLICATED,
        Guarantee.AT_MOST_ONCE,
    )
