"""Check the page of the sink: its table, its declaration, and that the rights that it names suffice."""

from __future__ import annotations

import re
import shlex
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from forebay import EnvVar, KafkaSink
from forebay.testing.sinks import attempt, run
from forebay_contrib.kafka.tests.kafka_target import KafkaTarget, counted
from orchestration.declarations.sink import TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words
from tests.support.brokers.kafka import PASSWORD, USER, KafkaBroker, Secure

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_its_table_matches_the_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", PAGE, re.MULTILINE))
    defaults: dict[str, Any] = {
        one.name: {} if one.default_factory is not MISSING else one.default for one in fields(KafkaSink)
    }
    assert rows == {name: "required" if default is MISSING else repr(default) for name, default in defaults.items()}


@pytest.mark.kafka
def test_its_declaration_is_written(broker: KafkaBroker) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    target = KafkaTarget(broker.address)
    names: dict[str, Any] = {}
    exec(block.replace("127.0.0.1:9092", broker.address).replace("word_counts", target.topic), names)
    run(names["sink"], words(("a", 1)), attempt())
    assert [message.key() for message in target.messages()] == [b"a"]
    assert counted(target) == {("a", 1): 1}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Start Apache Kafka with an authorizer; only who comes by its first listener may do everything."""
    made = KafkaBroker(
        tmp_path / "broker",
        secure=Secure.make(tmp_path / "secure"),
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )
    made.start()
    yield made
    made.kill()


@pytest.mark.kafka
def test_the_rights_that_it_names_suffice_and_a_missing_one_is_named(
    guarded: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    assert guarded.secure is not None
    target = KafkaTarget(guarded.address)
    given: dict[str, Any] = {
        "bootstrap_servers": guarded.secure_address,
        "commits_topic": target.commits,
        "options": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": EnvVar("KAFKA_PASSWORD"),
            "ssl.ca.location": str(guarded.secure.certificate),
        },
    }
    sink, by_row = KafkaSink(topic=target.topic, **given), KafkaSink(topic_column="word", **given)
    [commands] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    named = commands.replace("word_counts", target.topic).replace("forebay_commits", target.commits)
    for command in reversed(named.replace("NAME", USER).splitlines()):
        assert sink.check_target().health == "failed"
        with pytest.raises(TargetUnavailableError, match=f"kafka-acls .*'User:{USER}'"):
            sink.write(words(("a", 1)), attempt())
        with pytest.raises(TargetUnavailableError, match=f"kafka-acls .*'User:{USER}'"):
            by_row.write(words((target.topic, 1)), attempt())
        give(target, shlex.split(command))
    assert sink.check_target().health == "ok", sink.check_target().found
    run(sink, words(("a", 1)), attempt())
    assert counted(target) == {("a", 1): 1}
    found = sink.committed(attempt(2))
    assert found is not None


def give(target: KafkaTarget, command: list[str]) -> None:
    """Give what a call of `kafka-acls` says, without a JVM."""
    user = command[command.index("--allow-principal") + 1]
    operations = [after for one, after in pairwise(command) if one == "--operation"]
    is_topic = "--topic" in command
    name = command[command.index("--topic" if is_topic else "--transactional-id") + 1]
    pattern = ResourcePatternType.PREFIXED if "prefixed" in command else ResourcePatternType.LITERAL
    kind = ResourceType.TOPIC if is_topic else ResourceType.TRANSACTIONAL_ID
    for operation in operations:
        right = AclBinding(kind, name, pattern, user, "*", AclOperation[operation.upper()], AclPermissionType.ALLOW)
        for answer in target.admin.create_acls([right]).values():
            answer.result(30)
