"""Fuzz lines of statsd, and datagrams of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay_contrib.datagrams.framing import DatagramFraming
from forebay_contrib.statsd.declaration import Statsd
from forebay_contrib.statsd.lines import Line, NoLineError, parse
from forebay_contrib.statsd.reader import _NAMES, StatsdReader
from receiver_runtime.block_path.text_check import TextCheck
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Sequence

_READER = StatsdReader(Statsd())
_TEXT = TextCheck(_READER.schema)
_GOOD = b"a.b:1|c|@0.5|#x:y,z"
_LINES = (
    _GOOD,
    b"fuel:+0.5|g|#a:b,a:c,:d,e|c:ci-1|e:zz|card:low|T1656581400\r\n",
    b"x:1:-2e3:.5|d|T1656581400|@1",
    b"users:al:ice|s|#caf\xc3\xa9:\xe2\x82\xac",
    b"_e{5,5}:ti|le|caf\xc3\xa9|d:12|h:web|p:low|#a:b",
    b"_sc|redis|2|d:12|#a:b|m:down\\: all|c:q",
)
_WORDS = (
    *(
        b"|",
        b":",
        b"|@",
        b"|#",
        b"|T",
        b"|c:",
        b"|ms",
        b"|s",
        b",",
        b"_e{",
        b"}:",
        b"_sc|",
        b"\n",
        b"\r",
        b"\xff",
        b"\0",
    ),
    *(b"1e999", b"1e-999", b"nan", b"253402300800", b"999999999999", b"\xc2\x85", b"+", b"0.0000001"),
)


def _parsed(record: bytes) -> dict[str, Any] | None:
    """Return what the rules say of one record."""
    try:
        line: Line = parse(record.decode().rstrip("\r\n"))
    except (NoLineError, UnicodeDecodeError):
        return None
    return {name: getattr(line, name) for name in _NAMES}


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    assert _TEXT.is_valid(batch)
    place = batch.schema.get_field_index("timestamp")
    seconds = pa.array([None if one is None else one // 10**6 for one in batch["timestamp"].cast("int64").to_pylist()])
    found: list[dict[str, Any]] = batch.set_column(place, "timestamp", seconds.cast("int64")).to_pylist()
    return found


@fuzzed(
    "statsd_lines",
    valid=_LINES,
    words=_WORDS,
    attacks=[
        b"a:1|c|#" + b"," * 100_000,
        b"a:" + b"1:" * 50_000,
        b"|" * 100_000,
        b"a:1|c" + b"|x" * 50_000,
        b"a:" + b"9" * 100_000,
    ],
)
def test_a_line_is_a_row_or_a_fault_whatever_stands_beside_it_and_by_the_rules(record: bytes) -> None:
    alone = _READER.read(pa.array([record], pa.binary()))
    expected = _parsed(record)
    assert _rows(alone.batch) == ([] if expected is None else [expected])
    assert len(alone.faults) == (expected is None)
    assert all(len(fault.why) < 250 for fault in alone.faults)
    beside = _READER.read(pa.array([_GOOD, record, b"bad", None, _GOOD], pa.binary()))
    assert [(fault.row, fault.why) for fault in beside.faults[:-1]] == [(1, fault.why) for fault in alone.faults]
    assert beside.faults[-1].row == 2
    rows = _rows(beside.batch)
    assert rows[1:-2] == ([] if expected is None else [expected])
    assert rows[0] == rows[-1] == _parsed(_GOOD)
    assert set(rows[-2].values()) == {None}


_FRAMING, _WHOLE = (DatagramFraming(whole=whole, now=lambda: 0) for whole in (False, True))
_BETWEEN = b"\0\0"
_MOST_ALONE = 100  # datagrams that are cut again by themselves


def _cut(framing: DatagramFraming, datagrams: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[bytes]]:
    senders = [f"::ffff:10.0.0.{len(one)}" for one in datagrams]
    rows: list[dict[str, Any]] = []
    letters: list[bytes] = []
    for cut in framing.cut(datagrams, senders):
        letters += [letter.data for letter in cut.dead_letters]
        if cut.records is not None:
            cut.records.validate(full=True)
            assert TextCheck(framing.schema).is_valid(cut.records)
            rows += cut.records.to_pylist()
    return rows, letters


@fuzzed(
    "datagram_lines",
    valid=[_BETWEEN.join(_LINES), b"a\nb\r\n\nc" + _BETWEEN + b"d\n" + _BETWEEN + _BETWEEN, b"caf\xc3\xa9\n\xff\nx"],
    examples=60,
    words=[_BETWEEN, b"\n", b"\r\n", b"\xff", b"\xef\xbb\xbf"],
    attacks=[b"\n" * 60_000, (b"\xff" + _BETWEEN) * 4000],
)
def test_lines_of_datagrams_are_rows_of_their_senders_whatever_is_read_with_them(data: bytes) -> None:
    datagrams = data.split(_BETWEEN)
    for framing in (_FRAMING, _WHOLE):
        rows, letters = _cut(framing, datagrams)
        alone = [_cut(framing, [one]) for one in datagrams[:_MOST_ALONE]]
        expected = [row for found, _ in alone for row in found]
        others = [letter for _, found in alone for letter in found]
        assert rows[: len(expected)] == expected
        assert letters[: len(others)] == others
        assert len(datagrams) > _MOST_ALONE or (len(rows), len(letters)) == (len(expected), len(others))
        assert all(row["value"] for row in rows)
        for one, (found, _) in zip(datagrams, alone, strict=False):
            assert {row["sender"] for row in found} <= {f"10.0.0.{len(one)}"}
