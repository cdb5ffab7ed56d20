"""Test the screen of `forebay top`: rates, what comes first, and that it fits any terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forebay.cli.terminal.console import Console
from forebay.cli.terminal.many_rows import stream_sums
from forebay.cli.terminal.row_json import to_json
from forebay.cli.terminal.top_screen import Snapshot, draw, rates, report
from tracker_store.reports.status import BatchStats, PipelineStatus, ReceiverStatus, StreamLag

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def receiver(number: int, *, stream: str = "lines", records: int = 0, state: str = "ACTIVE") -> ReceiverStatus:
    return ReceiverStatus(
        stream=stream,
        ordinal=number,
        receiver_id=number,
        state=state,
        desired_state="running",
        reason="",
        agent="a",
        host="a-host-with-a-long-name.example.com",
        epoch=1,
        newest_sequence=1,
        records=records,
        bytes=0,
        last_block_at=NOON - timedelta(seconds=3),
        dead_letters=0,
        rate_limit=None,
        queued_blocks=2,
    )


def pipeline(name: str, **changes: object) -> PipelineStatus:
    row = PipelineStatus(
        name,
        "RUNNING",
        NOON,
        timedelta(seconds=10),
        NOON,
        1,
        1_234_567,
        1,
        timedelta(minutes=90),
        1,
        1,
        NOON,
        NOON,
        None,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def batch(number: int, *, state: str = "COMPLETED") -> BatchStats:
    second = timedelta(seconds=1)
    time = NOON + number * second
    return BatchStats("words", time, state, 1, 10, 10, 1, "", None, second, second, 2 * second)


def snapshot(receivers: list[ReceiverStatus], at: float = 0, **parts: list[object]) -> Snapshot:
    return Snapshot(
        at,
        NOON + timedelta(seconds=at),
        receivers,
        parts.get("lags", []),  # type: ignore[arg-type]
        parts.get("pipelines", []),  # type: ignore[arg-type]
        parts.get("batches", []),  # type: ignore[arg-type]
    )


def shown(before: Snapshot | None, now: Snapshot, *, width: int = 80, height: int = 24, note: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(draw(before, now, height=height, note=note))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_a_rate_is_what_came_between_two_looks() -> None:
    before = snapshot([receiver(1, records=100), receiver(2, records=50), receiver(3, records=9)])
    now = snapshot([receiver(1, records=400), receiver(2, records=50), receiver(3, records=2), receiver(4)], 2)
    # The third was forgotten and declared again, the fourth is new: nothing is known of them.
    assert rates(before, now) == {1: 150, 2: 0}
    [row] = stream_sums(now.receivers, rates(before, now))
    assert (row.records_per_second, row.running, row.receivers, row.records, row.queued_blocks) == (150, 4, 4, 452, 8)
    assert "150 records/s" in shown(before, now)[0]
    assert stream_sums(now.receivers)[0].records_per_second is None
    assert rates(now, now) == rates(None, now) == {}


def test_the_lag_of_a_stream_is_that_of_its_slowest_pipeline() -> None:
    lags = [
        StreamLag("a", "lines", 1, 1, 1, timedelta(seconds=3)),
        StreamLag("b", "lines", 1, 1, 1, timedelta(seconds=8)),
        StreamLag("c", "lines", 0, 0, 0, None),
    ]
    [row] = stream_sums([receiver(1)], lags=lags)
    assert row.lag == timedelta(seconds=8)


def test_what_needs_attention_comes_first() -> None:
    receivers = [receiver(1, records=10), receiver(2, state="FAILED"), receiver(3, stream="b", records=1)]
    before = snapshot([replace(row, records=0) for row in receivers])
    now = snapshot(receivers, 1, pipelines=[pipeline("calm"), pipeline("stopped", halted_by=NOON)])
    lines = shown(before, now, height=50)

    def place(text: str) -> int:
        return next(number for number, line in enumerate(lines) if line.startswith(text))

    assert place("lines/2") < place("lines/1") < place("b/3")
    assert place("lines ") < place("b ")
    assert place("stopped") < place("calm")
    assert "HALTED" in lines[place("stopped")]


@pytest.mark.parametrize("height", [18, 24, 40, 100])
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_the_screen_fits_the_terminal(width: int, height: int, count: int) -> None:
    long = "a_stream_with_a_name_that_is_longer_than_any_terminal_has_room_for_" * 3
    receivers = [receiver(n, stream=f"{long}{n % 50}", records=10**12) for n in range(count)]
    now = snapshot(
        receivers,
        1,
        pipelines=[pipeline(f"{long}{n}") for n in range(count)],
        batches=[batch(n) for n in range(min(count, 20))],
    )
    lines = shown(snapshot(receivers), now, width=width, height=height, note=f"The driver log {long}")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert sum(line.startswith(("STREAMS", "PIPELINES", "BATCHES", "RECEIVERS")) for line in lines) == 4
    if count == 300:
        assert any(line.startswith("… and ") for line in lines)
        # No row is left out where there is room; a section that shows all has no line that counts the others.
        assert len(lines) >= height - 1


def test_a_name_obeys_no_terminal_and_no_markup() -> None:
    lines = shown(None, snapshot([receiver(1, stream="x[red]\x1b[2J")]), note="\x1b[2J")
    assert "\x1b[2J" not in "".join(lines)
    assert any("x[red]\\u001b[2J" in line for line in lines)


def test_json_has_every_row() -> None:
    before = snapshot([receiver(1)])
    now = snapshot([receiver(1, records=5)], 1, pipelines=[pipeline("words")], batches=[batch(1)])
    told = json.loads(to_json(report(before, now)))
    assert told["streams"][0]["records_per_second"] == 5
    assert told["receivers"][0]["receiver"] == "lines/1"
    assert told["pipelines"][0]["lag"] == 5400
    assert told["batches"][0]["total_delay"] == 2
