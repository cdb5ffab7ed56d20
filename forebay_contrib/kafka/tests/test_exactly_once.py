"""Check that a reader of committed records gets each row once, whatever dies, is late, or is repeated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.sinks import LATER, TIME, Died, _die, at, attempt, run
from forebay_contrib.kafka.tests.kafka_target import KafkaTarget, counted
from forebay_contrib.kafka.transaction import Transaction
from orchestration.declarations.sink import AttemptOutdatedError, SinkError, Step, TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words
from tests.support.polling import eventually

if TYPE_CHECKING:
    from forebay_contrib.kafka.sink import KafkaSink
    from orchestration.declarations.sink import OutputAttempt, Written
    from tests.support.brokers.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

_ROWS = (("a", 1), ("b", 2))
# Writes the two rows as attempt 1, and is killed at a step.
_PROGRAM = """
import os, signal, sys
from forebay import KafkaSink
from forebay.testing.sinks import attempt
from orchestration.declarations.sink import Step
from tests.integration.orchestration.frame_without_spark import words

servers, topic, commits, step = sys.argv[1:]
sink = KafkaSink(bootstrap_servers=servers, topic=topic, commits_topic=commits)
sink.reached = lambda now: os.kill(os.getpid(), signal.SIGKILL) if now is Step(step) else None
sink.write(words(("a", 1), ("b", 2)), attempt())
"""


@pytest.fixture
def target(broker: KafkaBroker) -> KafkaTarget:
    return KafkaTarget(broker.address)


def carry_out(sink: KafkaSink, to: OutputAttempt, *rows: tuple[Any, ...]) -> Written:
    """Do as a batch's run does: adopt what is committed, or write."""
    found = sink.committed(to)
    return run(sink, words(*rows), to) if found is None else found.written


@pytest.mark.core
@pytest.mark.parametrize("step", [step.value for step in Step])
def test_rows_come_once_if_a_process_is_killed_at_a_step(target: KafkaTarget, step: str) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _PROGRAM, target.address, target.topic, target.commits, step],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert killed.returncode == -9, killed.stderr
    written = carry_out(target.sink(), attempt(2), *_ROWS)
    assert (written.location, written.rows) == (target.topic, 2)
    assert counted(target) == dict.fromkeys(_ROWS, 1)


@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED, Step.IN_TRANSACTION])
def test_of_two_attempts_at_once_one_publishes(
    target: KafkaTarget, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a process that stands still at a step while the next attempt runs, and then goes on."""
    late = target.sink()

    def overtake() -> None:
        carry_out(target.sink(), attempt(2), *_ROWS)

    monkeypatch.setattr(late, "reached", at(step, overtake))
    with pytest.raises(AttemptOutdatedError, match="published by attempt 2"):
        late.write(words(*_ROWS), attempt())
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_an_attempt_finds_what_a_late_one_has_published_since_it_asked(target: KafkaTarget) -> None:
    for on_replay in ("refuse", "publish"):
        next_one = target.sink(on_replay=on_replay)
        of_batch = attempt(2, output=on_replay)
        assert next_one.committed(of_batch) is None
        late = target.sink().write(words(*_ROWS), attempt(output=on_replay))
        assert next_one.write(words(*_ROWS), of_batch) == late
    assert counted(target) == dict.fromkeys(_ROWS, 2)


def test_a_process_that_another_one_has_fenced_publishes_nothing(
    target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the late attempt that fences the next one, and dies before it commits."""
    # The brokers end what the dead one has left open: until then, nothing says whether it was committed.
    sink, late = target.sink(), target.sink(options={"transaction.timeout.ms": 3000})
    monkeypatch.setattr(late, "reached", at(Step.IN_TRANSACTION, _die))

    def overtaken() -> None:
        with pytest.raises(Died):
            late.write(words(*_ROWS), attempt())

    monkeypatch.setattr(sink, "reached", at(Step.IN_TRANSACTION, overtaken))
    with pytest.raises(SinkError, match="ended by another process that began with this id"):
        sink.write(words(*_ROWS), attempt(2))
    assert counted(target) == {}
    carry_out(target.sink(), attempt(3), *_ROWS)
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_a_transaction_that_the_brokers_end_is_published_by_the_next_attempt(
    target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target.sink(options={"transaction.timeout.ms": 1000})

    def end() -> int:
        return sum(high for _, high in target.ends())

    def ended() -> None:
        # The end is a mark behind the records.
        open_at = end()
        eventually(lambda: end() > open_at, "the end of the transaction", seconds=60)

    monkeypatch.setattr(sink, "reached", at(Step.IN_TRANSACTION, ended))
    with pytest.raises(SinkError, match="took more than 1 s"):
        sink.write(words(*_ROWS), attempt())
    assert counted(target) == {}
    carry_out(target.sink(), attempt(2), *_ROWS)
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_a_commit_whose_answer_is_lost_is_found(target: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a commit that the brokers have done, and that failed for the sink, which then aborts it."""
    commit = Transaction.commit

    def lost(transaction: Transaction) -> None:
        commit(transaction)
        raise TargetUnavailableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", lost)
        with pytest.raises(TargetUnavailableError, match="no answer"):
            target.sink().write(words(*_ROWS), attempt())
    assert carry_out(target.sink(), attempt(2), *_ROWS).rows == 2
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_brokers_that_are_killed_before_the_commit_get_it_when_they_are_back(
    broker: KafkaBroker, target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target.sink()

    def restart() -> None:
        broker.kill()
        broker.launch()

    monkeypatch.setattr(sink, "reached", at(Step.IN_TRANSACTION, restart))
    assert sink.write(words(*_ROWS), attempt()).rows == 2
    assert carry_out(target.sink(), attempt(2), *_ROWS).rows == 2
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_a_time_limit_that_the_brokers_do_not_allow_is_named(target: KafkaTarget) -> None:
    sink = target.sink(options={"transaction.timeout.ms": 1_000_000})
    with pytest.raises(SinkError, match=r"transactional id .*timeout"):
        sink.write(words(*_ROWS), attempt())
    assert counted(target) == {}


def test_a_replay_is_refused_or_publishes_again(target: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    run(target.sink(), words(*_ROWS), attempt())
    computed: list[int] = []
    refusing = target.sink()
    monkeypatch.setattr(refusing, "reached", lambda _: computed.append(1))
    with pytest.raises(SinkError, match=r"published by attempt 1.*on_replay='publish'"):
        refusing.write(words(*_ROWS), attempt(2))
    assert (computed, counted(target)) == ([], dict.fromkeys(_ROWS, 1))
    run(target.sink(on_replay="publish"), words(("a", 1)), attempt(2))
    assert counted(target) == {("a", 1): 2, ("b", 2): 1}
    headers = [dict(message.headers() or []) for message in target.messages()]
    again = {"forebay_batch": attempt().application_id.encode(), "forebay_attempt": b"2"}
    assert [one for one in headers if one] == [again]
    found = target.sink().committed(attempt(3))
    assert found is not None
    assert found.attempt == 2


def test_what_an_unknown_run_has_published_is_not_published_again(target: KafkaTarget) -> None:
    """Check a driver log that was restored from a backup."""
    run(target.sink(), words(*_ROWS), replace(attempt(), run_id="before", runs={1: "before"}))
    sink = target.sink()
    assert sink.committed(attempt(2)) is None
    with pytest.raises(SinkError, match="run before, which this driver log does not know"):
        sink.write(words(*_ROWS), attempt(2))
    assert counted(target) == dict.fromkeys(_ROWS, 1)


def test_a_batch_without_rows_is_committed(target: KafkaTarget) -> None:
    run(target.sink(), words(), attempt())
    found = target.sink().committed(attempt(2))
    assert found is not None
    assert (found.written.rows, counted(target)) == (0, {})


def test_tokens_of_later_batches_and_an_open_transaction_do_not_hide_a_token(
    target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(target.sink(), words(*_ROWS), attempt())
    open_one = target.sink()
    monkeypatch.setattr(open_one, "reached", at(Step.IN_TRANSACTION, _die))
    with pytest.raises(Died):
        open_one.write(words(("c", 3)), attempt(output="other", time=TIME - timedelta(seconds=10)))
    for number in range(3):
        # A token behind the open transaction: nothing says of a later one that it is not there.
        target.sink().write(words(), attempt(output="third", time=LATER + timedelta(seconds=number)))
    found = target.sink().committed(attempt(2))
    assert found is not None
    assert target.sink().committed(attempt(time=TIME + timedelta(seconds=10))) is None


class TestTheTopicOfTheTokens:
    def test_compaction_keeps_the_newest_token_of_each_batch(self, target: KafkaTarget) -> None:
        commits = f"{target.topic}-compacted"
        at_once = {"max.compaction.lag.ms": "1", "min.cleanable.dirty.ratio": "0", "segment.ms": "100"}
        target.make(commits, 1, **{"cleanup.policy": "compact", **at_once})
        sink = target.sink(commits_topic=commits, on_replay="publish")
        for number in (1, 2):
            sink.write(words(), attempt(number))
        # A later token begins the segment that is not compacted.
        later = iter(range(1, 1000))

        def compacted() -> bool:
            sink.write(words(), attempt(time=LATER + timedelta(seconds=next(later))))
            return [one.key() for one in target.messages(commits)].count(target.messages(commits)[0].key()) == 1

        eventually(compacted, "the end of the first token", seconds=60)
        found = target.sink(commits_topic=commits).committed(attempt(3))
        assert found is not None
        assert found.attempt == 2

    def test_it_is_made_once_and_keeps_tokens_for_a_month(self, target: KafkaTarget) -> None:
        target.delete(target.commits)
        now = attempt(time=datetime.now(UTC).replace(microsecond=0))
        run(target.sink(), words(*_ROWS), now)
        settings = target.settings(target.commits)
        assert (settings["cleanup.policy"], settings["retention.ms"]) == ("compact,delete", "2592000000")
        assert target.sink().committed(replace(now, attempt=2)) is not None

    def test_if_it_was_deleted_a_later_attempt_publishes_nothing(self, target: KafkaTarget) -> None:
        run(target.sink(), words(*_ROWS), attempt())
        target.delete(target.commits)
        with pytest.raises(TargetUnavailableError, match="kafka-topics --create --topic"):
            carry_out(target.sink(), attempt(2), *_ROWS)
        assert counted(target) == dict.fromkeys(_ROWS, 1)

    def test_an_attempt_makes_it_if_nothing_was_ever_published(self, target: KafkaTarget) -> None:
        """Check brokers that were away while the first attempt ran."""
        target.delete(target.commits)
        run(target.sink(), words(*_ROWS), attempt(2))
        assert counted(target) == dict.fromkeys(_ROWS, 1)

    def test_one_that_deletes_too_soon_is_refused(self, target: KafkaTarget) -> None:
        commits = f"{target.topic}-short"
        target.make(commits, 1, **{"cleanup.policy": "compact,delete", "retention.ms": "604800000"})
        sink = target.sink(commits_topic=commits)
        with pytest.raises(TargetUnavailableError, match=r"retention\.ms=604800000"):
            sink.write(words(*_ROWS), attempt())
        check = sink.check_target()
        assert (check.health, "retention.ms=604800000" in check.found) == ("failed", True)

    def test_a_batch_older_than_its_tokens_may_have_been_published(self, target: KafkaTarget) -> None:
        late = replace(attempt(), began_at=TIME + timedelta(days=31))
        with pytest.raises(SinkError, match="may be gone"):
            target.sink().write(words(*_ROWS), late)
        run(target.sink(on_replay="publish"), words(*_ROWS), late)
        assert counted(target) == dict.fromkeys(_ROWS, 1)
