"""Test what becomes of lines of statsd, each by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from forebay_contrib.statsd import reader as reader_module
from forebay_contrib.statsd.declaration import Statsd
from forebay_contrib.statsd.lines import NUMBER_TYPES
from forebay_contrib.statsd.reader import StatsdReader
from receiver_runtime.sources.records.registry import parse_records

READER = StatsdReader(Statsd())


def row_of(line: str) -> dict[str, Any]:
    parsed = READER.read(pa.array([line.encode()], pa.binary()))
    assert not parsed.faults
    [row] = parsed.batch.to_pylist()
    if row["timestamp"] is not None:
        row["timestamp"] = row["timestamp"].timestamp()
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("kind", NUMBER_TYPES)
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("+4", 4.0), ("-.5", -0.5), ("1e3", 1000.0), ("9007199254740993", 9007199254740992.0)],
)
def test_numbers_of_each_type_and_as_they_were_sent(kind: str, text: str, value: float) -> None:
    row = {"name": "a b/c", "type": kind, "value": value, "text": text, "sample_rate": 1.0}
    assert row_of(f"a b/c:{text}|{kind}\r\n") == row


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("|@0.1|#a:b:c,d,e:", {"sample_rate": 0.1, "tags": [("a", "b:c"), ("d", None), ("e", "")]}),
        ("|#a:1,b,a:2,b", {"tags": [("a", "1,2"), ("b", ",")]}),
        ("|#|c:", {}),
        ("|T12|c:x|@0.5", {"timestamp": 12.0, "container": "x", "sample_rate": 0.5}),
        ("|e:it-false|card:low", {"other": "e:it-false|card:low"}),
        ("|card:low|e:z|new||", {"other": "card:low|e:z|new||"}),
        ("|T253402300799", {"timestamp": 253402300799.0}),
    ],
)
def test_sections_in_any_order(line: str, more: dict[str, object]) -> None:
    base = {"name": "n", "type": "g", "value": 1.0, "text": "1", "sample_rate": 1.0}
    assert row_of(f"n:1|g{line}") == {**base, **more}


def test_several_values_sets_events_and_checks() -> None:
    assert row_of("n:1:2.5|d")["values"] == [1.0, 2.5]
    assert row_of("n:a:1|s")["text"] == "a:1"
    # A client that counts characters; a title with a bar.
    for head in ("6,3", "5,2"):
        row = row_of(f"_e{{{head}}}:caf|é|tü|d:5|#x:y")
        assert (row["name"], row["text"], row["timestamp"], row["tags"]) == ("caf|é", "tü", 5.0, [("x", "y")])
    assert row_of("_e{1,0}:t|") == {"name": "t", "type": "_e", "text": ""}
    assert row_of("_sc|a b|0|h:web") == {"name": "a b", "type": "_sc", "value": 0.0, "other": "h:web"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "it is empty"),
        ("n", "no name and value"),
        (":1|c", "no name and value"),
        ("a|c:1", "no name and value"),
        ("n:1|c|#" + "x" * 65_530, "more than 65536 bytes"),
        ("n:" + "1:" * 40_000 + "1|d", "more than 65536 bytes"),
        ("n:1", "no type"),
        ("n:|c", "no value"),
        ("n:1|q", "type 'q' is none of c, g, ms, h, d, m, s"),
        ("n:1|c\nm:1|c", "it is several lines"),
        ("n:x|c", "value 'x' is no number"),
        ("n:1:|d", "value '' is no number"),
        ("n:nan|g", "value 'nan' is no number"),
        ("n:1e999|g", "is no number"),
        ("n:1e-999|g", "is no number"),
        ("n:1|c|@0", "sample rate '0' is not above 0"),
        ("n:1|c|@1.5", "sample rate '1.5' is not above 0"),
        ("n:1|c|@", "sample rate '' is not above 0"),
        ("n:1|c|@1|@1", "a section @ comes twice"),
        ("n:1|c|Tx", "time 'x' is no number of seconds"),
        ("n:1|c|T253402300800", "time '253402300800' is no number"),
        ("_e{5,4}:title|tex", "not 5 and 4 bytes"),
        ("_e{5,4}:title|texts", "not 5 and 4 bytes"),
        ("_e{5}:title", "does not begin with its lengths"),
        ("_sc|redis|4", "no name and status"),
        ("_sc|redis", "no name and status"),
    ],
)
def test_what_is_no_line_says_why(line: str, why: str) -> None:
    parsed = READER.read(pa.array([b"a:1|c", line.encode(), b"a:1|c"], pa.binary()))
    [fault] = parsed.faults
    assert fault.row == 1
    assert why in fault.why
    assert parsed.batch.num_rows == 2


def test_many_lines_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_PIECE", 100)
    # Every third is read one by one, every seventh is none.
    lines = [b"n:%d|%b" % (n, b"q" if n % 7 == 0 else b"c|x" if n % 3 == 0 else b"c|#a:b") for n in range(1000)]
    parsed = READER.read(pa.array(lines, pa.binary()))
    assert parsed.batch["value"].to_pylist() == [float(n) for n in range(1000) if n % 7]
    assert [fault.row for fault in parsed.faults] == list(range(0, 1000, 7))


def test_the_columns_are_given_and_a_stored_declaration_keeps_its_own() -> None:
    assert parse_records(Statsd(raw=True, keep=["_sender"]).model_dump(mode="json")) == Statsd(
        raw=True, keep=("_sender",)
    )
    fewer = Statsd(columns=(("name", "string"), ("value", "double")))
    parsed = StatsdReader(fewer).read(pa.array([b"a:1|c", b"a:1|c|x"], pa.binary()))
    assert parsed.batch.to_pylist() == [{"name": "a", "value": 1.0}] * 2
    for wrong in ({"columns": (("name", "binary"),)}, {"columns": (("x", "string"),)}, {"required": ("name",)}):
        with pytest.raises(ValidationError, match="leave columns and required out"):
            Statsd(**wrong)
    with pytest.raises(ValueError, match="'a INT': the columns of statsd are given"):
        Statsd("a INT")  # type: ignore[arg-type]
