"""Check that lines of several streams make each stream's records, whatever arrives together, within the bounds."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.record_formats import keyed_joins
from receiver_runtime.record_formats.keyed_joins import KeyedJoins
from receiver_runtime.sources.fields.multiline import Multiline
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 12
LINES = 3
SCHEMA = pa.schema([("raw", pa.binary()), ("number", pa.int64()), ("text", pa.string())])
START = Multiline(start="^b", max_lines=LINES, timeout="5s")
CONTINUATION = Multiline(continuation=r"^[\t ]", max_lines=LINES, timeout="5s")


def joins(multiline: Multiline = START, *, most_open: int = 100, most_open_bytes: int = 2**20) -> KeyedJoins:
    return KeyedJoins(multiline, MOST, SCHEMA, "text", raw="raw", most_open=most_open, most_open_bytes=most_open_bytes)


def batch(lines: Sequence[tuple[str, str | None, int]]) -> tuple[pa.RecordBatch, pa.StringArray]:
    return (
        pa.RecordBatch.from_pylist(
            [{"raw": b"#%d" % number, "number": number, "text": text} for _, text, number in lines], schema=SCHEMA
        ),
        pa.array([key for key, _, _ in lines], pa.string()),
    )


def values(found: pa.RecordBatch) -> list[str]:
    found.validate(full=True)
    return list(found.column("text").to_pylist())


def model(lines: list[tuple[str, str | None, int]], multiline: Multiline, breaks: set[int]) -> list[dict[str, Any]]:
    """Return the records by the numbers of their first lines."""
    records: list[dict[str, Any]] = []
    open_records: dict[str, tuple[dict[str, Any], int]] = {}
    for key, text, number in lines:
        is_first = (re.search(multiline.pattern, text or "") is not None) == (multiline.start is not None)
        held, count = open_records.get(key, ({}, 0))
        if held and not is_first and number not in breaks and count < LINES:
            joined = {
                "raw": held["raw"] + b"\n#%d" % number,
                "number": held["number"],
                "text": f"{held['text'] or ''}\n{text or ''}",
            }
            if max(len(joined["raw"]), len(str(joined["text"]).encode())) <= MOST:
                records[records.index(held)] = joined
                open_records[key] = joined, count + 1
                continue
        records.append({"raw": b"#%d" % number, "number": number, "text": text})
        open_records[key] = records[-1], 1
    return records


_TEXTS = st.sampled_from(["b", " a", "", "bb", "\té", None, " ", "c" * 30])


@settings(max_examples=examples(150))
@given(
    texts=st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), _TEXTS), max_size=20),
    multiline=st.sampled_from([START, CONTINUATION]),
    cuts=st.sets(st.integers(0, 20)),
    breaks=st.sets(st.integers(0, 19), max_size=3),
    most_batches=st.sampled_from([1, 2, 64]),
)
def test_each_stream_has_its_records_however_lines_arrive(
    texts: list[tuple[str, str | None]], multiline: Multiline, cuts: set[int], breaks: set[int], most_batches: int
) -> None:
    lines = [(key, text, number) for number, (key, text) in enumerate(texts)]
    made = joins(multiline)
    found = []
    borders = sorted({0, *(cut for cut in cuts if cut < len(lines)), len(lines)})
    for begin, end in pairwise(borders):
        rows, keys = batch(lines[begin:end])
        here = pa.array([number - begin for number in sorted(breaks) if begin <= number < end], pa.int64()).to_numpy()
        with patch.object(keyed_joins, "_MOST_BATCHES", most_batches):
            found += made.add(rows, keys, float(begin), here).to_pylist()
    found += made.end_all().to_pylist()
    assert made.until_overdue(0.0) is None
    assert sorted(found, key=lambda row: row["number"]) == model(lines, multiline, breaks)


def test_a_record_is_complete_when_its_time_is_over() -> None:
    made = joins()
    assert values(made.add(*batch([("x", "b1", 0), ("y", "b2", 1)]), 10.0)) == []
    assert values(made.add(*batch([("x", " m", 2), ("z", "b3", 3)]), 14.0)) == []
    assert made.until_overdue(14.0) == 1.0
    assert values(made.overdue(14.9)) == []
    # More lines make it wait no longer.
    assert values(made.overdue(15.0)) == ["b1\n m", "b2"]
    assert made.until_overdue(15.0) == 4.0
    assert values(made.add(*batch([("x", " late", 4)]), 15.0)) == []
    assert values(made.end(pa.array(["x", "y"]))) == [" late"]
    assert values(made.end_all()) == ["b3"]


def test_too_many_open_records_complete_the_oldest_ones() -> None:
    made = joins(most_open=3)
    found = []
    for number in range(0, 50_000, 5_000):
        lines = [(f"k{key}", "b", key) for key in range(number, number + 5_000)]
        found += made.add(*batch(lines), 0.0).column("number").to_pylist()
    assert found == list(range(50_000 - 3))
    assert made.end_all().column("number").to_pylist() == [49_997, 49_998, 49_999]


def test_open_records_have_a_bound_in_bytes() -> None:
    made = joins(most_open_bytes=10)
    assert values(made.add(*batch([("x", "b234", 0), ("y", "b234", 1), ("z", "b234", 2)]), 0.0)) == ["b234"]
    assert values(made.end_all()) == ["b234", "b234"]


def test_a_line_costs_its_own_record_and_not_what_else_is_open() -> None:
    made = KeyedJoins(START, 2**20, SCHEMA, "text")
    made.add(*batch([(f"k{number}", "b" * 10_000, number) for number in range(1_000)]), 0.0)
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    assert made.add(*batch([("k7", " m", 1_000)]), 0.0).num_rows == 0
    assert pool.total_bytes_allocated() - before < 2**20
    assert made.end(pa.array(["k7"])).column("text").to_pylist() == ["b" * 10_000 + "\n m"]
