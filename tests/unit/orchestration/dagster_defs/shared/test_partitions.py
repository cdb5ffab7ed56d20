"""Check partitions by batch time, in UTC or the pipeline's zone: each batch is in one, also where clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from forebay import DeclarationError, Pipeline
from orchestration.dagster_defs.shared.partitions import partition_key, partitions_of, past_partitions

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


@pytest.mark.parametrize("partitions", ["hour", "day"])
@pytest.mark.parametrize("start", CHANGES)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "Antarctica/Troll"])
def test_a_pipeline_with_a_zone_has_partitions_of_its_hours_and_days(
    zone: str, start: datetime, partitions: str
) -> None:
    pipeline = Pipeline("words", interval="30m", timezone=zone, partitions=partitions)
    definition = partitions_of(pipeline)
    assert definition is not None
    seen: dict[str, int] = {}
    for half_hour in range(3 * 48):
        time = start.astimezone(UTC) + half_hour * timedelta(minutes=30)
        key = partition_key(pipeline, time)
        assert key is not None
        window = definition.time_window_for_partition_key(key)
        assert window.start <= time < window.end
        assert key.startswith(f"{time.astimezone(ZoneInfo(zone)):%Y-%m-%d}")
        seen[key] = seen.get(key, 0) + 1
    if zone == "Europe/Berlin":
        day = {"hour": {2}, "day": {48, 46 if start.month == 3 else 50}}[partitions]
        assert {seen[key] for key in sorted(seen)[:-1]} == day


def test_an_asset_below_an_output_has_the_partitions_that_are_over() -> None:
    cases = [("hour", "2026-01-02-13:00", "2026-01-02-12:00"), ("day", "2026-01-02", "2026-01-01")]
    for kind, current, newest in cases:
        pipeline = Pipeline("words", interval="30m", partitions=kind)
        own, below = partitions_of(pipeline), past_partitions(pipeline)
        assert own is not None
        with dg.partition_loading_context(datetime(2026, 1, 2, 13, 30, tzinfo=UTC)):
            assert (own.get_last_partition_key(), below.get_last_partition_key()) == (current, newest)
        assert own.time_window_for_partition_key(newest) == below.time_window_for_partition_key(newest)
    with pytest.raises(DeclarationError, match="pipeline 'words' has no partitions"):
        past_partitions(Pipeline("words", interval="30m"))
