"""Check that rows with text that is not UTF-8 are found in any column, and become dead letters with all their bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

_PAGE = Path(__file__).parents[4] / "docs/reference/bad-input.md"
VALUE = pa.schema([("value", pa.string())])


def text(*values: bytes | None, kind: pa.DataType | None = None) -> pa.Array:
    """Return a text column of these bytes, unchecked."""
    large = kind is not None and pa.types.is_large_string(kind)
    return pa.array(values, pa.large_binary() if large else pa.binary()).view(kind or pa.string())


def rows_of(column: pa.Array) -> list[int]:
    """Return the rows that are found in a batch of one column."""
    check = TextCheck(pa.schema([("value", column.type)]))
    batch = pa.record_batch([column], names=["value"])
    found = [int(row) for row in check.invalid_rows(batch).nonzero()[0]]
    assert check.is_valid(batch) == (not found)
    checked = check.check(batch)
    assert (checked.batch.num_rows, len(checked.letters)) == (len(column) - len(found), len(found))
    assert check.is_valid(checked.batch)
    return found


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=4), st.text(max_size=3).map(str.encode)), max_size=40),
    st.integers(0, 3),
)
def test_exactly_the_invalid_rows_are_found(values: Sequence[bytes | None], first: int) -> None:
    column = text(*values).slice(first)
    expected = [row for row, value in enumerate(values[first:]) if value is not None and not is_utf8(value)]
    assert rows_of(column) == expected


def test_a_character_cut_by_two_rows_makes_both_invalid() -> None:
    assert rows_of(text(b"caf\xc3", b"\xa9", b"x")) == [0, 1]


def test_large_text_is_checked_too() -> None:
    assert rows_of(text(b"a", b"\xff", kind=pa.large_string())) == [1]


def test_text_inside_lists_maps_and_structs_is_checked() -> None:
    inner = text(b"a", b"b", b"\xff", b"c")
    assert rows_of(pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4]), inner)) == [2]
    assert rows_of(pa.StructArray.from_arrays([inner], names=["name"])) == [2]
    keys = pa.array(["k"] * 4)
    assert rows_of(pa.MapArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), keys, inner)) == [1]


def test_a_slice_of_lists_is_not_blamed_for_the_rows_outside_it() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), text(b"\xff", b"a", b"b"))
    batch = pa.record_batch([lists.slice(1)], names=["value"])
    check = TextCheck(batch.schema)
    assert check.invalid_rows(batch).tolist() == [False, False]
    checked = check.check(batch)
    assert checked.invalid is None
    assert check.is_valid(checked.batch)


def test_columns_without_text_are_not_looked_at() -> None:
    batch = pa.record_batch([pa.array([b"\xff"]), pa.array([1])], names=["raw", "number"])
    assert TextCheck(batch.schema).is_valid(batch)


def test_a_dead_letter_of_one_text_column_is_its_bytes() -> None:
    check = TextCheck(VALUE)
    letters = check.check(pa.record_batch([text(b"a", b"\xff\0", b"\xc3")], schema=VALUE)).letters
    assert [letter.data for letter in letters] == [b"\xff\0", b"\xc3"]
    assert {letter.reason for letter in letters} == {DeadLetterReason.INVALID_TEXT}


def test_a_dead_letter_of_several_columns_has_nothing_of_the_rows_beside_it() -> None:
    schema = pa.schema([("value", pa.string()), ("peer", pa.string())])
    rows = [text(b"\xff", b"\xffhunter2", b"\xff4111"), text(b"one", b"two", b"three")]
    first, second, third = TextCheck(schema).check(pa.record_batch(rows, schema=schema)).letters
    assert not [word for word in (b"hunter2", b"two", b"4111", b"three") if word in first.data]
    assert not [word for word in (b"one", b"4111", b"three") if word in second.data]
    assert not [word for word in (b"one", b"hunter2", b"two") if word in third.data]


def test_a_dead_letter_of_several_columns_is_an_arrow_stream_that_the_page_says_how_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("value", pa.string()), ("number", pa.int64())])
    check = TextCheck(schema)
    batch = pa.record_batch([text(b"a", b"\xff", b"b"), pa.array([1, 2, 3])], schema=schema)
    checked = check.check(batch)
    assert checked.batch.to_pylist() == [{"value": "a", "number": 1}, {"value": "b", "number": 3}]
    assert checked.invalid is not None
    assert checked.invalid.tolist() == [False, True, False]
    (letter,) = checked.letters
    (tmp_path / "letter").write_bytes(letter.data)
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    row = names["row"]
    assert row.column("number").to_pylist() == [2]
    assert row.column("value").chunk(0).view(pa.binary()).to_pylist() == [b"\xff"]
