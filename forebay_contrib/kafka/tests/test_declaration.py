"""Check what a KafkaSink declares, refuses, and says of its columns, without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

from forebay import EnvVar, KafkaSink
from forebay_contrib.kafka import cluster as clients
from forebay_contrib.kafka.tokens import Tokens
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt
from tests.support.machine.held_ports import held_ports

_SCHEMA = StructType(
    [
        StructField("word", StringType()),
        StructField("payload", BinaryType()),
        StructField("n", IntegerType()),
        StructField("more", MapType(StringType(), BinaryType())),
    ]
)


def sink(**fields: Any) -> KafkaSink:  # noqa: ANN401  fields of the sink
    given = {"bootstrap_servers": "one:9092, two:9092", **fields}
    return KafkaSink(**({"topic": "orders", **given} if "topic_column" not in fields else given))


def test_a_declaration_has_references_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "not-to-be-seen")
    options = {"security.protocol": "SASL_SSL", "sasl.password": EnvVar("KAFKA_PASSWORD"), "linger.ms": 5}
    declared = json.loads(json.dumps(sink(key="id", options=options).declaration()))
    assert declared == {
        "kind": "kafka",
        "bootstrap_servers": "one:9092,two:9092",
        "topic": "orders",
        "key": "id",
        "value": "json",
        "on_replay": "refuse",
        "commits_topic": "forebay_commits",
        "options": {"linger.ms": 5, "sasl.password": "env:KAFKA_PASSWORD", "security.protocol": "SASL_SSL"},
    }
    assert "not-to-be-seen" not in repr(sink(options=options))


def test_a_topic_is_a_place_and_rows_that_say_theirs_share_topics() -> None:
    one, other = sink().declaration(), sink(bootstrap_servers="two:9092,one:9092", key="id").declaration()
    place = KafkaSink.place(one)
    assert place is not None
    assert place == KafkaSink.place(other) or place.key == KafkaSink.place(other).key  # type: ignore[union-attr]
    assert KafkaSink.place(sink(topic="others").declaration()) != place
    assert KafkaSink.place(sink(topic_column="to").declaration()) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"topic": None}, "give topic="),
        ({"topic_column": "to", "topic": "orders"}, "give topic="),
        ({"topic": "no topic"}, "no topic's name"),
        ({"topic": "forebay_commits"}, "topic of their own"),
        ({"bootstrap_servers": "broker"}, "is no server"),
        ({"on_replay": "again"}, "must be one of refuse, publish"),
        ({"options": {"sasl.password": "secret-text"}}, "by reference"),
        ({"options": {"transactional.id": "mine"}}, "transactional.id is not to be set"),
        ({"options": {"bootstrap.servers": "x:1"}}, "use bootstrap_servers"),
        ({"options": {"linger.ms": "5s"}}, "no whole number of ms"),
    ],
)
def test_a_field_that_can_not_be_used_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        sink(**fields)
    assert "KafkaSink: " in str(refused.value)
    assert "secret-text" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"key": "id"}, r"no column 'id', which is key"),
        ({"key": "n"}, "'n' is a int, and as key .* string or binary"),
        ({"value": "more"}, "as value"),
        ({"headers": "word"}, "as headers"),
        ({"topic_column": "payload"}, "as topic_column"),
        ({"value": "payload", "key": "word"}, r"columns \['n', 'more'\] would not be sent"),
    ],
)
def test_columns_that_are_no_parts_of_a_record_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=f"counts.*{says}"):
        sink(**fields).check_columns(_SCHEMA, "counts")


def test_columns_of_a_record_are_taken() -> None:
    sink(key="word", headers="more").check_columns(_SCHEMA, "counts")
    sink(value="payload", topic_column="word").check_columns(StructType(_SCHEMA.fields[:2]), "counts")


def test_brokers_that_can_not_be_reached_hold_up_what_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ANSWER_SECONDS", 1.0)
    [port] = held_ports(monkeypatch, 1)
    away = sink(bootstrap_servers=f"127.0.0.1:{port}")
    for call in (lambda: away.write(words(("a", 1)), attempt()), lambda: away.committed(attempt(2))):
        with pytest.raises(TargetUnavailableError, match=rf"output 'counts'.*127\.0\.0\.1:{port}") as unavailable:
            call()
        assert unavailable.value.unreachable == ("kafka", f"127.0.0.1:{port}")
    check = away.check_target()
    assert (check.health, str(port) in check.found) == ("failed", True)


def test_a_missing_secret_and_an_unknown_option_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    with pytest.raises(TargetUnavailableError, match=r"output 'counts'.*KAFKA_PASSWORD"):
        sink(options={"sasl.password": EnvVar("KAFKA_PASSWORD")}).committed(attempt(2))
    with pytest.raises(SinkError, match=r"output 'counts'.*its options.*no\.such\.option"):
        sink(options={"no.such.option": 1}).committed(attempt(2))
    check = sink(options={"message.timeout.ms": 400_000}).check_target()
    assert (check.health, "its options" in check.found, "message.timeout.ms" in check.found) == ("failed", True, True)


def test_settings_by_which_tokens_would_be_lost_are_named() -> None:
    tokens = Tokens(clients.Cluster("one:9092", {}, "output", ()), "commits")
    assert tokens.misfits({}) == tokens.misfits({"cleanup.policy": "compact", "retention.ms": "1"}) == []
    assert tokens.misfits({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}) == []
    for settings, says in (
        ({"cleanup.policy": "compact,delete", "retention.ms": "604800000"}, "retention.ms=604800000"),
        ({"cleanup.policy": "delete", "retention.bytes": "1000"}, "retention.bytes=1000"),
        ({"message.timestamp.before.max.ms": "3600000"}, "before.max.ms=3600000"),
        ({"message.timestamp.type": "LogAppendTime"}, "LogAppendTime"),
    ):
        [found] = tokens.misfits(settings)
        assert says in found
