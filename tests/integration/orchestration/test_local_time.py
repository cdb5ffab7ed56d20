"""Test batches by local time on a real driver log: clock changes, changed zones, hosts whose rules differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_inputs import read_batch_inputs
from orchestration.batches.batch_schedule import BatchRules, next_steps
from orchestration.declarations.apply import apply
from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.log import Log
from tracker_store.batches.batches import decided_times
from tracker_store.batches.pipeline_states import start_pipelines
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import batch_times
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.receivers import placements
from tracker_store.schema import batch_calendar

if TYPE_CHECKING:
    from pathlib import Path

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SPRING, AUTUMN = datetime(2025, 3, 30, tzinfo=BERLIN), datetime(2025, 10, 26, tzinfo=BERLIN)


def midnight(day: datetime, days: int = 0) -> datetime:
    """Return a local midnight in UTC: added by the wall clock, as Python does within one zone."""
    return (day + timedelta(days=days)).astimezone(UTC)


def declared(interval: str, timezone: str | None, *, slide: str | None = None, **settings: Any) -> Pipeline:  # noqa: ANN401
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval=interval, timezone=timezone, **settings)
    window = lines if slide is None else lines.window(slide, slide=slide)
    pipeline.output(inputs=[window], sink=ParquetSink("/out"), name="counts")(lambda lines: lines)
    return pipeline


def begun(connection: sa.Connection, pipeline: Pipeline, last: datetime, *times: datetime) -> Log:
    """Apply a pipeline as if its last batch was at `last`, with a block at each of the times."""
    apply(connection, [pipeline])
    row = get_pipeline(connection, "words")
    log = Log(connection, row.stream_ids[0], row.pipeline_id, [one.receiver_id for one in placements(connection)])
    decide_up_to(connection, last)
    if times:
        log.add_at(log.receiver_ids[0], *times)
    return log


def decide_up_to(connection: sa.Connection, last: datetime) -> None:
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :last, next_batch_time = NULL"), {"last": last}
    )


def walk(log: Log, batches: int) -> list[tuple[datetime, int]]:
    """Run the next batches, as the sensor and a run do; return the time and the records of each."""
    found = []
    for _ in range(batches):
        rules = BatchRules.of_row(get_pipeline(log.connection, "words"))
        [launch] = next_steps(log.connection, rules, launcher="test", runs=None).launches
        time = datetime.fromisoformat(launch.batch_time)
        found.append((time, sum(part.records for part in ranges_of_batch(log.tracker, time))))
        log.end_batch(time)
    return found


@pytest.mark.parametrize(("change", "hours"), [(SPRING, 23), (AUTUMN, 25)])
def test_a_daily_batch_has_the_hours_that_its_day_has(connection: sa.Connection, change: datetime, hours: int) -> None:
    first = midnight(change, -2)
    blocks = [first + n * HOUR + HOUR / 2 for n in range(24 * 5)]
    log = begun(connection, declared("1 day", "Europe/Berlin"), first, *blocks)
    days = [(midnight(change, n), 10 * h) for n, h in ((-1, 24), (0, 24), (1, hours), (2, 24))]
    assert walk(log, 4) == days


@pytest.mark.parametrize(("change", "hours"), [(SPRING, 23), (AUTUMN, 25)])
def test_a_window_of_a_day_on_hourly_batches_is_the_local_day(
    connection: sa.Connection, tmp_path: Path, change: datetime, hours: int
) -> None:
    first = midnight(change)
    blocks = [first + n * HOUR + HOUR / 2 for n in range(-5, 30)]
    pipeline = declared("1h", "Europe/Berlin", slide="1 day", run_empty_batches=True)
    log = begun(connection, pipeline, first - 5 * HOUR, *blocks)
    times = [time for time, records in walk(log, 5 + hours + 1) if records == 10]
    assert times == [first + n * HOUR for n in range(-4, hours + 2)], "each hour of the clock, both of a doubled one"
    output = pipeline.outputs["counts"]
    due = [time for time in times if output.is_due(time, decided_times(connection, log.pipeline_id, time))]
    assert due == [first, midnight(change, 1)]
    inputs = read_batch_inputs(
        connection, pipeline, log.pipeline_id, due[1], [output], block_store=f"file://{tmp_path}"
    )
    [window] = inputs.windows.values()
    assert len(window) == hours


def test_an_empty_hour_runs_only_where_the_local_day_of_a_window_ends(connection: sa.Connection) -> None:
    first = midnight(AUTUMN)
    pipeline = declared("1h", "Europe/Berlin", slide="1 day")
    log = begun(connection, pipeline, first, first + 3 * HOUR + HOUR / 2)
    # With its record; at the end of its day; at the end of the next, whose window has lost it.
    assert [time for time, _ in walk(log, 3)] == [first + 4 * HOUR, midnight(AUTUMN, 1), midnight(AUTUMN, 2)]


def test_another_zone_and_interval_begin_after_the_last_batch_and_no_record_is_lost_or_doubled(
    connection: sa.Connection,
) -> None:
    first = datetime(2025, 10, 24, tzinfo=UTC)
    blocks = [first + n * HOUR + HOUR / 2 for n in range(24 * 6)]
    log = begun(connection, declared("1d", None), first, *blocks)
    found = walk(log, 1)
    apply(connection, [declared("1 day", "Europe/Berlin")])
    found += walk(log, 2)
    apply(connection, [declared("6h", "Asia/Kolkata")])
    found += walk(log, 2)
    apply(connection, [declared("1d", None)])
    found += walk(log, 2)
    assert found == [
        (first + DAY, 240),
        (midnight(AUTUMN), 220),
        (midnight(AUTUMN, 1), 250),
        # 23:00 in UTC is 04:30 there, and the next are 06:00 and 12:00.
        (datetime(2025, 10, 27, 0, 30, tzinfo=UTC), 10),
        (datetime(2025, 10, 27, 6, 30, tzinfo=UTC), 60),
        (datetime(2025, 10, 28, tzinfo=UTC), 180),
        (datetime(2025, 10, 29, tzinfo=UTC), 240),
    ]


def test_hosts_with_other_rules_cut_at_the_same_instants_and_lose_nothing(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = midnight(AUTUMN, -3)
    blocks = [first + n * HOUR / 2 + HOUR / 4 for n in range(48 * 9)]
    pipeline = declared("1h", "Europe/Berlin", slide="1 day", run_empty_batches=True)
    log = begun(connection, pipeline, first, *blocks)
    known = batch_calendar.zone_of
    # One where the same name means other rules: clocks that are never set, and half an hour off.
    rules = [known, lambda _: known("Africa/Lagos"), lambda _: known("Asia/Kolkata")]
    found: list[tuple[datetime, int]] = []
    for n in range(120):
        monkeypatch.setattr(batch_calendar, "zone_of", rules[n % 3])
        times = batch_times(connection, log.pipeline_id)
        monkeypatch.setattr(batch_calendar, "zone_of", rules[(n + 1) % 3])
        assert batch_times(connection, log.pipeline_id).next_due == times.next_due, "as the row says"
        found += walk(log, 1)
    decided = [time for time, _ in found]
    assert decided == sorted({*decided})
    assert sum(records for _, records in found) == 10 * sum(block < decided[-1] for block in blocks)
    output = pipeline.outputs["counts"]
    for time in decided:
        said = decided_times(connection, log.pipeline_id, time)
        answers = set()
        for each in rules:
            monkeypatch.setattr(batch_calendar, "zone_of", each)
            answers.add((output.is_due(time, said), output.windows[0].begin(time, said)))
        assert len(answers) == 1, "what was decided with the batch"


def test_a_pipeline_that_was_stopped_goes_on_at_the_newest_local_boundary(connection: sa.Connection) -> None:
    log = begun(connection, declared("1 month", "Europe/Berlin"), midnight(AUTUMN))
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    assert start_pipelines(connection) == ["words"]
    times = batch_times(connection, log.pipeline_id)
    local = times.last.astimezone(BERLIN)
    assert (local.day, local.hour, local.minute) == (1, 0, 0)
    assert times.last <= times.now < times.next_due
    assert times.newest == times.last
    following = times.next_due.astimezone(BERLIN)
    assert (following.day, following.hour) == (1, 0)
    assert (following - local).days in range(27, 32)


def test_a_new_pipeline_begins_at_the_next_local_boundary(connection: sa.Connection) -> None:
    apply(connection, [declared("1 week on wednesday", "Australia/Lord_Howe")])
    times = batch_times(connection, get_pipeline(connection, "words").pipeline_id)
    assert times.last <= times.now < times.next_due
    for time in (times.last, times.next_due):
        local = time.astimezone(ZoneInfo("Australia/Lord_Howe"))
        assert (local.weekday(), local.hour, local.minute) == (2, 0, 0)
    [row] = connection.execute(
        sa.text("SELECT due_batches, oldest_due, intervals_behind FROM forebay.pipeline_status")
    ).all()
    assert tuple(row) == (0, None, 0)
    decide_up_to(connection, times.last - timedelta(days=14))
    apply(connection, [declared("1 week on wednesday", "Australia/Lord_Howe")])
    [row] = connection.execute(
        sa.text("SELECT due_batches, oldest_due, intervals_behind FROM forebay.pipeline_status")
    ).all()
    assert row.due_batches in (2, 3)
    assert abs(row.oldest_due - (times.last - timedelta(days=7))) <= HOUR / 2


def test_merged_days_are_one_batch_at_the_newest_midnight(connection: sa.Connection) -> None:
    first = midnight(AUTUMN, -2)
    log = begun(connection, declared("1 day", "Europe/Berlin", catch_up="merge"), first, first + HOUR, first + 5 * DAY)
    [(time, records)] = walk(log, 1)
    assert records == 20
    assert time.astimezone(BERLIN).hour == 0
    assert time == batch_times(connection, log.pipeline_id).newest


def test_the_queue_counts_local_days(connection: sa.Connection) -> None:
    log = begun(connection, declared("1 day", "Europe/Berlin", run_empty_batches=True), midnight(SPRING, -1))
    rules = BatchRules.of_row(get_pipeline(connection, "words"))
    steps = next_steps(log.connection, rules, launcher="test", runs=None)
    times = batch_times(connection, log.pipeline_id)
    days = (times.newest.astimezone(BERLIN).date() - times.last.astimezone(BERLIN).date()).days
    assert f"{days} more interval(s)" in steps.reason


def test_a_zone_that_this_host_does_not_know_is_named(connection: sa.Connection) -> None:
    log = begun(connection, declared("1 day", "Europe/Berlin"), midnight(AUTUMN))
    connection.execute(
        sa.text(
            "UPDATE forebay.pipelines "
            "SET declaration = jsonb_set(declaration, '{calendar,timezone}', '\"Mars/Olympus\"')"
        )
    )
    with pytest.raises(DriverLogError, match=r"'Mars/Olympus' is no time zone that this host knows"):
        batch_times(connection, log.pipeline_id)


def test_a_batch_of_an_attempt_that_fails_names_only_outputs_that_were_due(connection: sa.Connection) -> None:
    """Check `end_attempt`: an output whose slide does not end at the batch is not one that it lacks."""
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h", timezone="Europe/Berlin")
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda lines: lines)
    pipeline.output(inputs=[lines.window("1 day", slide="1 day")], sink=ParquetSink("/days"), name="days")(
        lambda lines: lines
    )
    first = midnight(AUTUMN)
    log = begun(connection, pipeline, first - 2 * HOUR, first - HOUR - HOUR / 2, first - HOUR / 2)
    for time, reason in ((first - HOUR, "x"), (first, "partially committed (only counts): x")):
        rules = BatchRules.of_row(get_pipeline(connection, "words"))
        [launch] = next_steps(connection, rules, launcher="test", runs=None).launches
        assert datetime.fromisoformat(launch.batch_time) == time
        connection.execute(
            sa.text(
                "INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location) "
                "VALUES (:p, 'counts', :t, 1, '')"
            ),
            {"p": log.pipeline_id, "t": time},
        )
        log.end_batch(time, fails=True)
        found = connection.execute(
            sa.text("SELECT reason FROM forebay.batches WHERE batch_time = :t"), {"t": time}
        ).scalar_one()
        assert found == reason


def test_a_batch_that_is_decided_while_a_zone_is_applied_leaves_the_next_boundary_known(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check because the tracker's look for due pipelines knows a calendar's boundaries by the row alone."""
    log = begun(connection, declared("1d", None), midnight(AUTUMN))
    next_after = batch_calendar.BatchCalendar.next_after
    in_between = iter([True, False, False])

    def raced(calendar: batch_calendar.BatchCalendar, time: datetime) -> datetime:
        if next(in_between, False):
            connection.execute(
                sa.text("UPDATE forebay.pipelines SET last_batch_time = :at"), {"at": midnight(AUTUMN, 2)}
            )
        return next_after(calendar, time)

    monkeypatch.setattr(batch_calendar.BatchCalendar, "next_after", raced)
    apply(connection, [declared("1 day", "Europe/Berlin")])
    stored = connection.execute(sa.text("SELECT next_batch_time FROM forebay.pipelines")).scalar_one()
    assert stored == batch_times(connection, log.pipeline_id).next_due == midnight(AUTUMN, 3)


def test_a_clock_that_was_set_back_makes_the_next_local_batch_and_no_other_one(connection: sa.Connection) -> None:
    log = begun(connection, declared("1h", "Asia/Kolkata"), midnight(AUTUMN))
    now = batch_times(connection, log.pipeline_id).now
    last = batch_calendar.BatchCalendar(batch_calendar.span_of("1h"), "Asia/Kolkata").next_after(now + 3 * HOUR)
    decide_up_to(connection, last)
    apply(connection, [declared("1h", "Asia/Kolkata")])
    times = batch_times(connection, log.pipeline_id)
    assert (times.set_back, times.next_due, times.newest) == (True, last + HOUR, last + HOUR)
    for refused in (last + HOUR / 2, last + 2 * HOUR):
        with pytest.raises(DriverLogError, match="has not come"):
            log.tracker.allocate_blocks_to_batch(refused)
    log.tracker.allocate_blocks_to_batch(last + HOUR, next_boundary=last + 2 * HOUR)
    times = batch_times(connection, log.pipeline_id)
    assert times.next_due == last + 2 * HOUR > times.newest
    with pytest.raises(DriverLogError, match="has not come"):
        log.tracker.allocate_blocks_to_batch(last + 2 * HOUR)
