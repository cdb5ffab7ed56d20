"""Test the how-to on local time: its example runs, and its days have the hours that it says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from forebay import Pipeline
from forebay.testing import run_batch
from orchestration.declarations.apply import apply, is_applied
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import batch_times
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "local-time.md").read_text(encoding="utf-8")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def example() -> dict[str, Any]:
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_its_pipelines_are_applied_and_their_next_batch_is_local(engine: sa.Engine, example: dict[str, Any]) -> None:
    with connect(engine) as connection:
        apply(connection, [example["daily"], example["hourly"]])
        for pipeline in (example["daily"], example["hourly"]):
            assert is_applied(connection, pipeline)
            times = batch_times(connection, get_pipeline(connection, pipeline.name).pipeline_id)
            local = times.next_due.astimezone(BERLIN)
            assert (local.minute, local.second) == (0, 0)
            assert local.hour == 0 or pipeline is example["hourly"]
            assert times.last <= times.now < times.next_due


def test_its_days_have_the_hours_of_the_table(example: dict[str, Any]) -> None:
    calendar = example["daily"].calendar
    rows = re.findall(r"^\| (\S+ \S+) UTC \| (\S+ \S+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for utc, local, hours in rows:
        time = datetime.fromisoformat(utc).replace(tzinfo=UTC)
        assert calendar.is_boundary(time)
        assert f"{time.astimezone(BERLIN):%Y-%m-%d %H:%M}" == local
        before = calendar.newest_up_to(time - timedelta(microseconds=1))
        assert time - before == timedelta(hours=int(hours))


def test_its_intervals_are_valid() -> None:
    table = PAGE.partition("## Intervals")[2].partition("Weeks on a day")[0]
    intervals = re.findall(r'`"([^"]+)"`', table)
    assert len(intervals) == 11
    for interval in intervals:
        assert Pipeline("words", interval=interval, timezone="Europe/Berlin").calendar is not None
    assert Pipeline("words", interval="7d").calendar is None


@pytest.mark.spark
def test_its_window_has_the_hours_of_a_long_day(session: SparkSession, example: dict[str, Any]) -> None:
    orders, hourly = example["orders"], example["hourly"]
    midnight = datetime(2026, 10, 26, tzinfo=BERLIN)
    found = run_batch(
        hourly,
        {orders: ["a"]},
        earlier=[{orders: ["a"]}] * 30,
        batch_time=midnight.astimezone(UTC),
        session=session,
    )
    assert found["orders_of_the_day"].to_pylist() == [{"value": "a", "count": 25}]
    assert not run_batch(hourly, {orders: ["a"]}, batch_time=midnight.astimezone(UTC) + timedelta(hours=1))
    # Without a time, one at which the output is due is taken.
    assert run_batch(hourly, {orders: ["a"]}, session=session)["orders_of_the_day"].num_rows == 1
