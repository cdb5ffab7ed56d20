"""Check ForeachBatchSink and ConsoleSink without Spark: what they are given, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay import ConsoleSink, DeclarationError, ForeachBatchSink, IcebergSink, PostgresSink
from orchestration.declarations.sink import DeliveryGuarantee, OutputAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME = datetime(2026, 1, 1, 12, 0, 10, 500_000, tzinfo=UTC)


def attempt(number: int) -> OutputAttempt:
    return OutputAttempt("words", 1, "counts", TIME, number, f"run{number}")


class Shown:
    def __init__(self) -> None:
        self.calls: list[tuple[int, object]] = []

    def show(self, rows: int, *, truncate: object) -> None:
        self.calls.append((rows, truncate))


def test_the_function_gets_the_frame_and_the_same_id_in_each_attempt() -> None:
    calls: list[tuple[object, int]] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        calls.append((frame, batch_id))

    sink = ForeachBatchSink(keep)
    frame = cast("DataFrame", Shown())
    written = [sink.write(frame, attempt(number)) for number in (1, 2)]
    assert calls == [(frame, 1_767_268_810_500)] * 2
    assert [entry.rows for entry in written] == [None, None]
    assert sink.committed(attempt(2)) is None
    assert sink.guarantee is DeliveryGuarantee.AT_LEAST_ONCE
    assert sink.declaration()["function"].endswith("keep")


@pytest.mark.parametrize(("overrides_to", "newest"), [(None, 0), (-10, 0), (0, 0), (10, 10)])
def test_an_attempt_overrides_its_own_batch_and_what_a_replay_runs_again(overrides_to: int | None, newest: int) -> None:
    to = None if overrides_to is None else TIME + timedelta(seconds=overrides_to)
    assert replace(attempt(2), overrides_to=to).newest_overridden == TIME + timedelta(seconds=newest)


def test_a_function_that_does_not_take_both_arguments_is_refused_when_declared() -> None:
    one: Any = lambda frame: None  # noqa: E731  a function with one parameter is the point of this test
    with pytest.raises(DeclarationError, match=r"can't be called with \(frame, batch_id\).*write def function"):
        ForeachBatchSink(one)


def test_the_console_says_which_batch_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    frame = Shown()
    ConsoleSink(rows=5, truncate=False).write(cast("DataFrame", frame), attempt(1))
    assert frame.calls == [(5, False)]
    assert "words.counts, batch 2026-01-01T12:00:10.500000+00:00\n" in capsys.readouterr().out
    with pytest.raises(DeclarationError, match="rows=0"):
        ConsoleSink(rows=0)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pl4nted@db/target",
        "postgresql://me:pl4/nted@db/target",
        "postgresql://me:12/4@db/target",
        "postgresql://me@db/target?sslpassword=pl4nted",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(DeclarationError, match=r"EnvVar\(\"NAME\"\)") as by_postgres:
        PostgresSink(url, "t")
    with pytest.raises(DeclarationError, match=r"holds a secret.*EnvVar\(\"NAME\"\)") as by_iceberg:
        IcebergSink("a.b", catalog={"type": "sql", "uri": url})
    for error in (by_postgres.value, by_iceberg.value):
        assert not [secret for secret in ("pl4", "12/4") if secret in str(error)]
