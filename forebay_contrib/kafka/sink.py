"""Write to topics of Apache Kafka, each batch exactly once for readers of committed records.

Spark's tasks encode the rows, and this process sends them in one transaction, with a **token** in a compacted topic
(``tokens``): the token is the commit. An attempt that finds an earlier attempt's token writes nothing. Attempts at one
batch have one transactional id, so that a process that begins ends the transaction that an earlier one left open, then
looks for a token, then sends: of two processes that do so, one can't commit. Batches and replays that run at the
same time have different ids, of which an output has `_IDS`, because brokers remember each for days.

A committed record can't be taken back, so a replay is refused, or publishes the batch once more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from pydantic import ValidationError

from forebay_contrib.kafka.records import AS_JSON, TOPIC, RecordColumns
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import (
    AttemptOutdatedError,
    Committed,
    DeliveryGuarantee,
    Place,
    Sink,
    SinkError,
    Step,
    TargetCheck,
    TargetUnavailableError,
    Written,
)
from orchestration.sinks.table_columns import check_map_keys, check_names, check_types
from receiver_runtime.receivers.kafka.declaration import Kafka, Option
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from forebay_contrib.kafka.cluster import Cluster
    from forebay_contrib.kafka.staged_records import StagedRecords
    from forebay_contrib.kafka.tokens import Token, Tokens
    from forebay_contrib.kafka.transaction import Header
    from orchestration.declarations.sink import OutputAttempt

#: What a replay of a published batch does.
OnReplay = Literal["refuse", "publish"]
# Transactional ids of an output. A prime: of an interval's multiples, as many in a row have different ids.
_IDS: Final = 61
# Seconds to wait for a transaction that is open in front of a token: before this attempt's own, and after it has begun.
_ASKING_SECONDS: Final = 2.0
_DECIDING_SECONDS: Final = 60.0
# Attempts that have asked for a token and not written yet, at most: others have failed in between.
_MOST_ASKED: Final = 1000
# What the client takes if nothing else is declared.
_MOST_BYTES: Final = 1_000_000
# Options that this sink sets itself, beside those that the source sets.
_OURS: Mapping[str, str] = {
    "acks": "nothing: every replica in sync has each record",
    "enable.idempotence": "nothing: it is on",
    "isolation.level": "nothing: it is this sink's own",
    "request.required.acks": "nothing: every replica in sync has each record",
    "transactional.id": "nothing: each output has ids of its own, which begin with forebay/",
}
# The group of the source's declaration, which checks the options and is not used.
_NO_GROUP: Final = "none"


@dataclass(eq=False, kw_only=True)
class KafkaSink(Sink):
    """Publish each row as a record of Apache Kafka. Exactly once, for readers of committed records.

    Args:
        bootstrap_servers: ``"host:port"``, or several with commas between them.
        topic: the topic of all rows; or
        topic_column: the column of text with each row's topic.
        key: the column, of text or bytes, that is the record's key; None: records have none.
        value: ``"json"``: the row as a JSON object, without the columns of headers and topic; or the column, of text or
            bytes, that is the record's value.
        headers: the column, ``map<string, binary>`` or ``map<string, string>``, that has the record's headers.
        on_replay: ``"refuse"``: a batch that was published is not published again, and its replay fails; ``"publish"``:
            readers get its rows again, with the headers ``forebay_batch`` and ``forebay_attempt`` on each record.
        options: librdkafka's options, by their names. A password is given by reference, as ``EnvVar("NAME")``.
        commits_topic: the topic of the tokens; made if it is missing.

    Raises:
        DeclarationError: a field can't be used as it is given.
    """

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.EXACTLY_ONCE
    commits: ClassVar[bool] = True

    bootstrap_servers: str
    topic: str | None = None
    topic_column: str | None = None
    key: str | None = None
    value: str = AS_JSON
    headers: str | None = None
    on_replay: OnReplay = "refuse"
    options: Mapping[str, Option | Secret] = field(default_factory=dict)
    commits_topic: str = "forebay_commits"

    def __post_init__(self) -> None:
        """Check the fields, as the source does those that it has too."""
        if (self.topic is None) == (self.topic_column is None):
            message = "KafkaSink: give topic='orders' for all rows, or topic_column='to', which has each row's"
            raise DeclarationError(message)
        if self.on_replay not in get_args(OnReplay):
            message = f"KafkaSink: on_replay={self.on_replay!r} must be one of {', '.join(get_args(OnReplay))}"
            raise DeclarationError(message)
        for name in self.options:
            if name in _OURS:
                message = f"KafkaSink: options: {name} is not to be set here: use {_OURS[name]}"
                raise DeclarationError(message)
        for name in filter(None, (self.topic, self.commits_topic)):
            if not TOPIC.fullmatch(name):
                message = f"KafkaSink: {name!r} is no topic's name: letters, digits, '.', '_' and '-', at most 249"
                raise DeclarationError(message)
        if self.topic == self.commits_topic:
            message = (
                f"KafkaSink: the tokens need a topic of their own: commits_topic={self.commits_topic!r} is topic too"
            )
            raise DeclarationError(message)
        try:
            self._source = Kafka(
                bootstrap_servers=self.bootstrap_servers,
                topics=(self.commits_topic,),
                group=_NO_GROUP,
                options=dict(self.options),
            )
        except ValidationError as error:
            said = "; ".join(f"{one['loc'][0]}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors())
            message = f"KafkaSink: {said}"
            raise DeclarationError(message) from None
        # Attempts that found no token when they were asked, just before they write.
        self._asked: set[tuple[str, int, str]] = set()

    @property
    def target(self) -> str:
        """Return the topic, or the column that has it."""
        return self.topic or f"the topics in column {self.topic_column}"

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes, with secrets as references."""
        given = {
            "topic": self.topic,
            "topic_column": self.topic_column,
            "key": self.key,
            "headers": self.headers,
            "options": dict(sorted(self._source.options.items())) or None,
        }
        return {
            "kind": "kafka",
            "bootstrap_servers": self._source.bootstrap_servers,
            "value": self.value,
            "on_replay": self.on_replay,
            "commits_topic": self.commits_topic,
            **{name: value for name, value in given.items() if value is not None},
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place | None:
        """Return the topic; None if rows say where they go: such outputs may share topics."""
        topic = declaration.get("topic")
        if topic is None:
            return None
        servers = ",".join(sorted(declaration["bootstrap_servers"].lower().split(",")))
        return Place(("kafka", servers, topic), f"the topic {topic} at {declaration['bootstrap_servers']}")

    def load(self) -> None:
        """Import Kafka's client."""
        try:
            import confluent_kafka  # noqa: F401, PLC0415  declaring a sink needs no client
        except ImportError:
            raise TargetUnavailableError(
                "KafkaSink needs the package confluent-kafka: install it where batches run, by "
                "pip install 'forebay[kafka]'"
            ) from None

    def check_columns(self, schema: StructType, where: str) -> None:
        """Check the columns that are the parts of a record, and for names and types that JSON has not."""
        check_names(schema, where)
        names = schema.names
        parts = {
            "key": (self.key, ("string", "binary")),
            "value": (None if self.value == AS_JSON else self.value, ("string", "binary")),
            "headers": (self.headers, ("map<string,binary>", "map<string,string>")),
            "topic_column": (self.topic_column, ("string",)),
        }
        for part, (name, types) in parts.items():
            if name is None:
                continue
            if name not in names:
                raise SinkError(f"{where} has no column {name!r}, which is {part} of its KafkaSink: it has {names}")
            found = schema[name].dataType.simpleString()
            if found not in types:
                raise SinkError(
                    f"{where}: its column {name!r} is a {found}, and as {part} of a KafkaSink it must be "
                    f"{' or '.join(types)}: cast it"
                )
        used = {name for name, _ in parts.values()}
        if self.value != AS_JSON:
            if rest := [name for name in names if name not in used]:
                raise SinkError(
                    f"{where}: its columns {rest} would not be sent, because value={self.value!r}: leave them out of "
                    f"the result, or say value={AS_JSON!r}"
                )
            return
        check_types(schema, where)
        check_map_keys(schema, where)

    def check_target(self, schema: StructType | None = None) -> TargetCheck:
        """Ask the brokers for the topics, their settings, and the user's rights."""
        try:
            if schema is not None:
                self.check_columns(schema, "the result")
            self.load()
            from forebay_contrib.kafka.checks import check_target  # noqa: PLC0415  as above

            return check_target(
                self._cluster(f"KafkaSink {self.target}"), self.topic, self.commits_topic, has_key=self.key is not None
            )
        except TargetUnavailableError as error:
            way_out = "Start the brokers, correct bootstrap_servers and options, or give the right."
            return TargetCheck("failed", str(error), way_out)
        except SinkError as error:
            return TargetCheck("failed", str(error), "Change the result, or the sink.")

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the batch's newest token, if the driver log knows its run."""
        self.load()
        from forebay_contrib.kafka.tokens import Tokens, UndecidedTokenError  # noqa: PLC0415  as above

        found: Token | None = None
        # While a transaction is open, nothing is committed: `write` ends it, and looks again.
        with Tokens(self._cluster(attempt.name), self.commits_topic) as tokens, suppress(UndecidedTokenError):
            if tokens.exist():
                found = tokens.find(self._key(attempt), attempt.batch_id, wait_seconds=_ASKING_SECONDS)
        if found is None:
            self._note_asked(attempt)
        elif attempt.knows(found.attempt, found.run):
            return Committed(found.attempt, Written(found.location, found.rows))
        return None

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Let the tasks encode the rows, and send them and the token in one transaction."""
        self.load()
        from forebay_contrib.kafka.checks import check_topics, prepare  # noqa: PLC0415  as above
        from forebay_contrib.kafka.staged_records import staged_records  # noqa: PLC0415
        from forebay_contrib.kafka.tokens import Tokens, UndecidedTokenError  # noqa: PLC0415

        self.check_columns(result.schema, attempt.name)
        was_free = _id_of(attempt) in self._asked
        self._asked.discard(_id_of(attempt))
        cluster = self._cluster(attempt.name)
        with Tokens(cluster, self.commits_topic) as tokens:
            has_key, is_first = self.key is not None, attempt.attempt == 1
            limits = prepare(cluster, tokens, self.topic, has_key=has_key, is_first=is_first)
            # What is refused is refused before anything is computed. The answer that counts is that of `_send`.
            with suppress(UndecidedTokenError):
                if (found := self._earlier(tokens, attempt, was_free=was_free, wait_seconds=0)) is not None:
                    return found
            self.reached(Step.PREPARED)
            columns = RecordColumns(
                self.key, self.value, self.headers, self.topic_column, limits.most_bytes, needs_key=limits.needs_key
            )
            with staged_records(result, columns, attempt.name) as staged:
                self.reached(Step.STAGED)
                check_topics(cluster, tokens, staged.topics)
                written = self._send(cluster, tokens, staged, attempt, was_free=was_free, most_bytes=limits.most_bytes)
                self.reached(Step.COMMITTED)
        self.reached(Step.SWEPT)
        return written

    def _send(
        self,
        cluster: Cluster,
        tokens: Tokens,
        staged: StagedRecords,
        attempt: OutputAttempt,
        *,
        was_free: bool,
        most_bytes: int,
    ) -> Written:
        """Commit records and token, unless another attempt has committed."""
        from forebay_contrib.kafka.tokens import Token, UndecidedTokenError  # noqa: PLC0415  as above
        from forebay_contrib.kafka.transaction import FencedError, Transaction  # noqa: PLC0415

        of_output = f"{attempt.pipeline}/{attempt.pipeline_id}/{attempt.output}"
        transaction = Transaction(
            cluster,
            f"forebay/{of_output}/{attempt.batch_id % _IDS}",
            {"message.max.bytes": most_bytes, "batch.size": min(_MOST_BYTES, most_bytes)},
        )
        transaction.fence()
        found = self._earlier(tokens, attempt, was_free=was_free, wait_seconds=_DECIDING_SECONDS)
        if found is not None:
            return found
        transaction.begin()
        try:
            headers = [] if self.on_replay == "refuse" else _headers(attempt)
            for records in staged:
                transaction.send(records, self.topic or "", headers)
            # The token is last, so that look-ups meet an open transaction for a moment only.
            transaction.flush()
            token = Token(attempt.attempt, attempt.run_id, staged.count, self.target)
            transaction.send_token(self.commits_topic, self._key(attempt), token.encoded(), attempt.batch_id)
            transaction.flush()
            self.reached(Step.IN_TRANSACTION)
            transaction.commit()
        except FencedError:
            # The other one's commit shows a moment after it is done.
            with suppress(UndecidedTokenError):
                _refuse_outdated(
                    attempt, tokens.find(self._key(attempt), attempt.batch_id, wait_seconds=_DECIDING_SECONDS)
                )
            raise
        except Exception:
            transaction.abort()
            raise
        return Written(self.target, staged.count)

    def _earlier(
        self, tokens: Tokens, attempt: OutputAttempt, *, was_free: bool, wait_seconds: float
    ) -> Written | None:
        """Return the commit of an earlier attempt if it came after `committed` was asked; None: publish.

        Raises AttemptOutdatedError, and SinkError if this would publish the batch again and may not.
        """
        from forebay_contrib.kafka.tokens import TOKENS_KEPT  # noqa: PLC0415  as above

        found = tokens.find(self._key(attempt), attempt.batch_id, wait_seconds=wait_seconds)
        batch = _batch(attempt)
        if found is None:
            if attempt.began_at is not None and attempt.began_at - attempt.batch_time > TOKENS_KEPT:
                self._refuse_again(f"{batch} is so old that its token in {tokens.topic} may be gone")
            return None
        _refuse_outdated(attempt, found)
        if not attempt.knows(found.attempt, found.run):
            self._refuse_again(f"{batch} was published by run {found.run}, which this driver log does not know")
        elif was_free:
            return Written(found.location, found.rows)
        else:
            self._refuse_again(f"{batch} was published by attempt {found.attempt}")
        return None

    def _refuse_again(self, why: str) -> None:
        if self.on_replay == "refuse":
            raise SinkError(
                f"{why}, and records that readers have can't be taken back, so that it is not published again. To have "
                "them get its rows once more, say on_replay='publish'; else replay the other outputs alone, or discard "
                "the batch"
            )

    def _key(self, attempt: OutputAttempt) -> bytes:
        return f"{self.topic or '*'} {attempt.application_id}".encode()

    def _note_asked(self, attempt: OutputAttempt) -> None:
        if len(self._asked) >= _MOST_ASKED:
            self._asked.clear()
        self._asked.add(_id_of(attempt))

    def _cluster(self, where: str) -> Cluster:
        from forebay_contrib.kafka.cluster import Cluster  # noqa: PLC0415  as above

        try:
            options = self._source.resolved_options()
        except SecretError as error:
            raise TargetUnavailableError(f"{where}: {error}") from None
        place = self.place(self.declaration())
        servers = self._source.bootstrap_servers
        return Cluster(servers, options, where, () if place is None else place.key[:-1])


def _id_of(attempt: OutputAttempt) -> tuple[str, int, str]:
    return attempt.application_id, attempt.attempt, attempt.run_id


def _batch(attempt: OutputAttempt) -> str:
    return f"{attempt.name}: the batch of {attempt.batch_time.isoformat()}"


def _refuse_outdated(attempt: OutputAttempt, found: Token | None) -> None:
    if found is not None and found.attempt >= attempt.attempt:
        raise AttemptOutdatedError(
            f"{_batch(attempt)} was published by attempt {found.attempt}: attempt {attempt.attempt} published nothing"
        )


def _headers(attempt: OutputAttempt) -> list[Header]:
    """Return the headers by which readers tell what was published again."""
    return [("forebay_batch", attempt.application_id.encode()), ("forebay_attempt", str(attempt.attempt).encode())]
