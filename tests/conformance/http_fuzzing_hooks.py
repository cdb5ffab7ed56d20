"""Hooks that tell schemathesis about our server's OpenAPI document; it loads them, see ``test_http_fuzzing``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@schemathesis.hook
def filter_case(_: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Leave out cases with both of two parameters that exclude each other, which OpenAPI can't express."""
    return not ((case.query or {}).get("ack") == "buffered" and "Idempotency-Key" in (case.headers or {}))
