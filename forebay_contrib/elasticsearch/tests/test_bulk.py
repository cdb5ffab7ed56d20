"""Check bulk requests: which rows they make, how their items are answered, and what shippers ask before they send."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.elasticsearch.bulk import parse_bulk
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, PushRefusedError
from receiver_runtime.receivers.http.requests.route import Answered, AnsweredRows
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LINES = {"Content-Type": "application/x-ndjson"}
SOURCE = Http(listen="127.0.0.1:0", max_record_bytes="10 KB")


def bulk(*lines: object) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def parsed(body: bytes, path: bytes = b"/_bulk", query: bytes = b"", source: Http = SOURCE) -> AnsweredRows:
    return parse_bulk([(TARGET_PATH, path), (TARGET_QUERY, query)], body, source, UNLIMITED)


def rows(found: AnsweredRows) -> list[tuple[bytes, str | None, dict[str, str]]]:
    return [(row["body"], row["id"], dict(row["attributes"])) for row in found.batch.to_pylist()]


def items(found: AnsweredRows, misfits: Mapping[int, str] | None = None) -> list[tuple[str, dict[str, Any]]]:
    misfits = misfits or {}
    rejected = len(found.rejected) + len(misfits)
    reply = found.answer(Answered(found.batch.num_rows - len(misfits), 0, rejected, misfits=misfits))
    answered = json.loads(reply.body)
    assert ("x-elastic-product", "Elasticsearch") in reply.headers
    found_items = [next(iter(item.items())) for item in answered["items"]]
    assert answered["errors"] is any(item["status"] != 201 for _, item in found_items)
    return found_items


@pytest.mark.parametrize("count", [1, 200])
def test_each_document_is_a_row_and_each_action_an_item(count: int) -> None:
    lines: list[object] = []
    for number in range(count):
        lines += [{"create": {"_index": "logs"}}, {"n": number}]
    found = parsed(bulk(*lines))
    expected = {"_index": "logs", "_op": "create"}
    assert rows(found) == [(b'{"n": %d}' % number, None, expected) for number in range(count)]
    assert found.keys is None or not any(found.keys)
    assert [(name, item["status"], item["_index"]) for name, item in items(found)] == [("create", 201, "logs")] * count


def test_what_the_path_and_the_query_say_is_for_actions_that_do_not() -> None:
    found = parsed(
        bulk({"index": {}}, {"a": 1}, {"create": {"_index": "own", "routing": 7, "_id": 5}}, {"b": 1}),
        b"/of-path/_bulk",
        b"pipeline=p&refresh=true",
    )
    assert rows(found) == [
        (b'{"a": 1}', None, {"_index": "of-path", "pipeline": "p", "_op": "index"}),
        (b'{"b": 1}', "5", {"_index": "own", "pipeline": "p", "_routing": "7", "_op": "create"}),
    ]


@pytest.mark.parametrize("padding", [0, 100])
def test_an_id_is_the_rows_key_and_an_index_action_may_replace_a_document(padding: int) -> None:
    lines = [
        *({"create": {"_index": "i", "_id": "1"}}, {"v": 1}),
        *({"create": {"_index": "i", "_id": "1"}}, {"v": 2}),
        *({"index": {"_index": "i", "_id": "2"}}, {"v": 1}),
        *({"index": {"_index": "i", "_id": "2"}}, {"v": 1}),
        *({"index": {"_index": "i", "_id": "2"}}, {"v": 2}),
        *({"create": {"_index": "j", "_id": "1"}}, {"v": 1}),
    ]
    found = parsed(bulk(*lines, *[{"create": {"_index": "i"}}, {"v": 0}] * padding))
    assert [(body, identity) for body, identity, _ in rows(found)[:4]] == [
        *((b'{"v": 1}', "1"), (b'{"v": 1}', "2"), (b'{"v": 2}', "2"), (b'{"v": 1}', "1")),
    ]
    assert found.keys is not None
    keys = [key for key in found.keys if key is not None]
    assert len(set(keys)) == 4
    assert found.batch.num_rows == 4 + padding
    # A document that is there twice is answered as its row is.
    answered = items(found, {0: "no BIGINT"})
    assert [item["status"] for _, item in answered[:6]] == [201] * 6
    assert ["failure_store" in item for _, item in answered[:6]] == [True, True, False, False, False, False]
    # Where no row fits, they may be over the sender's budget.
    answered = items(found, dict.fromkeys(range(found.batch.num_rows), "no BIGINT"))
    assert {item["status"] for _, item in answered} == {400}
    assert "no BIGINT" in answered[0][1]["error"]["reason"]


def test_what_is_no_document_is_set_aside_and_what_changes_one_is_refused() -> None:
    found = parsed(
        bulk(
            *({"index": {"_index": "i"}}, {"a": 1}),
            {"delete": {"_index": "i", "_id": "1"}},
            *({"update": {"_index": "i", "_id": "1"}}, {"doc": {}}),
            *({"create": {"_index": "i", "_id": "x"}}, b'{"a": '),
            *({"create": {"_index": "i"}}, b"[1]"),
            *({"create": {"_index": "i"}}, b'{"a": "\xff"}'),
            *({"create": {"_index": "i"}}, {"a": "x" * 20_000}),
            *({"index": {"_index": "i"}}, {"a": 2}),
        )
    )
    assert [body for body, _, _ in rows(found)] == [b'{"a": 1}', b'{"a": 2}']
    assert [(name, item["status"]) for name, item in items(found)] == [
        *(("index", 201), ("delete", 400), ("update", 400), ("create", 201), ("create", 201), ("create", 201)),
        *(("create", 201), ("index", 201)),
    ]
    aside = [item for _, item in items(found) if item.get("failure_store") == "used"]
    assert [item.get("_id") for item in aside] == ["x", None, None, None]
    # A change of a document is no record.
    assert [one.data[:5] for one in found.rejected] == [b'{"a":', b"[1]", b'{"a":', b'{"a":']
    assert [one.reason.label for one in found.rejected] == [*["unparsable"] * 3, "record_too_large"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no action"),
        (b"\n\n", "no action"),
        (b'{"index":{}}\n', r"line \[1\]: no document follows it"),
        (b'{"index":{}}\n\n{"a":1}\n', r"line \[1\]: no document follows it"),
        (b'{"a":1}\n{"a":1}\n', r"line \[1\]: it names no action"),
        (b'{"index":{}}\n{}\n{"index":{},"create":{}}\n{}\n', r"line \[3\]: it names no action, or several"),
        (b'{"index":{}}\n{}\nx\n{}\n', r"line \[3\]: JSON is malformed"),
        (b'{"index":{"_index":"\xff"}}\n{}\n', r"line \[1\]: 'utf-8'"),
        (b'{"index":{"_index":5}}\n{}\n', r"line \[1\]: Expected `str"),
    ],
)
def test_lines_that_are_no_actions_refuse_the_request(body: bytes, why: str) -> None:
    with pytest.raises(PushRefusedError, match=why) as refused:
        parsed(body)
    assert refused.value.status == 400
    with pytest.raises(PushRefusedError):
        parsed(body + bulk(*[{"index": {}}, {}] * 50) if body.endswith(b"{}\n") else body)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (bulk({"delete": {}}) * 10_000, b"/" + b"i" * 10_240 + b"/_bulk"),
        (bulk({"create": {"_id": "1"}}, {}) * 1_000, b"/" + b"i" * 10_240 + b"/_bulk"),
        # Quotes are longer in the answer than in the row.
        (bulk({"create": {}}, {}) * 1_000, b"/" + b'"' * 600 + b"/_bulk"),
    ],
    ids=["refused", "one row", "columns"],
)
def test_items_of_the_answer_are_counted(body: bytes, path: bytes) -> None:
    small = Http(listen="127.0.0.1:0", max_body_bytes="1 MiB", max_waiting_bytes="1 MiB")
    with pytest.raises(PushRefusedError, match="its answer has more than 1048576 bytes") as refused:
        parsed(body, path, source=small)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "actions",
    [
        [{"create": {"_id": str(number)}} for number in range(4_000)],
        [{"create": {"routing": str(number)}} for number in range(4_000)],
    ],
    ids=["ids", "groups"],
)
def test_what_a_long_path_says_is_not_held_for_each_action(actions: Sequence[dict[str, Any]]) -> None:
    body = bulk(*(line for action in actions for line in (action, {})))
    small = Http(listen="127.0.0.1:0", max_body_bytes="1 MiB", max_waiting_bytes="1 MiB")
    # What the first call imports is no part of it.
    parsed(bulk(*[{"create": {"_id": "1"}}, {}] * 100))
    tracemalloc.start()
    try:
        with pytest.raises(PushRefusedError) as refused:
            parsed(body, b"/" + b"i" * 10_000 + b"/_bulk", source=small)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    # For 4,000 paths it would be 40 MB, and twice that in items.
    assert peak < 10 * 2**20


_ACTIONS = st.sampled_from(
    [
        *({"create": {"_index": "a"}}, {"index": {}}, {"index": {"_index": "b", "_id": "1"}}),
        # Equal in Python, and other texts.
        *({"create": {"_id": 8, "routing": 1}}, {"create": {"_id": 8, "routing": True}}, {"index": {"_id": 'é"\\'}}),
        *({"create": {"_id": 7, "routing": "r"}}, {"delete": {"_id": "1"}}, {"update": {"_id": "1"}}),
    ]
)
_DOCUMENTS = st.sampled_from([b'{"n": 1}', b'{"n": 2}', b"{}", b'{"a": ', b"7", b'{"x": {"index": {}}}'])


@settings(max_examples=60)
@given(st.lists(st.tuples(_ACTIONS, _DOCUMENTS), min_size=1, max_size=8), st.integers(0, 1))
def test_columns_and_lines_make_the_same_rows(pairs: Sequence[tuple[dict[str, Any], bytes]], turn: int) -> None:
    lines: list[object] = []
    for action, document in pairs:
        lines += [action] if "delete" in action else [action, document]
    body = bulk(*lines)
    alone = parsed(body, b"/i/_bulk")
    # Behind as many others the lines are cut and checked at once, if all of them are objects.
    padding = bulk(*[{"create": {}}, {"p": 1}] * 60)
    among = parsed(padding + body if turn else body + padding, b"/i/_bulk")
    [mine, others] = [rows(among)[60:], rows(among)[:60]] if turn else [rows(among)[:-60], rows(among)[-60:]]
    assert mine == rows(alone)
    assert {body for body, _, _ in others} == {b'{"p": 1}'}
    assert (items(among)[60:] if turn else items(among)[:-60]) == items(alone)
    assert among.rejected == alone.rejected or turn


def test_a_repeated_request_stores_documents_with_ids_once(tmp_path: Path) -> None:
    body = bulk(*({"create": {"_index": "i", "_id": "1"}}, {"v": 1}), *({"index": {"_index": "i"}}, {"v": 2}))
    with listening(tmp_path, protocols="elasticsearch", headers="X-Tenant", query_parameters="pipeline") as made:
        for _ in range(2):
            answer = made.post(body, {**LINES, "X-Tenant": "t"}, path="/i/_bulk?pipeline=p")
            assert (answer.status, answer.json()["errors"]) == (200, False)
            assert [item["status"] for found in answer.json()["items"] for item in found.values()] == [201, 201]
        found = made.rows()
    assert [row["body"] for row in found] == [b'{"v": 1}', b'{"v": 2}', b'{"v": 2}']
    assert dict(found[0]["attributes"])["x-tenant"] == "t"
    assert {(row["path"], row["content_type"]) for row in found} == {("/i/_bulk", "application/json")}


def test_a_document_that_is_none_is_kept_also_beside_one_that_is_there_already(tmp_path: Path) -> None:
    known = bulk({"create": {"_index": "i", "_id": "1"}}, {"v": 1})
    with listening(tmp_path, protocols="elasticsearch") as made:
        assert not made.post(known, LINES, path="/_bulk").json()["errors"]
        answer = made.post(known + bulk({"create": {"_index": "i"}}, b'{"a": '), LINES, path="/_bulk").json()
        # A sender that hears of an error may send all of it again, and again.
        assert not answer["errors"]
        assert [item["create"].get("failure_store") for item in answer["items"]] == [None, "used"]
        assert made.rig.dead_letters() == [("unparsable", 0, b'{"a":')]
        assert made.bodies() == [b'{"v": 1}']


def test_refusals_are_those_of_elasticsearch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    with listening(tmp_path, protocols="elasticsearch", tokens="env:A_TOKEN", acknowledgement_timeout="300ms") as made:
        for headers in ({}, {"Authorization": "ApiKey eDp5"}):
            refused = made.post(bulk({"index": {}}, {}), {**LINES, **headers}, path="/_bulk")
            assert (refused.status, refused.json()["error"]["type"]) == (401, "security_exception")
            assert made.ask("HEAD", "/", headers=headers).status == 401
        # id:abc in Base64, as Elasticsearch's own keys.
        token = {"Authorization": "ApiKey aWQ6YWJj"}
        assert made.post(bulk({"index": {}}, {}), {**LINES, **token}, path="/_bulk").status == 200
        malformed = made.post(b"x\n", {**LINES, **token}, path="/_bulk")
        assert (malformed.status, malformed.json()["status"]) == (400, 400)
        assert malformed.json()["error"]["reason"].startswith("Malformed action/metadata line [1]")
        made.log.away = True
        away = made.post(bulk({"index": {}}, {}), {**LINES, **token}, path="/_bulk")
        assert (away.status, away.headers["x-elastic-product"]) == (503, "Elasticsearch")
        assert int(away.headers["retry-after"]) >= 1
        made.log.away = False


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/"), ("HEAD", "/"), ("GET", "/_license?human=false"), ("GET", "/_xpack"), ("GET", "/_cat/health")),
        *(("HEAD", "/_index_template/filebeat-8.19.0"), ("PUT", "/_ilm/policy/filebeat"), ("GET", "/_template/a%20b")),
        *(
            ("PUT", "/_ingest/pipeline/p"),
            ("HEAD", "/_alias/x"),
            ("GET", "/_data_stream/l-x"),
            ("GET", "/_license/"),
        ),
        ("GET", "/_cluster/health"),
    ],
)
def test_what_shippers_ask_first_is_answered(tmp_path: Path, method: str, path: str) -> None:
    with listening(tmp_path, protocols="elasticsearch") as made:
        answer = made.ask(method, path, b"{}" if method == "PUT" else None, {"Content-Type": "application/json"})
        assert (answer.status, answer.headers["x-elastic-product"]) == (200, "Elasticsearch")
        assert bool(answer.body) is (method != "HEAD")
        if path == "/_template/a%20b":
            assert list(answer.json()) == ["a b"]
        if method == "PUT":
            assert answer.json() == {"acknowledged": True}
        assert made.ask("GET", "/nowhere").status == 404
        assert made.ask("DELETE", path).status == 405
        # The path and the query of another request can't be sent as headers.
        forged = made.raw(b"POST /_bulk HTTP/1.1\r\nHost: x\r\n:path: /y/_bulk\r\nContent-Length: 0\r\n\r\n")
        assert b" 400 " in forged.partition(b"\r\n")[0]


def test_a_document_that_does_not_fit_a_typed_stream_is_set_aside_alone(tmp_path: Path) -> None:
    lines: list[object] = []
    for number in range(100):
        lines += [{"create": {}}, {"n": number if number % 10 else "x"}]
    check = TypedRows(Json("n BIGINT"), arrow_schema(Http.columns), Http.record_column)
    with listening(tmp_path, protocols="elasticsearch", row_check=check) as made:
        for _ in range(2):
            answer = made.post(bulk(*lines), LINES, path="/i/_bulk")
            found = [item["create"] for item in answer.json()["items"]]
            assert {item["status"] for item in found} == {201}
            assert ["failure_store" in item for item in found] == [not number % 10 for number in range(100)]
            assert not answer.json()["errors"]
        alone = made.post(bulk({"create": {}}, {"n": "x"}), LINES, path="/i/_bulk")
        [item] = [one["create"] for one in alone.json()["items"]]
        assert (alone.status, item["status"], alone.json()["errors"]) == (200, 400, True)
        assert "$.n" in item["error"]["reason"]
        assert len(made.rows()) == 180
        assert len(made.rig.dead_letters()) == 21
