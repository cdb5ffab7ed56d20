"""Check how changed declarations are told in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay import ConsoleSink, Pipeline, Stream
from forebay.records import Json
from forebay.sources import SocketText
from orchestration.declarations.compatibility import declared, declared_changes, needs_a_person

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.sources.records.declared import Records


def words(*outputs: str, port: int = 1, interval: str = "10s", max_attempts: int = 3) -> Pipeline:
    pipeline = Pipeline("words", interval=interval, max_attempts=max_attempts)
    lines = Stream("lines", SocketText(host="h", port=port))
    for name in outputs:
        pipeline.output(inputs=[lines], sink=ConsoleSink(), name=name)(lambda frame: frame)
    return pipeline


def test_changes_are_told_in_a_few_words_each() -> None:
    before = declared([words("counts")])
    assert declared_changes(before, before) == []
    after = declared([words("counts", "others", port=2, interval="500ms", max_attempts=4)])
    assert declared_changes(before, after) == [
        "lines: source.port 1 → 2",
        "words: interval 10s → 500ms",
        "words: max_attempts 3 → 4",
        "words: output others is new",
    ]
    assert declared_changes({"pipelines": {}, "streams": {}}, before) == ["lines is new", "words is new"]
    assert declared_changes(after, declared([words("counts", port=2, interval="500ms", max_attempts=4)])) == [
        "words: output others is gone"
    ]
    assert declared_changes(before, declared([])) == ["lines is gone", "words is gone"]


def test_a_stream_that_is_renamed_is_not_told_as_new() -> None:
    before = declared([words("counts")])
    pipeline = Pipeline("words", interval="10s")
    rows = Stream("rows", SocketText(host="h", port=1), renamed_from="lines")
    pipeline.output(inputs=[rows], sink=ConsoleSink(), name="counts")(lambda frame: frame)
    assert declared_changes(before, declared([pipeline])) == [
        "lines is renamed to rows",
        "words: outputs.counts.inputs",
        "words: streams",
    ]


def orders(records: Records | None) -> Mapping[str, Any]:
    pipeline = Pipeline("sales", interval="10s")
    stream = Stream("orders", SocketText(host="h", port=1), records=records)
    pipeline.output(inputs=[stream], sink=ConsoleSink(), name="all")(lambda frame: frame)
    return declared([pipeline])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, Json("item STRING"), "parsed: new rows have item, the source's other columns"),
        (Json("a INT, b INT"), None, "not parsed any more: new rows have null in a, b"),
        (Json("a INT", raw=True), Json("a INT"), "not kept any more: new rows have null in _raw"),
        (Json("a INT"), Json("a INT", raw=True), ""),
        (Json("a INT"), Json("b INT, a INT NOT NULL"), ""),
        (None, None, ""),
    ],
)
def test_a_person_decides_what_empties_columns(before: Records | None, after: Records | None, said: str) -> None:
    found = needs_a_person(orders(before), orders(after), {})
    assert [line.removeprefix("records of stream 'orders' are ")[: len(said)] for line in found] == (
        [said] if said else []
    )


def test_records_are_told_as_they_are_declared() -> None:
    assert declared_changes(orders(Json("a INT")), orders(Json("a INT", raw=True))) == [
        "orders: records.raw False → True"
    ]
