"""Test outputs by event time against a model in plain Python, over random histories of several batches.

All kinds of windows and joins read the same records. Each key of them is a case of its own, so that one history has
many; the watermark is theirs together.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from forebay import EventJoin, EventWindow, ParquetSink, Pipeline, SessionWindow, State, Stream
from forebay.records import Json
from forebay.sources import Http
from forebay.testing import run_batch
from orchestration.batches.stateful.event_batch import Computed, EventBatch
from orchestration.declarations.sink import DeliveryGuarantee, OutputAttempt, Sink, SinkError, Written
from orchestration.state.state_frame import microseconds, time_of
from tests.integration.orchestration.batches.event_model import (
    Clock,
    JoinModel,
    Record,
    SessionModel,
    WindowModel,
    Windows,
    sessions_of,
    starts,
)
from tests.support.searches import examples, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.state.event_time import EventTime

pytestmark = pytest.mark.spark

MINUTE = 60_000_000
LATENESS, AHEAD = 10, 60 * 24
LENGTH, SLIDE, GAP = 5, 2, 4
LONG, SHORT = 6, 3
JOINED, LEFT, SELF = (0, 3), (-2, 4), (-3, -1)


class MergeSink(Sink):
    """Stands in for a sink that replaces the rows of windows."""

    guarantee = DeliveryGuarantee.EXACTLY_ONCE
    mode = "merge"

    def declaration(self) -> dict[str, Any]:
        return {"kind": "merge"}

    def replaces(self, columns: Sequence[str]) -> bool:
        return True

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        raise NotImplementedError


FINAL, UPDATES = ParquetSink("never"), MergeSink()
COLUMNS = Json("n BIGINT, key STRING, at TIMESTAMP")
left = Stream("left", Http(listen="127.0.0.1:8080"), records=COLUMNS)
right = Stream("right", Http(listen="127.0.0.1:8081"), records=COLUMNS)
pipeline = Pipeline("p", interval="10s")


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def by_time(stream: Stream) -> EventTime:
    return stream.by_event_time("at", lateness=minutes(LATENESS), idle="365d", ahead=minutes(AHEAD))


def same(records: DataFrame) -> DataFrame:
    """Return each record with its window."""
    return records


def totals(records: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Count the records of each key."""
    key = ["window_start", "key"]
    more = records.groupBy(*key).agg(F.count("*").alias("more"))
    before = state.select(F.col("window_start").alias("w"), F.col("key").alias("k"), "count", "is_expired")
    is_same = F.col("window_start").eqNullSafe(F.col("w")) & F.col("key").eqNullSafe(F.col("k"))
    both = more.join(before, is_same, "full").select(
        F.coalesce("window_start", "w").alias("window_start"),
        F.when(F.col("window_start").isNull(), F.col("k")).otherwise(F.col("key")).alias("key"),
        (F.coalesce("more", F.lit(0)) + F.coalesce("count", F.lit(0))).alias("count"),
    )
    return both, both


def declare(
    name: str,
    function: Callable[..., Any],
    *,
    sink: Sink,
    inputs: Sequence[Stream] = (left,),
    late: Sink | None = None,
    **kind: Any,  # noqa: ANN401  windows, a join, a state
) -> None:
    pipeline.output(inputs=[by_time(stream) for stream in inputs], sink=sink, name=name, late=late, **kind)(function)


SLIDING = EventWindow(minutes(LENGTH), slide=minutes(SLIDE))
EVEN = EventWindow(minutes(LONG), slide=minutes(SHORT))
SESSION = SessionWindow(minutes(GAP), key="key")
declare("sliding", same, sink=FINAL, window=SLIDING, late=FINAL)
declare("sliding_updates", same, sink=UPDATES, window=EVEN)
declare("sessions", same, sink=FINAL, window=SESSION, late=FINAL)
declare("sessions_updates", same, sink=UPDATES, window=SESSION)
TOTALS = State("key STRING", "count BIGINT")
declare("totals", totals, sink=FINAL, window=EventWindow(minutes(LENGTH)), state=TOTALS)
declare("totals_updates", totals, sink=UPDATES, window=EVEN, state=TOTALS)
pairs = EventJoin("key", between=(minutes(JOINED[0]), minutes(JOINED[1])))
declare("inner", same, sink=FINAL, inputs=[left, right], join=pairs, late=FINAL)
pairs = EventJoin("key", between=(minutes(LEFT[0]), minutes(LEFT[1])), how="left")
declare("outer", same, sink=FINAL, inputs=[left, right], join=pairs)
pairs = EventJoin("key", between=(minutes(SELF[0]), minutes(SELF[1])), how="left")
declare("itself", same, sink=FINAL, inputs=[left, left], join=pairs)

# Those of `make test`: each output and batch takes a second of processor time. The others share their code.
BRIEF = ["sliding", "sliding_late", "sliding_updates", "sessions_updates", "outer"]


class Ran(NamedTuple):
    """What one batch has made."""

    results: Mapping[str, list[dict[str, Any]]]
    replaced: Mapping[str, list[dict[str, Any]] | None]
    late: Mapping[str, int]
    watermarks: Mapping[str, datetime | None]


@dataclass
class System:
    """The pipeline, and the states after its last batch."""

    session: SparkSession
    monkeypatch: pytest.MonkeyPatch
    outputs: Sequence[str] | None
    states: Mapping[str, pa.Table] = field(default_factory=dict)

    def run(self, batches: Sequence[Sequence[Record]], batch_time: int) -> Ran:
        """Run the pipeline as a test of a user does, and see what it tells its sinks beside the results."""
        replaced: dict[str, list[dict[str, Any]] | None] = {}
        late: dict[str, int] = {}
        watermarks: dict[str, datetime | None] = {}
        compute = EventBatch.compute

        def seen(event: EventBatch, state: DataFrame, extra: Mapping[str, Any]) -> Computed:
            computed = compute(event, state, extra)
            name = event._output.name
            replaced[name] = None if computed.replaced is None else computed.replaced.toArrow().to_pylist()
            late[name], watermarks[name] = event.progress.late, event.progress.watermark
            return computed

        with self.monkeypatch.context() as patch:
            patch.setattr(EventBatch, "compute", seen)
            results = run_batch(
                pipeline,
                {stream: rows(records) for stream, records in zip((left, right), batches, strict=True)},
                batch_time=time_of(batch_time),
                states=self.states,
                session=self.session,
                outputs=self.outputs,
            )
        self.states = {**self.states, **results.states}
        return Ran({name: table.to_pylist() for name, table in results.items()}, replaced, late, watermarks)


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    return [{"n": n, "key": key, "at": None if at is None else time_of(at)} for n, key, at in records]


def windows_of(result: Iterable[Mapping[str, Any]], *, keyed: bool) -> Windows:
    """Return the records of each window in a result. Each is there once."""
    counts = Counter(
        (row["key"] if keyed else None, microseconds(row["window_start"]), microseconds(row["window_end"]), row["n"])
        for row in result
    )
    assert set(counts.values()) <= {1}
    found: dict[tuple[str | None, int, int], set[int]] = defaultdict(set)
    for key, start, end, number in counts:
        found[key, start, end].add(number)
    return {window: frozenset(numbers) for window, numbers in found.items()}


@dataclass
class Table:
    """The target of an output that replaces the rows of windows."""

    identity: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def take(self, result: list[dict[str, Any]], replaced: list[dict[str, Any]] | None) -> None:
        """Commit the result."""
        assert replaced is not None
        gone = {self._id(row) for row in replaced}
        assert all(set(row) == set(self.identity) for row in replaced)
        self.rows = [row for row in self.rows if self._id(row) not in gone] + result

    def _id(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.identity)


def history(seed: int) -> list[tuple[list[Record], list[Record]]]:
    """Return batches of two streams: keys of their own, shifted times, and some that are late, wrong or at an edge."""
    chosen = random.Random(seed)
    keys = [None, *(f"key {number}" for number in range(12))]
    numbers = iter(range(1_000_000))
    batches: list[tuple[list[Record], list[Record]]] = []
    now = 0
    for number in range(4):
        if number == 2:
            batches.append(([], []))
            continue
        now += chosen.choice([2, 5, 11])
        batch: tuple[list[Record], list[Record]] = ([], [])
        for side in batch[: 1 if number == 0 else 2]:
            # A few records touch few windows.
            for _ in range(60 if number < 2 else 3):
                at = chosen.randint(now - LATENESS - 8, now) * MINUTE + chosen.choice([0, 0, 0, -1, 1])
                side.append(Record(next(numbers), chosen.choice(keys), at))
            side.append(Record(next(numbers), "no time", None))
        batches.append(batch)
    # What is as far ahead as may be makes all windows final.
    last = BATCHES_FROM + len(batches) * MINUTE
    flush = last + AHEAD * MINUTE
    batches.append(
        (
            [Record(next(numbers), "end", flush), Record(next(numbers), "ahead", flush + 1)],
            [Record(next(numbers), "end", flush), Record(next(numbers), "ahead", flush + 1)],
        )
    )
    return batches


# The first batch is a day after 1970 has begun, and events are around that.
BATCHES_FROM = 24 * 60 * MINUTE


@pytest.mark.search
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(examples(6)))
def test_each_batch_has_the_windows_and_pairs_of_the_model(
    seed: int, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Checked(System(session, monkeypatch, outputs=None if is_whole() else BRIEF))
    for number, batches in enumerate(history(seed)):
        checked.run(batches, BATCHES_FROM + number * MINUTE)
    assert sum(len(model.windows()) for model in checked.windows.values()) > 40
    # What is left in the states is of the last records.
    assert all(table.num_rows <= 4 for table in checked.system.states.values())


class Checked:
    """The system, and the models of its outputs."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._one = Clock(LATENESS * MINUTE, AHEAD * MINUTE)
        self._two = Clock(LATENESS * MINUTE, AHEAD * MINUTE, streams=2)
        self.windows: dict[str, WindowModel | SessionModel] = {
            "sliding": WindowModel(LENGTH * MINUTE, SLIDE * MINUTE, self._one),
            "sliding_updates": WindowModel(LONG * MINUTE, SHORT * MINUTE, self._one),
            "sessions": SessionModel(GAP * MINUTE, self._one),
            "totals": WindowModel(LENGTH * MINUTE, LENGTH * MINUTE, self._one),
        }
        self.joins = {
            "inner": JoinModel(JOINED[0] * MINUTE, JOINED[1] * MINUTE, self._two, keeps_left=False),
            "outer": JoinModel(LEFT[0] * MINUTE, LEFT[1] * MINUTE, self._two, keeps_left=True),
            "itself": JoinModel(SELF[0] * MINUTE, SELF[1] * MINUTE, self._one, keeps_left=True),
        }
        self._tables = {
            "sliding_updates": Table(("window_start",)),
            "sessions_updates": Table(("key", "window_start")),
        }
        self._totals: dict[tuple[int, str | None], int] = {}
        self._keys: dict[int, str | None] = {}

    def run(self, batches: tuple[list[Record], list[Record]], batch_time: int) -> None:
        """Run a batch, and compare."""
        of_left, of_right = batches
        self._one.advance([of_left], batch_time)
        self._two.advance(batches, batch_time)
        self._keys |= {record.number: record.key for record in of_left}
        for model in self.windows.values():
            model.take(of_left, batch_time)
        for name, join in self.joins.items():
            join.take([of_left, of_left if name == "itself" else of_right], batch_time)
        ran = self.system.run(batches, batch_time)
        for name in ran.results:
            self._compare(name, ran)

    def _compare(self, name: str, ran: Ran) -> None:
        result = ran.results[name]
        base = name.removesuffix("_updates").removesuffix("_late")
        clock = self._one if base in self.windows or base == "itself" else self._two
        if name in self._tables:
            self._tables[name].take(result, ran.replaced[name])
            model = self.windows["sessions" if base == "sessions" else name]
            assert windows_of(self._tables[name].rows, keyed=base == "sessions") == model.windows()
        elif name in ("sliding", "sessions"):
            assert windows_of(result, keyed=name == "sessions") == self.windows[name].final()
        elif name == "totals":
            assert totals_of(result) == counted(self.windows[name].final(), self._keys)
        elif name == "totals_updates":
            self._totals |= totals_of(result)
            assert self._totals == counted(self.windows["sliding_updates"].windows(), self._keys)
        elif name in self.joins:
            names = ("left", "left_2") if name == "itself" else ("left", "right")
            assert pairs_of(result, names) == Counter(self.joins[name].new)
            assert ran.late[name] == len(self.joins[name].late)
        elif name == "inner_late":
            assert late_sides(result) == Counter(
                (place, record.number, self._two.before) for place, record in self.joins["inner"].late
            )
            return
        else:
            assert late_rows(result) == Counter((record.number, clock.before) for record in self.windows[base].late)
            assert ran.late[name] == len(self.windows[base].late)
            return
        assert ran.replaced[name] is None or name in self._tables
        assert ran.watermarks[name] == (None if clock.after is None else time_of(clock.after))


def late_sides(result: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int, int | None]]:
    return Counter(
        (place, row[side]["n"], row["watermark"] and microseconds(row["watermark"]))
        for row in result
        for place, side in enumerate(("left", "right"))
        if row[side] is not None
    )


def late_rows(result: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int | None]]:
    return Counter((row["n"], row["watermark"] and microseconds(row["watermark"])) for row in result)


def counted(windows: Windows, key_of: Mapping[int, str | None]) -> dict[tuple[int, str | None], int]:
    counts: Counter[tuple[int, str | None]] = Counter()
    for (_, start, _), numbers in windows.items():
        counts.update((start, key_of[number]) for number in numbers)
    return dict(counts)


def totals_of(result: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str | None], int]:
    found = {(microseconds(row["window_start"]), row["key"]): row["count"] for row in result}
    assert len(found) == len([*result])
    return found


def pairs_of(result: Iterable[Mapping[str, Any]], names: tuple[str, str]) -> Counter[tuple[int, int | None]]:
    return Counter((row[names[0]]["n"], row[names[1]] and row[names[1]]["n"]) for row in result)


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[Record]]:
    """Return records in batches, in an order in which none is later than the lateness."""
    keys = st.sampled_from([None, "a", "b"])
    times = draw(st.lists(st.tuples(st.integers(-40, 40), keys, st.integers(0, LATENESS)), max_size=30))
    in_order = sorted(enumerate(times), key=lambda each: each[1][0] + each[1][2])
    records = [Record(number, key, at * MINUTE) for number, (at, key, _) in in_order]
    cuts = sorted(draw(st.lists(st.integers(0, len(records)), max_size=6)))
    return [records[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]


@given(arrivals())
def test_the_model_has_of_any_order_within_the_lateness_what_sorted_records_have(batches: list[list[Record]]) -> None:
    records = [record for batch in batches for record in batch]
    clock = Clock(LATENESS * MINUTE, AHEAD * MINUTE)
    windows, sessions = WindowModel(LENGTH * MINUTE, SLIDE * MINUTE, clock), SessionModel(GAP * MINUTE, clock)
    join = JoinModel(LEFT[0] * MINUTE, LEFT[1] * MINUTE, clock, keeps_left=True)
    final: list[Windows] = []
    end = Record(-1, "end", AHEAD * MINUTE)
    pairs: Counter[tuple[int, int | None]] = Counter()
    for batch in [*batches, [end]]:
        clock.advance([batch], 0)
        windows.take(batch, 0)
        sessions.take(batch, 0)
        join.take([batch, batch], 0)
        assert not windows.late
        assert not sessions.late
        final.append(windows.final() | sessions.final())
        pairs.update(join.new)
    expected: dict[tuple[str | None, int, int], set[int]] = defaultdict(set)
    for number, _, at in records:
        for start in starts(at or 0, LENGTH * MINUTE, SLIDE * MINUTE):
            expected[None, start, start + LENGTH * MINUTE].add(number)
    whole = {window: frozenset(numbers) for window, numbers in expected.items()} | sessions_of(records, GAP * MINUTE)
    assert sum(map(len, final)) == len(whole)
    assert {window: numbers for each in final for window, numbers in each.items()} == whole
    sides = [record for record in records if record.key is not None]
    matched = {
        (one.number, other.number)
        for one in sides
        for other in sides
        if one.key == other.key and LEFT[0] * MINUTE <= (other.at or 0) - (one.at or 0) <= LEFT[1] * MINUTE
    }
    alone = {(record.number, None) for record in records} - {(one, None) for one, _ in matched}
    assert pairs - Counter({(-1, -1): 1}) == Counter(matched | alone)


def test_a_key_of_a_window_without_a_value_is_deleted(session: SparkSession) -> None:
    def deleted(rows: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        changed = rows.select("window_start", "key", F.when(F.col("n") > 0, F.col("n")).alias("count"))
        return state.select("window_start", "window_end", "key", "count", "is_expired"), changed

    made = Pipeline("p", interval="10s")
    window = EventWindow("5m")
    made.output(inputs=[by_time(left)], window=window, state=TOTALS, sink=UPDATES, name="made")(deleted)
    states: Mapping[str, pa.Table] = {}
    for numbers, keys in (((1, 2), {"a", "b"}), ((3, -1), {"a"}), ((1, 2), {"a", "b"})):
        records = rows(Record(number, key, 0) for number, key in zip(numbers, "ab", strict=True))
        found = run_batch(made, {left: records}, batch_time=time_of(MINUTE), states=states, session=session)
        states = found.states
        assert {row["key"] for row in states["made"].to_pylist()} == keys
        given = {row["key"] for row in found["made"].to_pylist()}
    # The one that was deleted had no state in the last batch.
    assert given == {"a"}


def test_times_that_no_calendar_has_are_too_late(session: SparkSession) -> None:
    made = Pipeline("p", interval="10s")
    numbers = Stream("numbers", Http(listen="127.0.0.1:8080"), records=Json("n BIGINT"))
    reads = numbers.by_event_time("timestamp_micros(n)", lateness="36500d", ahead="36500d")
    made.output(inputs=[reads], window=EventWindow("36500d"), sink=UPDATES, name="made", late=FINAL)(same)
    wrong = [-(2**63), 2**63 - 1, -62_135_596_800_000_000, None]
    records = [{"n": n} for n in [*wrong, 0]]
    states: Mapping[str, pa.Table] = {}
    for batch in (records[:4], records, records):
        found = run_batch(made, {numbers: batch}, batch_time=time_of(MINUTE), states=states, session=session)
        states = found.states
        assert Counter(row["n"] for row in found["made_late"].to_pylist()) == Counter(wrong)
        assert {row["n"] for row in found["made"].to_pylist()} == ({0} if len(batch) > len(wrong) else set())


def test_the_least_of_two_times_of_one_stream_counts(session: SparkSession) -> None:
    made = Pipeline("p", interval="10s")
    times = Stream("times", Http(listen="127.0.0.1:8080"), records=Json("key STRING, asked TIMESTAMP, paid TIMESTAMP"))
    sides = [times.by_event_time("asked", lateness="0s"), times.by_event_time("paid", lateness="1m")]
    join = EventJoin("key", between=("0s", "10m"), how="left")
    made.output(inputs=sides, join=join, sink=FINAL, name="made")(same)
    record = {"key": "a", "asked": time_of(MINUTE), "paid": time_of(0)}
    found = run_batch(made, {times: [record]}, batch_time=time_of(MINUTE), session=session)
    assert json.loads(found.states["made"].schema.metadata[b"forebay.progress"])[0] == "1969-12-31T23:59:00+00:00"
    assert found["made"].num_rows == 0


def test_a_column_of_the_name_of_an_added_one_is_refused(session: SparkSession) -> None:
    columns = Json("at TIMESTAMP, Window_End STRING, watermark STRING")
    taken = Stream("taken", Http(listen="127.0.0.1:8080"), records=columns)
    made = Pipeline("p", interval="10s")
    made.output(inputs=[by_time(taken)], window=EventWindow("5m"), sink=FINAL, name="made", late=FINAL)(same)
    for output, column in (("made", "Window_End"), ("made_late", "watermark")):
        with pytest.raises(SinkError, match=f"stream 'taken' has a column '{column}'.*rename it in records="):
            run_batch(made, {taken: []}, batch_time=time_of(MINUTE), outputs=[output], session=session)
