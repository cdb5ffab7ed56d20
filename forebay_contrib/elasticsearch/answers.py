"""Makes the answers that Elasticsearch's clients know: to bulk requests, and to what shippers ask before they send."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH
from receiver_runtime.receivers.http.requests.route import Reply
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Answered, Refused

#: Clients refuse to talk to a server without it.
_PRODUCT = ("x-elastic-product", "Elasticsearch")
_JSON = "application/json"
_COMPATIBLE = re.compile(rb"application/vnd\.elasticsearch\+json; ?compatible-with=\d{1,2}")
# What shippers compare: they choose their requests by the major version, and most refuse a server that is older.
_VERSION = "8.19.0"
_UUID = "Zm9yZWJheS1mb3JlYmF5LQ"
_LONGEST_WHY = 300  # characters of an item's reason
_KINDS: Mapping[int, str] = {
    400: "illegal_argument_exception",
    401: "security_exception",
    403: "security_exception",
    413: "content_too_long_exception",
    429: "es_rejected_execution_exception",
    503: "cluster_block_exception",
}


class Item(NamedTuple):
    """Hold an item of a bulk request's answer, and the place of its row; None: it has none."""

    content: bytes
    row: int | None
    is_refused: bool = False


def stored(operation: str, index: str, identity: str | None) -> bytes:
    """Return the item of a document that is registered."""
    return stored_in(operation, index)(identity)


def stored_in(operation: str, index: str) -> Callable[[str | None], bytes]:
    """Return what makes the items of documents of an operation and an index of their ids."""
    without = b'{"%b":{"_index":%b' % (operation.encode(), _dumps(index))
    rest = b',"result":"created",' + _dumps(_DONE)[1:] + b"}"
    with_id = without + b',"_id":'
    return lambda identity: without + rest if identity is None else with_id + _dumps(identity) + rest


def set_aside(operation: str, index: str, identity: str | None) -> bytes:
    """Return the item of a document that is kept as a dead letter.

    Elasticsearch answers so when its failure store has taken a document: as a success, because many senders take an
    item with an error for a reason to send the whole request again, and would do so for ever.
    """
    return _with_failure_store(stored(operation, index, identity))


def unstored(operation: str, index: str, identity: str | None, kind: str, why: str) -> bytes:
    """Return the item of a document that is not kept."""
    error = {"type": kind, "reason": shortened(why, _LONGEST_WHY)}
    return _dumps({operation: {**_named(index, identity), "status": 400, "error": error}})


_DONE: Mapping[str, object] = {
    "_version": 1,
    "_shards": {"total": 1, "successful": 1, "failed": 0},
    "_seq_no": 0,
    "_primary_term": 1,
    "status": 201,
}


def _named(index: str, identity: str | None) -> dict[str, object]:
    return {"_index": index} if identity is None else {"_index": index, "_id": identity}


def bulk_answer(items: Sequence[Item], answered: Answered, *, repeated: int = 1) -> Reply:
    """Answer a bulk request.

    Args:
        items: its items, in order.
        answered: what became of the rows.
        repeated: how many items there are, where one stands for all.
    """
    misfits = answered.misfits
    if repeated > 1 and misfits:
        items = [items[0]._replace(row=row) for row in range(repeated)]
        repeated = 1
    # Where no row fits, those over the sender's budget are not kept.
    are_refused = bool(misfits) and not answered.records and not answered.duplicates
    contents = [
        one.content
        if one.row is None or one.row not in misfits
        else _misfit(one.content, misfits[one.row], are_refused)
        for one in items
    ]
    return _of_items(contents * repeated, has_errors=are_refused or any(one.is_refused for one in items))


def answer_in_order(contents: Sequence[bytes], answered: Answered) -> Reply:
    """Answer a bulk request with an item for each row, in the order of the rows."""
    if answered.misfits:
        return bulk_answer([Item(content, row) for row, content in enumerate(contents)], answered)
    return _of_items(contents, has_errors=False)


def _of_items(contents: Sequence[bytes], *, has_errors: bool) -> Reply:
    content = b'{"took":1,"errors":%b,"items":[%b]}' % (b"true" if has_errors else b"false", b",".join(contents))
    return Reply(HTTPStatus.OK, _JSON, content, [_PRODUCT])


def _misfit(item: bytes, why: str, is_refused: bool) -> bytes:
    if not is_refused:
        return _with_failure_store(item)
    [(operation, found)] = msgspec.json.decode(item).items()
    why = f"it does not fit the stream's columns: {why}"
    return unstored(operation, found["_index"], found.get("_id"), "document_parsing_exception", why)


def _with_failure_store(item: bytes) -> bytes:
    return item.removesuffix(b"}}") + b',"failure_store":"used"}}'


def answer_refused(headers: Headers, refused: Refused) -> Reply:
    """Answer a refused request as Elasticsearch does."""
    kind = _KINDS.get(refused.status, "illegal_argument_exception")
    cause = {"type": kind, "reason": refused.detail}
    content = _dumps({"error": {"root_cause": [cause], **cause}, "status": refused.status})
    return Reply(refused.status, _media_type(headers), content, [*refused.headers, _PRODUCT])


def _media_type(headers: Headers) -> str:
    """Return the media type of an answer: clients of Elasticsearch 8 and later may ask for one of its own."""
    accepted = next((value for name, value in headers if name == b"accept"), b"")
    found = _COMPATIBLE.match(accepted)
    return found[0].decode() if found else _JSON


def _dumps(value: object) -> bytes:
    return msgspec.json.encode(value)


# -- what shippers ask before they send

_INFO: Mapping[str, object] = {
    "name": "forebay",
    "cluster_name": "forebay",
    "cluster_uuid": _UUID,
    "version": {
        "number": _VERSION,
        "build_flavor": "default",
        "build_type": "tar",
        "build_hash": "0" * 40,
        "build_date": "2025-07-29T00:00:00.000000000Z",
        "build_snapshot": False,
        "lucene_version": "9.12.2",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    },
    "tagline": "You Know, for Search",
}
_LICENSE: Mapping[str, object] = {
    "license": {
        "status": "active",
        "uid": "00000000-0000-0000-0000-000000000000",
        "type": "basic",
        "issue_date": "2025-01-01T00:00:00.000Z",
        "issue_date_in_millis": 1735689600000,
        "max_nodes": 1000,
        "issued_to": "forebay",
        "issuer": "elasticsearch",
        "start_date_in_millis": -1,
    }
}
_XPACK: Mapping[str, object] = {
    "build": {"hash": "0" * 40, "date": "2025-07-29T00:00:00.000000000Z"},
    "license": {"uid": "00000000-0000-0000-0000-000000000000", "type": "basic", "mode": "basic", "status": "active"},
    # What would have shippers ask for more is not there.
    "features": {name: {"available": False, "enabled": False} for name in ("ilm", "ml", "security", "monitoring")},
    "tagline": "You know, for X",
}
_HEALTH: Mapping[str, object] = {
    "cluster_name": "forebay",
    "status": "green",
    "timed_out": False,
    "number_of_nodes": 1,
    "number_of_data_nodes": 1,
    "active_primary_shards": 0,
    "active_shards": 0,
    "unassigned_shards": 0,
    "active_shards_percent_as_number": 100.0,
}

#: What is answered at paths without a name, to GET and HEAD.
ASKED: Mapping[str, object] = {
    "/": _INFO,
    "/_license": _LICENSE,
    "/_xpack": _XPACK,
    "/_cluster/health": _HEALTH,
    "/_cat/health": [{"cluster": "forebay", "status": "green"}],
}

#: What shippers look for by its name, and would make: whatever it is called, it is there.
NAMED: Mapping[str, Callable[[str], object]] = {
    "/_ilm/policy/{name}": lambda name: {name: {"version": 1, "policy": {"phases": {}}}},
    "/_index_template/{name}": lambda name: {
        "index_templates": [{"name": name, "index_template": {"index_patterns": [], "composed_of": []}}]
    },
    "/_component_template/{name}": lambda name: {
        "component_templates": [{"name": name, "component_template": {"template": {}}}]
    },
    "/_template/{name}": lambda name: {name: {"index_patterns": [], "settings": {}, "mappings": {}, "aliases": {}}},
    "/_ingest/pipeline/{name}": lambda name: {name: {"processors": []}},
    "/_alias/{name}": lambda name: {name: {"aliases": {name: {"is_write_index": True}}}},
    "/_data_stream/{name}": lambda name: {"data_streams": [{"name": name, "status": "GREEN", "indices": []}]},
}


def answer_asked(headers: Headers, _: bytes, __: Http, ___: ParsingLimits) -> Reply:
    """Answer a question at one of the paths of ``ASKED``."""
    path = _path(headers)
    return Reply(HTTPStatus.OK, _media_type(headers), _dumps(ASKED[path.rstrip("/") or "/"]), [_PRODUCT])


def answer_named(headers: Headers, body: bytes, __: Http, ___: ParsingLimits) -> Reply:
    """Answer a question at one of the paths of ``NAMED``, or a wish to make what is named: nothing is made."""
    folder, _, name = _path(headers).strip("/").rpartition("/")
    found = {"acknowledged": True} if body else NAMED[f"/{folder}/{{name}}"](name)
    return Reply(HTTPStatus.OK, _media_type(headers), _dumps(found), [_PRODUCT])


def _path(headers: Headers) -> str:
    return next((value.decode() for name, value in headers if name == TARGET_PATH), "/")
