from __future__ import annotations

import ctypes
import re
import sys
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tests.support.searches import examples

GIVEN: dict[str, Any] = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topics": ["orders"], "group": "g"}


def test_one_topic_may_be_given_as_text_and_a_pattern_matches_the_whole_name() -> None:
    assert Kafka(bootstrap_servers="a:1", topics="orders", group="g").subscription == ["orders"]
    assert Kafka(bootstrap_servers="a:1", pattern="a|b", group="g").subscription == ["^(a|b)$"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bootstrap_servers", "a:65536", "bootstrap_servers: 'a:65536' is no server: give a port from 1 to 65535"),
        ("bootstrap_servers", "localhost", "bootstrap_servers: 'localhost' is no server: give host:port"),
        ("topics", [], "kafka: .*give topics=.*or pattern="),
        ("pattern", "orders-.*", "kafka: .*give topics=.*or pattern="),
        ("topics", ["a b"], "topics: 'a b' is no topic's name"),
        ("topics", ["a", "a"], "topics: a topic is named twice"),
        ("group", "", "group: "),
        ("start", "soon", "start.*"),
        ("start", "2026-01-31T00:00:00", "start.*has no zone"),
        ("out_of_range", "ignore", "out_of_range: "),
        ("guarantee", "maybe", "guarantee: "),
        ("max_rate_per_partition", -1, "max_rate_per_partition: "),
        ("options", {"group.id": "x"}, "options: group.id is not to be set here: use group"),
        ("options", {"auto.offset.reset": "latest"}, "use start and out_of_range"),
        ("options", {"sasl.password": "hunter2"}, "options: .*by reference|options: .*write EnvVar"),
        ("topic", "x", "topic: kafka has no such field"),
    ],
)
def test_invalid_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)


def test_a_rate_per_partition_needs_positions() -> None:
    with pytest.raises(SourceError, match=r"max_rate_per_partition=5 needs guarantee='exactly_once'"):
        parse_source({**GIVEN, "guarantee": "at_most_once", "max_rate_per_partition": 5})
    assert Kafka(bootstrap_servers="a:1", topics="t", group="g", guarantee="at_most_once").max_rate_per_partition == 0


def test_an_invalid_pattern_is_named() -> None:
    with pytest.raises(SourceError, match=r"pattern: 'a\(' is no regular expression"):
        parse_source({**GIVEN, "topics": [], "pattern": "a("})


def test_secrets_are_read_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Kafka(bootstrap_servers="a:1", topics="t", group="g", options={"sasl.password": "env:KAFKA_PASSWORD"})
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    with pytest.raises(SecretError, match="KAFKA_PASSWORD is not set"):
        source.resolved_options()
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    assert source.resolved_options() == {"sasl.password": "hunter2"}
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    "pattern", [r"orders-\d+", r"\w+", "(?i)orders", "a+?", "[a\\]]", "[[:alpha:]]", "{", "(|a)", "a||b", "a|"]
)
def test_a_pattern_of_another_dialect_is_refused_with_what_to_write(pattern: str) -> None:
    with pytest.raises(SourceError, match=r"which librdkafka matches otherwise than Python.*write \[0-9\] for"):
        parse_source({**GIVEN, "topics": [], "pattern": pattern})


@pytest.mark.parametrize(
    "pattern", ["orders ", "a\t", "ordérs", "a,b", "a/b", r"a\+b", r"a\$", "a$b", "a^b", "(a)^b", "^$", "", "^()$", "#"]
)
def test_a_pattern_that_no_topic_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(SourceError, match=r"matches no topic, for its"):
        parse_source({**GIVEN, "topics": [], "pattern": pattern})


@pytest.mark.parametrize(
    "pattern", ["^orders", "orders$", "^a$|^b$", "(^a|b$)", "^^a", "a$$", "a{1,3}", "[^,]+", "[ -~]*", r"a\.b", "a.*"]
)
def test_a_pattern_of_topics_is_taken(pattern: str) -> None:
    parse_source({**GIVEN, "topics": [], "pattern": pattern})


@pytest.mark.parametrize("topic", [".", "..", "a" * 250])
def test_a_name_that_kafka_gives_to_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(SourceError, match="is no topic's name"):
        parse_source({**GIVEN, "topics": [topic]})


class Posix:
    """The C library's extended regular expressions, which librdkafka matches topics by."""

    def __init__(self, pattern: str) -> None:
        self._libc = ctypes.CDLL(None)
        # More than the largest regex_t.
        self._compiled = ctypes.create_string_buffer(512)
        assert self._libc.regcomp(self._compiled, f"^({pattern})$".encode(), 1 | 8) == 0, (
            f"it is none of POSIX: {pattern}"
        )

    def matches(self, topic: str) -> bool:
        return bool(self._libc.regexec(self._compiled, topic.encode(), 0, None, 0) == 0)


TOKENS = st.sampled_from([*"ab01.-_*+?|()[]^$\\{},", "{2}", "{1,}", "[a-b]", "[^0]", "a.", r"\.", r"\d", "(a|b)", "[:"])


@pytest.mark.skipif(sys.platform != "linux", reason="it asks glibc")
@pytest.mark.search
@settings(max_examples=examples(2000))
@given(pattern=st.lists(TOKENS, max_size=5).map("".join), topics=st.lists(st.text("ab01.-_", max_size=4), max_size=6))
def test_a_pattern_that_is_taken_matches_the_same_topics_in_both_dialects(pattern: str, topics: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parse_source({**GIVEN, "topics": [], "pattern": pattern})
        except SourceError:
            return
        posix = Posix(pattern)
        for topic in topics:
            assert posix.matches(topic) == (re.fullmatch(pattern, topic) is not None), topic


def test_a_field_of_another_name_names_the_one_that_was_meant() -> None:
    fields: dict[str, Any] = {"bootstrap_servers": "a:1", "topic": "env:SECRET", "group": "g"}
    with pytest.raises(ValidationError, match=r"there is no field 'topic': did you mean topics\?") as raised:
        Kafka(**fields)
    assert "SECRET" not in str(raised.value)
    with pytest.raises(SourceError, match=r"^topic: kafka has no such field: did you mean topics\?$"):
        parse_source({"kind": "kafka", **fields})
