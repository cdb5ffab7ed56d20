"""Test HTTP requests to a typed stream: what is stored, what becomes a dead letter, and what the sender hears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.dead_letters.dead_letter_budget import MOST_LETTERS
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, listening
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path


def typed(ddl: str, *, raw: bool = False) -> TypedRows:
    return TypedRows(Json(ddl, raw=raw), arrow_schema(Http.columns), Http.record_column)


def test_records_are_stored_as_columns_beside_those_of_the_request(tmp_path: Path) -> None:
    with listening(tmp_path, row_check=typed("item STRING, id BIGINT", raw=True)) as one:
        answer = one.post(b'{"item": "a", "id": 1}\n{"id": 2}\n', LINES)
        assert (answer.status, answer.json()) == (200, {"records": 2, "duplicates": 0})
        first, second = one.rows()
    assert {name: first[name] for name in ("item", "id", "_raw", "_path", "_id")} == {
        "item": "a",
        "id": 1,
        "_raw": b'{"item": "a", "id": 1}',
        "_path": "/v1/orders",
        "_id": None,
    }
    assert (second["item"], second["id"]) == (None, 2)
    assert list(first) == [*("item", "id"), "_raw", "_content_type", "_path", "_received_at", "_id", "_attributes"]


def test_what_does_not_fit_is_a_dead_letter_and_its_neighbours_are_stored(tmp_path: Path) -> None:
    with listening(tmp_path, row_check=typed("pieces BIGINT")) as one:
        answer = one.post(b'{"pieces": 1}\n{"pieces": "x"}\nno json\n{"pieces": 2}\n', LINES)
        assert answer.status == 200
        said = answer.json()
        assert (said["records"], said["dead_letters"]) == (2, 2)
        assert [row["pieces"] for row in one.rows()] == [1, 2]
        letters = {(reason, data) for reason, _, data in one.rig.dead_letters()}
        assert letters == {("unparsable", b"no json"), ("does_not_fit", b'{"pieces": "x"}')}


def test_a_request_of_which_nothing_fits_is_refused_with_the_reason_and_kept(tmp_path: Path) -> None:
    with listening(tmp_path, row_check=typed("pieces BIGINT")) as one:
        answer = one.post(b'{"pieces": "x"}', JSON)
        assert answer.status == 422
        assert "$.pieces" in answer.json()["detail"]
        assert one.rows() == []
        assert one.rig.dead_letters() == [("does_not_fit", 0, b'{"pieces": "x"}')]
        [said] = [detail for kind, _, detail in one.rig.reporter.events if kind is ReceiverEventKind.BAD_RECORD]
        assert "$.pieces" in said


def test_a_refused_request_that_comes_again_and_again_is_kept_within_its_senders_budget(tmp_path: Path) -> None:
    many = b'{"pieces": "x"}\n' * 600
    with listening(tmp_path, row_check=typed("pieces BIGINT")) as one:
        assert [one.post(many, LINES).status for _ in range(3)] == [422] * 3
        assert len(one.rig.dead_letters()) == MOST_LETTERS
        # The sender of a request that is taken does not send it again: its dead letters are the only copies.
        taken = one.post(many + b'{"pieces": 1}', LINES)
        assert (taken.status, taken.json()["dead_letters"]) == (200, 600)
        assert len(one.rig.dead_letters()) == MOST_LETTERS + 600
    assert sum(row.dropped for row in one.rig.rows.dead_letters) == 800


def test_requests_that_share_a_block_hear_of_their_own_records_alone(tmp_path: Path) -> None:
    with listening(tmp_path, row_check=typed("pieces BIGINT")) as one:
        key = {"Idempotency-Key": "k"}
        assert one.post(b'{"pieces": 1}\n{"pieces": "x"}', LINES | key).json()["dead_letters"] == 1
        again = one.post(b'{"pieces": 1}\n{"pieces": "x"}', LINES | key)
        assert (again.status, again.json()["duplicates"]) == (200, 2)
        assert one.post(b'{"pieces": 3}', JSON).json() == {"records": 1, "duplicates": 0}
        assert len(one.rig.dead_letters()) == 1


def test_buffered_requests_are_parsed_too(tmp_path: Path) -> None:
    with listening(tmp_path, row_check=typed("pieces BIGINT")) as one:
        answer = one.ask("POST", "/v1/orders?ack=buffered", b'{"pieces": 1}\n{"pieces": "x"}\n', LINES)
        assert answer.status == 202
    assert [row["pieces"] for row in one.rows()] == [1]
    assert [reason for reason, _, _ in one.rig.dead_letters()] == ["does_not_fit"]


def test_columns_that_a_source_has_for_each_record_are_refused() -> None:
    with pytest.raises(ValueError, match="_path"):
        typed("_path STRING")
