"""Check partitions by batch time: they are in UTC, so hours that local time skips or repeats are still partitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from forebay import Pipeline
from orchestration.dagster_defs.shared.partitions import partition_key, partitions_of

BERLIN = ZoneInfo("Europe/Berlin")
# The days before, of and after a change to or from summer time in Berlin.
CHANGES = [datetime(2026, 3, 28, tzinfo=BERLIN), datetime(2026, 10, 24, tzinfo=BERLIN)]


@pytest.mark.parametrize("partitions", ["hour", "day"])
@pytest.mark.parametrize("start", CHANGES)
def test_each_batch_is_in_one_partition_across_clock_changes(start: datetime, partitions: str) -> None:
    pipeline = Pipeline("words", interval="30m", partitions=partitions)
    definition = partitions_of(pipeline)
    assert definition is not None
    begin = start.astimezone(UTC)
    seen: dict[str, int] = {}
    for half_hour in range(3 * 48):
        time = begin + half_hour * timedelta(minutes=30)
        key = partition_key(pipeline, time.astimezone(BERLIN))
        assert key is not None
        window = definition.time_window_for_partition_key(key)
        assert window.start <= time < window.end
        seen[key] = seen.get(key, 0) + 1
    whole = sorted(seen)[1:-1]
    assert {seen[key] for key in whole} == {48 if partitions == "day" else 2}
