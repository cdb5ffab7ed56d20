"""Test a ParquetSink's folders by local time, in a directory and on an object store: each row is seen once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType

from orchestration.declarations.sink import TargetUnavailableError, Upkeep
from tests.integration.orchestration.target_database import attempt
from tests.integration.orchestration.test_parquet_added_columns import frame, make, rows, write  # noqa: F401  fixture

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay import ParquetSink

    Make = Callable[..., ParquetSink]

# 02:00 and 02:30 in Berlin, each twice, with the batches before and after.
TWO = datetime(2025, 10, 26, 0, tzinfo=UTC)
TIMES = [TWO + n * timedelta(minutes=30) for n in range(-1, 5)]
DAY = date(2025, 10, 26)


@pytest.fixture
def local(make: Make) -> Make:  # noqa: F811  the fixture above
    def made(zone: str | None = "Europe/Berlin", **options: object) -> ParquetSink:
        sink = make(**options)
        sink.in_timezone(zone)
        return sink

    return made


def test_both_of_two_hours_that_the_clock_shows_alike_are_compacted_and_replayed_together(local: Make) -> None:
    sink = local(compact=True)
    for number, time in enumerate(TIMES):
        write(sink, frame((number,), n=LongType()), time=time)
    assert rows(sink, "n") == [(n,) for n in range(6)]
    assert {sink.published_hour(time) for time in TIMES[1:5]} == {(TWO, TWO + timedelta(hours=2))}
    assert sink.upkeep_hours() == [TWO]
    turn = Upkeep("words", "counts", TWO, dict.fromkeys(TIMES[1:5], 1))
    assert sink.upkeep(turn) == {"hours": 1, "rows": 4}
    assert rows(sink, "n") == [(n,) for n in range(6)]
    # A process that declares another zone publishes what was committed before: the batch stays in its one folder.
    for number, zone in enumerate(("Europe/Berlin", "Asia/Kolkata", None), start=2):
        located = local(compact=True).write(frame((number * 10,), n=LongType()), attempt(number, time=TIMES[4]))
        local(zone, compact=True).publish(located.location, batch_time=TIMES[4])
        assert rows(sink, "n") == sorted([*((n,) for n in (0, 1, 2, 3, 5)), (number * 10,)], key=repr)
    assert sink.dataset(DAY).count_rows() == 6


def test_another_zone_for_a_path_blocks_its_batches_until_it_is_named(local: Make) -> None:
    write(local(None), frame((1,), n=LongType()), time=TWO)
    with pytest.raises(TargetUnavailableError, match=r'in the time of UTC.*Europe/Berlin.*timezone="UTC"'):
        write(local(), frame((2,), n=LongType()), time=TIMES[2])
    write(local(timezone="UTC"), frame((2,), n=LongType()), time=TIMES[2])
    # A replay of a batch of before.
    write(local(timezone="UTC"), frame((7,), n=LongType()), 2, time=TWO)
    assert rows(local(), "n") == [(2,), (7,)]


def test_a_path_of_a_zone_is_refused_to_a_pipeline_that_has_none(local: Make) -> None:
    write(local(), frame((1,), n=LongType()), time=TWO)
    with pytest.raises(TargetUnavailableError, match=r'Europe/Berlin.*would be in those of UTC.*timezone="Europe/Ber'):
        write(local(None), frame((2,), n=LongType()), time=TIMES[2])
    write(local(None, timezone="Europe/Berlin"), frame((2,), n=LongType()), time=TIMES[2])
    assert rows(local(), "n") == [(1,), (2,)]
