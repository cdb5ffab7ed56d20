"""Check ``/v1/logs`` beside a stream's own path: which of them takes a request, and that refusals are OTLP messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.unit.receiver_runtime.receivers.http.http_client import JSON, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def request(time: int = 1) -> bytes:
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=time)
    data: bytes = made.SerializeToString()
    return data


def test_retryable_answers_have_retry_after_and_errors_are_status_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    with listening(tmp_path, protocols="opentelemetry", tokens="env:A_TOKEN", acknowledgement_timeout="300ms") as made:
        token = {"Authorization": "Bearer abc"}
        unknown = made.post(request(), PROTOBUF, path="/v1/logs")
        assert (unknown.status, unknown.headers["www-authenticate"]) == (401, "Bearer")
        assert "Bearer TOKEN" in Status.FromString(unknown.body).message
        made.log.away = True
        for headers in (PROTOBUF | token, JSON | token):
            body = request() if headers["Content-Type"] != "application/json" else b'{"resourceLogs": []}'
            answer = made.post(body, headers, path="/v1/logs")
            assert (answer.status, answer.headers["content-type"]) == (503, headers["Content-Type"])
            assert int(answer.headers["retry-after"]) >= 1
            said = (
                Status.FromString(answer.body).message
                if headers["Content-Type"] != "application/json"
                else answer.json()["message"]
            )
            assert "acknowledgement_timeout" in said
            # The next request should not wait; for a moment it would.
            eventually(lambda: made.ask("GET", "/ready").status == 503, "not ready")
        made.log.away = False


def test_a_repeated_request_is_stored_once(tmp_path: Path) -> None:
    with listening(tmp_path, protocols="opentelemetry") as made:
        for body in (request(1), request(1), request(2), request(1)):
            assert made.post(body, PROTOBUF, path="/v1/logs").status == 200
        assert [json.loads(body)["time_unix_nano"] for body in made.bodies()] == [1, 2]
        # Times are whole milliseconds here: equal requests may be two by chance, unless the sender gives a key.
        for key in (None, None, "k", "k"):
            headers = PROTOBUF if key is None else PROTOBUF | {"Idempotency-Key": key}
            assert made.post(request(10**6), headers, path="/v1/logs").status == 200
        assert [json.loads(body)["time_unix_nano"] for body in made.bodies()[2:]] == [10**6] * 3


def test_without_opentelemetry_the_path_belongs_to_a_stream_called_logs(tmp_path: Path) -> None:
    with listening(tmp_path, stream_name="logs") as made:
        assert made.post(b'{"a": 1}', path="/v1/logs").json() == {"records": 1, "duplicates": 0}
        assert made.bodies() == [b'{"a": 1}']


def test_with_opentelemetry_the_path_is_opentelemetrys(tmp_path: Path) -> None:
    with listening(tmp_path, protocols="opentelemetry") as made:
        refused = made.post(b'{"a": 1}', path="/v1/logs")
        assert (refused.status, "none is resourceLogs" in refused.json()["message"]) == (400, True)
        assert made.bodies() == []
        event = {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0", "Content-Type": "text/plain"}
        assert made.post(b"x", event, path="/v1/logs").status == 415


@pytest.mark.parametrize("origins", [(), ("events.example.com",)])
def test_web_hooks_are_allowed_by_origin(tmp_path: Path, origins: tuple[str, ...]) -> None:
    with listening(tmp_path, webhook_origins=origins) as made:
        for origin in ("events.example.com", "other.example.com"):
            answer = made.ask("OPTIONS", "/v1/orders", headers={"WebHook-Request-Origin": origin})
            assert answer.status == (200 if origins else 405)
            assert ("webhook-allowed-origin" in answer.headers) is (origin in origins)
            assert answer.headers["allow"] == ("POST, OPTIONS" if origins else "POST")
