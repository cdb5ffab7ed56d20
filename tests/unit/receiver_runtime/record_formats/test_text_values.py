"""Test that texts become the values that Python reads, and that no text affects what is made of another one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.record_formats.text_values import typed
from receiver_runtime.sources.records.ddl import parse_ddl
from tests.support.searches import examples
from tests.support.typed_text import DDL, NAMES, ODD, READ, texts

SCHEMA = arrow_schema(parse_ddl(DDL).columns)
_near_times = st.from_regex(
    r"\A[+-]?20?[0-9]{2,3}-[0-9]{1,2}-[0-3][0-9]([Tt ][0-9]{2}(:?[0-6][0-9](:[0-6][0-9]([.,][0-9]{1,7})?)?)?)?"
    r"([Zz]|[+-][0-9]{1,2}(:?[0-9]{2})?)?\Z"
)


def expected(name: str, text: str) -> object:
    try:
        return READ[name](text)
    except (ValueError, OverflowError):
        return None


def check(name: str, given_texts: list[str]) -> None:
    made, faults = typed(pa.array(given_texts, pa.string()), SCHEMA.field(name).type)
    values = [expected(name, text) for text in given_texts]
    assert made.to_pylist() == values
    assert sorted(faults) == [row for row, value in enumerate(values) if value is None]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "text"])
def test_each_odd_text_is_a_value_or_not_by_itself_and_beside_others(name: str) -> None:
    for text in ODD:
        check(name, [text])
    check(name, ODD)


@settings(max_examples=examples(2000))
@given(st.data(), st.sampled_from(NAMES[1:]))
@pytest.mark.search
def test_any_texts_are_what_python_reads(data: st.DataObject, name: str) -> None:
    check(name, data.draw(st.lists(texts(name) | _near_times, max_size=6)))


def test_many_values_that_are_none_are_found_in_order() -> None:
    column = ["2026-02-30" if row % 3 else "2026-02-28" for row in range(3000)]
    made, faults = typed(pa.array(column), pa.date32())
    assert sorted(faults) == [row for row in range(3000) if row % 3]
    assert made.null_count == 2000
    assert faults[1] == "'2026-02-30' is no date"
