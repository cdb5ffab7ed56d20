"""Hooks that tell schemathesis about our server's OpenAPI document; it loads them, see ``test_http_fuzzing``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import schemathesis
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


# A stream {a="b"} with the line "c", and a series a="b" with the value 0.
_PUSHED = b'\n\x0f\n\x07{a="b"}\x12\x04\n\x00\x12\x00'
_WRITTEN = b"\n\x0a\n\x06\n\x01a\x12\x01b\x12\x00"
_SNAPPED = {
    **dict.fromkeys(("/loki/api/v1/push", "/api/prom/push"), _PUSHED),
    **dict.fromkeys(("/api/v1/write", "/api/v1/push"), _WRITTEN),
}


def _export_request(texts: Sequence[str]) -> bytes:
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for text in texts:
        scope.log_records.add(severity_text=text)
    data: bytes = made.SerializeToString()
    return data


def _lines(records: Sequence[dict[str, int]]) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


schemathesis.openapi.media_type(
    "application/x-protobuf", st.lists(st.text(st.characters(codec="utf-8")), max_size=3).map(_export_request)
)
schemathesis.openapi.media_type(
    "application/x-ndjson",
    st.lists(st.dictionaries(st.text(), st.integers()), min_size=1, max_size=3).map(_lines),
)


def _is_valid(case: schemathesis.Case[Any]) -> bool:
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return False
    return all(part.mode.is_positive for part in case.meta.components.values())


@schemathesis.hook
def map_case(_: schemathesis.HookContext, case: schemathesis.Case[Any]) -> schemathesis.Case[Any]:
    """Make bodies of protocols whose form a schema of their media type can't tell: actions of bulk requests, snappy."""
    if not isinstance(case.body, bytes) or not _is_valid(case):
        return case
    if case.path.endswith("_bulk"):
        case.body = b"".join(b'{"create":{}}\n%b\n' % line for line in case.body.split(b"\n"))
    elif case.path in _SNAPPED:
        case.body = pa.compress(_SNAPPED[case.path], codec="snappy", asbytes=True)
    return case


@schemathesis.hook
def filter_case(_: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Leave out cases with both of two parameters that exclude each other, which OpenAPI can't express."""
    return not ((case.query or {}).get("ack") == "buffered" and "Idempotency-Key" in (case.headers or {}))
