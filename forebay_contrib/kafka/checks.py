"""Check topics, and the user's rights on them, before a row is sent. Makes the tokens' topic, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from forebay_contrib.kafka.cluster import ANSWER_SECONDS, topic_right
from forebay_contrib.kafka.tokens import Tokens
from forebay_contrib.kafka.transaction import Transaction
from orchestration.declarations.sink import SinkError, TargetCheck, TargetUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]

    from forebay_contrib.kafka.cluster import Cluster, Right

# What the client takes if nothing else is declared or known.
_MOST_BYTES: Final = 1_000_000
_MOST_TOPICS: Final = 1000
_MOST_NAMED: Final = 5
_OPERATIONS: Final = {"Describe": AclOperation.DESCRIBE, "Read": AclOperation.READ, "Write": AclOperation.WRITE}


@dataclass(frozen=True, slots=True)
class Limits:
    """Say how many bytes a record may have, and whether it must have a key."""

    most_bytes: int
    needs_key: bool


def prepare(cluster: Cluster, tokens: Tokens, topic: str | None, *, has_key: bool, is_first: bool) -> Limits:
    """Have the topics ready; return what a record must be like. Raises SinkError.

    `is_first`: no earlier attempt can have published the batch, so that the tokens' topic may be made.
    """
    found = None if topic is None else _existing(cluster, tokens, topic)
    if not tokens.exist():
        never_written = topic is not None and found is not None and tokens.is_empty(topic, found.partitions)
        if not is_first and not never_written:
            raise TargetUnavailableError(
                f"{cluster.where}: there is no topic {tokens.topic}, whose tokens say whether an earlier attempt has "
                "published this batch. If it was deleted, look into the topic of the rows. To have the batch "
                f"published, make it: {tokens.command}"
            )
        tokens.make()
    settings = tokens.settings_of(*filter(None, (tokens.topic, topic)))
    if misfits := tokens.misfits(settings[tokens.topic]):
        raise TargetUnavailableError(
            f"{cluster.where}: the topic {tokens.topic} has {'; '.join(misfits)}: change it by kafka-configs --alter "
            f"--topic {tokens.topic} --add-config NAME=VALUE"
        )
    of_topic = {} if topic is None else settings[topic]
    needs_key = _is_compacted(of_topic)
    if needs_key and not has_key:
        raise SinkError(f"{cluster.where}: {_needs_key(topic)}")
    most_bytes = int(cluster.options.get("message.max.bytes", of_topic.get("max.message.bytes", _MOST_BYTES)))
    return Limits(most_bytes, needs_key)


def check_topics(cluster: Cluster, tokens: Tokens, topics: Sequence[str]) -> None:
    """Raise TargetUnavailableError if topics that rows name do not exist: the brokers may make them by mistake."""
    if len(topics) > _MOST_TOPICS:
        raise SinkError(
            f"{cluster.where}: its rows go to {len(topics)} topics, and a batch may have {_MOST_TOPICS}: is it the "
            "right column?"
        )
    missing = [name for name in topics if cluster.topic(tokens.consumer, name, _right(name)) is None]
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise TargetUnavailableError(
            f"{cluster.where}: there is no topic {', '.join(missing[:_MOST_NAMED])}{more}: "
            f"kafka-topics --create --topic {missing[0]}, or correct the column"
        )


def check_target(cluster: Cluster, topic: str | None, commits_topic: str, *, has_key: bool) -> TargetCheck:
    """Return whether the topics are there, and what the user may do. Raises SinkError."""
    # Some options only a producer of transactions refuses. It asks the brokers for nothing yet.
    Transaction(cluster, "forebay/", {})
    with Tokens(cluster, commits_topic) as tokens:
        if topic is not None:
            _existing(cluster, tokens, topic)
        exists = tokens.exist()
        settings = tokens.settings_of(*filter(None, (topic, commits_topic if exists else None)))
        if topic is not None and not has_key and _is_compacted(settings[topic]):
            return TargetCheck("failed", _needs_key(topic), "Say key=, or take another topic.")
        if exists and (misfits := tokens.misfits(settings[commits_topic])):
            return TargetCheck("failed", f"the topic {commits_topic} has {'; '.join(misfits)}", "Change its settings.")
    needed: dict[str, tuple[str, ...]] = {} if topic is None else {topic: ("Describe", "Write")}
    if exists:
        needed[commits_topic] = ("Describe", "Read", "Write")
    if lacking := _lacking(cluster, needed):
        user = str(cluster.options.get("sasl.username", "NAME"))
        commands = "; ".join(topic_right(name, *rights).command(user) for name, rights in lacking.items())
        named = "; ".join(f"{', '.join(rights)} on the topic {name}" for name, rights in lacking.items())
        return TargetCheck("failed", f"{user} lacks {named}", f"Give it: {commands}")
    made = "" if exists else f"; the topic {commits_topic} is made at the first batch"
    return TargetCheck("ok", f"{topic or 'Kafka'} at {cluster.servers} answers, and may be written to{made}")


def _is_compacted(settings: Mapping[str, str]) -> bool:
    return "compact" in settings.get("cleanup.policy", "")


def _needs_key(topic: str | None) -> str:
    return f"the topic {topic} is compacted, and takes no record without a key: say key="


def _right(topic: str) -> Right:
    return topic_right(topic, "Describe", "Write")


def _existing(cluster: Cluster, tokens: Tokens, topic: str) -> TopicMetadata:
    found = cluster.topic(tokens.consumer, topic, _right(topic))
    if found is None:
        raise TargetUnavailableError(
            f"{cluster.where}: there is no topic {topic} at {cluster.servers}: kafka-topics --create --topic {topic}"
        )
    return found


def _lacking(cluster: Cluster, needed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the operations on topics that the brokers do not allow this user."""
    if not needed:
        return {}
    # Its answers come as long as it is there.
    admin = cluster.admin()
    asked = admin.describe_topics(
        TopicCollection(list(needed)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    lacking = {}
    for topic, answer in asked.items():
        with cluster.failures(f"the topic {topic}", topic_right(topic, *needed[topic])):
            allowed = answer.result(ANSWER_SECONDS).authorized_operations
        # None: the brokers do not say it.
        if allowed and (missing := [one for one in needed[topic] if _OPERATIONS[one] not in allowed]):
            lacking[topic] = missing
    return lacking
