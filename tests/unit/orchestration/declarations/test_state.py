"""Check that a state is validated where it is declared: an error names the thing, the value and the fix."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from forebay import DeclarationError, ParquetSink, Pipeline, State, Stream, update_state_by_key
from forebay.sources import SocketText
from orchestration.declarations.compatibility import declared_changes
from orchestration.state.state_schema import StateSchema

SINK = ParquetSink("out")
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "user"}, "a type"),
        ({"key": "at DOUBLE"}, r"0\.0 and -0\.0 are equal.*use DECIMAL"),
        ({"key": "tags MAP<STRING, STRING>"}, "no key can be of this type"),
        ({"key": "tags ARRAY<STRING>"}, "make a column of each part"),
        ({"value": "_n BIGINT"}, "begin with '_'"),
        ({"value": "is_expired BOOLEAN"}, "rename yours"),
        ({"value": "USER BIGINT"}, "one name in Spark"),
        ({"value": "n BIGINT NOT NULL"}, "NOT NULL"),
        ({"value": "expires_at STRING"}, "write it as expires_at TIMESTAMP"),
        ({"key": "expires_at TIMESTAMP"}, "declare it in value="),
        ({"ttl": "0s"}, "longer than 0"),
        ({"ttl": "a week"}, "a week"),
        ({"on_failure": "stop"}, "halt, skip"),
        ({"buckets": 0}, "from 1 to 4096"),
        ({"version": 0}, "at least 1"),
        ({"migrate": lambda state: state}, "raise version"),
    ],
)
def test_what_can_not_work_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        State(**{"key": "user STRING", "value": "n BIGINT", **arguments})


def test_a_declaration_says_what_the_driver_log_keeps() -> None:
    state = State("user STRING, day DATE", "n bigint, expires_at TIMESTAMP", ttl="7d", on_failure="skip", buckets=4)
    declared = state.declaration()
    assert declared == {
        "key": [["user", "STRING"], ["day", "DATE"]],
        "value": [["n", "BIGINT"], ["expires_at", "TIMESTAMP"]],
        "ttl_ms": timedelta(days=7) / timedelta(milliseconds=1),
        "on_failure": "skip",
        "buckets": 4,
        "version": 1,
    }
    assert StateSchema.of_row(declared) == state.schema
    assert state.schema.has_expires_at


def test_an_outputs_function_takes_the_state() -> None:
    pipeline = Pipeline("p", interval="10s")
    declare = pipeline.output(inputs=[lines], sink=SINK, name="totals", state=State("user STRING", "n BIGINT"))
    with pytest.raises(DeclarationError, match="add a parameter `state`"):
        declare(lambda lines: lines)
    output = declare(lambda lines, state: (lines, state))
    assert output.parameters == ("lines",)
    assert "state" in pipeline.declaration()["outputs"]["totals"]


def test_only_an_output_with_a_state_declares_one() -> None:
    pipeline = Pipeline("p", interval="10s")
    pipeline.output(inputs=[lines], sink=SINK, name="plain")(lambda lines: lines)
    assert "state" not in pipeline.declaration()["outputs"]["plain"]


@pytest.mark.parametrize(
    ("settings", "state", "message"),
    [
        ({}, "user STRING", r"give one, as State\("),
        ({"concurrent_batches": 2}, State("user STRING", "n BIGINT"), "leave out concurrent_batches=2"),
    ],
)
def test_an_output_that_can_not_have_the_state_is_refused(
    settings: dict[str, Any], state: object, message: str
) -> None:
    pipeline = Pipeline("p", interval="10s", **settings)
    with pytest.raises(DeclarationError, match=message):
        pipeline.output(inputs=[lines], sink=SINK, name="totals", state=state)(lambda lines, state: (lines, state))  # type: ignore[arg-type]


def test_a_changed_state_is_a_changed_pipeline() -> None:
    def declared(value: str) -> dict[str, Any]:
        pipeline = Pipeline("p", interval="10s")
        made = update_state_by_key(lambda rows, state: state)
        pipeline.output(inputs=[lines], sink=SINK, name="totals", state=State("user STRING", value))(made)
        return {"pipelines": {"p": pipeline.declaration()}, "streams": {}, "renamed": {}}

    assert declared_changes(declared("n BIGINT"), declared("n BIGINT")) == []
    assert declared_changes(declared("n BIGINT"), declared("n STRING")) != []
