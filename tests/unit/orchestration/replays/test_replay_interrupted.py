"""Check a replay of several batches: when cancelled it starts no further batch; a batch that fails does not stop it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forebay import Pipeline
from orchestration.declarations.settings import Settings
from orchestration.replays import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

TIMES = [datetime(2026, 1, 1, tzinfo=UTC) + hour * timedelta(hours=1) for hour in range(3)]


def replayed(
    monkeypatch: pytest.MonkeyPatch, second: Callable[[], BaseException]
) -> tuple[list[datetime], list[replay.ReplayedBatch]]:
    """Replay three batches, the second of which raises; return those that were begun, and the results."""
    begun: list[datetime] = []
    said: list[replay.ReplayedBatch] = []

    def replay_batch(_: Pipeline, *, batch_time: datetime, **_options: Any) -> list[Any]:  # noqa: ANN401
        begun.append(batch_time)
        if batch_time == TIMES[1]:
            raise second()
        return []

    monkeypatch.setattr(replay, "replay_batch", replay_batch)

    def session() -> Any:  # noqa: ANN401
        raise AssertionError("this test needs no Spark")

    found = replay.replay_batches(
        Pipeline("words", interval="1h"), TIMES, run_id="r", settings=Settings(), session=session
    )
    try:
        said.extend(found)
    except BaseException:  # noqa: BLE001  the error that was raised
        return begun, said
    return begun, said


def test_a_cancelled_replay_starts_no_further_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, _ = replayed(monkeypatch, KeyboardInterrupt)
    assert begun == TIMES[:2]


def test_a_failed_batch_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, said = replayed(monkeypatch, lambda: RuntimeError("no luck"))
    assert begun == TIMES
    assert [bool(batch.error) for batch in said] == [False, True, False]
